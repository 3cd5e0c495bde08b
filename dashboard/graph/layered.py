"""Layered drawing of a small directed graph (Sugiyama's scheme without dummy nodes).

Longest-path layers; nodes without predecessors are pulled down next to their first consumer; barycentre
sweeps order each layer; then boxes move towards their neighbours. Edges that close a cycle are turned round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pairs = list[tuple[int, int]]
GAP_X = 26.0
GAP_Y = 38.0
ROW_WIDTH_MAX = 1500.0
_ORDER_SWEEPS = 6
_MOVE_SWEEPS = 8


class LayeredPosition(NamedTuple):
    """Centres of the boxes, y growing downwards, and the size of the whole drawing."""

    x: Floats
    y: Floats
    width: float
    height: float
    back_edges: frozenset[tuple[int, int]]


def place(widths: Floats, heights: Floats, edges: Pairs) -> LayeredPosition:
    """Return centres for boxes of these sizes. ``edges`` are (from, to) positions; duplicates do no harm."""
    count = len(widths)
    if count == 0:
        return LayeredPosition(np.zeros(0), np.zeros(0), 0.0, 0.0, frozenset())
    forward, back = break_cycles(count, edges)
    layers = _pulled(assign_layers(count, forward), forward)
    rows = _rows(_ordered(layers, forward, count), widths)
    x = _moved(rows, widths, forward)
    y = np.zeros(count)
    top = 0.0
    for row in rows:
        tall = float(heights[row].max())
        y[row] = top + tall / 2
        top += tall + GAP_Y
    left = float((x - widths / 2).min())
    right = float((x + widths / 2).max())
    return LayeredPosition(x - left, y, right - left, top - GAP_Y, back)


def break_cycles(count: int, edges: Pairs) -> tuple[Pairs, frozenset[tuple[int, int]]]:
    """Return the edges with every one that closes a cycle reversed, and the set of those."""
    followers: list[list[int]] = [[] for _ in range(count)]
    unique = sorted({(source, target) for source, target in edges if source != target})
    for source, target in unique:
        followers[source].append(target)
    state = [0] * count
    back: set[tuple[int, int]] = set()
    for start in range(count):
        if state[start]:
            continue
        stack = [(start, iter(followers[start]))]
        state[start] = 1
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                state[node] = 2
                stack.pop()
            elif state[following] == 1:
                back.add((node, following))
            elif state[following] == 0:
                state[following] = 1
                stack.append((following, iter(followers[following])))
    turned = {(target, source) if (source, target) in back else (source, target) for source, target in unique}
    return sorted(turned), frozenset(back)


def assign_layers(count: int, edges: Pairs) -> list[int]:
    """Return the longest path from a node without predecessors to each node, for a graph without cycles."""
    followers: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, target in edges:
        followers[source].append(target)
        waiting[target] += 1
    layers = [0] * count
    ready = [node for node in range(count) if not waiting[node]]
    while ready:
        node = ready.pop()
        for target in followers[node]:
            layers[target] = max(layers[target], layers[node] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return layers


def _pulled(layers: list[int], edges: Pairs) -> list[int]:
    has_source = {target for _, target in edges}
    nearest: dict[int, int] = {}
    for source, target in edges:
        if source not in has_source:
            nearest[source] = min(nearest.get(source, layers[target]), layers[target])
    return [nearest[node] - 1 if node in nearest else layer for node, layer in enumerate(layers)]


def _ordered(layers: list[int], edges: Pairs, count: int) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(max(layers) + 1)]
    for node in range(count):
        rows[layers[node]].append(node)
    rows = [row for row in rows if row]
    before, after = _neighbours(count, edges)
    position = np.zeros(count)
    for row in rows:
        position[row] = np.arange(len(row)) - len(row) / 2
    for sweep in range(_ORDER_SWEEPS):
        sides = before if sweep % 2 == 0 else after
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            wish = {node: position[sides[node]].mean() if sides[node] else position[node] for node in row}
            row.sort(key=lambda node, wish=wish: (wish[node], node))  # type: ignore[misc]
            position[row] = np.arange(len(row)) - len(row) / 2
    return rows


def _rows(rows: list[list[int]], widths: Floats) -> list[list[int]]:
    """Break rows that are wider than a screen; boxes of one layer have no edges among them."""
    found: list[list[int]] = []
    for row in rows:
        current: list[int] = []
        used = 0.0
        for node in row:
            if current and used + widths[node] > ROW_WIDTH_MAX:
                found.append(current)
                current, used = [], 0.0
            current.append(node)
            used += widths[node] + GAP_X
        found.append(current)
    return found


def _moved(rows: list[list[int]], widths: Floats, edges: Pairs) -> Floats:
    count = len(widths)
    before, after = _neighbours(count, edges)
    x = np.zeros(count)
    for row in rows:
        _spread(row, np.zeros(len(row)), widths, x)
    for sweep in range(_MOVE_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            sides = before if down else after
            wish = np.array([x[sides[node]].mean() if sides[node] else x[node] for node in row])
            _spread(row, wish, widths, x)
    return x


def _spread(row: list[int], wish: Floats, widths: Floats, x: Floats) -> None:
    """Put a row's boxes as near to ``wish`` as their order and the gap allow (on average)."""
    size = widths[row]
    offset = np.concatenate([[0.0], np.cumsum((size[:-1] + size[1:]) / 2 + GAP_X)])
    slack = wish - offset
    from_left = np.maximum.accumulate(slack)
    from_right = np.minimum.accumulate(slack[::-1])[::-1]
    x[row] = (from_left + from_right) / 2 + offset


def _neighbours(count: int, edges: Pairs) -> tuple[list[list[int]], list[list[int]]]:
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    return before, after
