"""The critical path: the chain of ops, each of which needs the one before, that takes longest.

However many devices there were, a cell could not be faster than its critical path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class CriticalPath(msgspec.Struct, frozen=True):
    """A longest chain of dependent ops. ``nodes``: their ids, in order. ``seconds``: of all together."""

    nodes: tuple[int, ...]
    seconds: float


def find_critical_path(seconds: Sequence[float], edges: Iterable[tuple[int, int]]) -> CriticalPath:
    """Return the longest path through a graph of ops. ``seconds``: of each op, by id. ``edges``: (op, a later
    op that needs it). Of paths of equal length, the one whose last ops have the smallest ids. Linear in ops
    and edges. Raises ValueError for an edge that does not go to a later op."""
    count = len(seconds)
    needed: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        if not 0 <= source < target < count:
            raise ValueError(f"({source}, {target}) is no edge from an op to a later one of {count}")
        needed[target].append(source)
    ends = list(map(float, seconds))
    before: list[int | None] = [None] * count
    for node in range(count):
        if needed[node]:
            last = min(needed[node], key=lambda source: (-ends[source], source))
            before[node] = last
            ends[node] += ends[last]
    if not count:
        return CriticalPath((), 0.0)
    at: int | None = min(range(count), key=lambda node: (-ends[node], node))
    total = ends[at] if at is not None else 0.0
    path: list[int] = []
    while at is not None:
        path.append(at)
        at = before[at]
    return CriticalPath(tuple(reversed(path)), total)
