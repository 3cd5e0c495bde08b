"""Runs of nodes, and how too many siblings are packed: first by repetition (loops), then in chunks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

SIBLINGS_MAX = 120
"""More siblings than this are packed into chunks of at least :data:`CHUNK`."""
CHUNK = 50
REPEATS_FROM = 24
PERIOD_MAX = 64
REPEATS_MIN = 3
COVERED_MIN = 0.6
"""Part of the siblings that a loop must make up to be folded as one."""


class NodeRun(NamedTuple):
    """Nodes ``first`` to ``last - 1`` under one name. ``node``: a single op. ``inner``: what was packed."""

    name: str
    first: int
    last: int
    node: bool = False
    inner: tuple[NodeRun, ...] = ()


class Repeats(NamedTuple):
    """``times`` repetitions of ``period`` siblings, from the sibling ``start`` on."""

    start: int
    period: int
    times: int


def pack(runs: Sequence[NodeRun]) -> tuple[NodeRun, ...]:
    """The same nodes in at most :data:`SIBLINGS_MAX` siblings, in the same order."""
    runs = _fold_repeats(runs)
    if len(runs) <= SIBLINGS_MAX:
        return tuple(runs)
    size = max(CHUNK, -(-len(runs) // SIBLINGS_MAX))
    return tuple(
        _around(f"{start + 1} to {start + len(chunk)} of {len(runs)}", chunk)
        for start in range(0, len(runs), size)
        for chunk in [tuple(runs[start : start + size])]
    )


def find_repeats(names: Sequence[str]) -> Repeats | None:
    """The loop that makes up most of ``names``, with the shortest period; None when there is none."""
    plain = [re.sub(r" #\d+", "", name) for name in names]
    for period in range(2, min(PERIOD_MAX, len(plain) // REPEATS_MIN) + 1):
        start, length = _longest_match(plain, period)
        count = (length + period) // period
        covered = count * period >= COVERED_MIN * len(plain)
        if count >= REPEATS_MIN and covered and len(set(plain[start : start + period])) > 1:
            return Repeats(start, period, count)
    return None


def _longest_match(names: Sequence[str], period: int) -> tuple[int, int]:
    best_start = best = start = 0
    length = 0
    for index in range(len(names) - period):
        if names[index] == names[index + period]:
            length += 1
            if length > best:
                best_start, best = start, length
        else:
            start, length = index + 1, 0
    return best_start, best


def _fold_repeats(runs: Sequence[NodeRun]) -> list[NodeRun]:
    found = find_repeats([run.name for run in runs]) if len(runs) > REPEATS_FROM else None
    if found is None:
        return list(runs)
    end = found.start + found.times * found.period
    steps = [
        _around(f"repeat {number + 1} of {found.times}", runs[at : at + found.period])
        for number, at in enumerate(range(found.start, end, found.period))
    ]
    return [*runs[: found.start], *steps, *runs[end:]]


def _around(name: str, runs: Sequence[NodeRun]) -> NodeRun:
    return NodeRun(name, runs[0].first, runs[-1].last, inner=tuple(runs))
