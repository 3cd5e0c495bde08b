"""Bars of a Gantt row at the resolution of a screen: in the window shown, short neighbours become one bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BARS_MAX = 1500
"""Bars drawn for one row. With fewer ops in the window each has its own."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class BarLane(NamedTuple):
    """Starts and ends in milliseconds, by increasing start; ``kind`` numbers the phase; ``node`` the op."""

    start: Floats
    end: Floats
    kind: Integers
    node: Integers


class Bar(NamedTuple):
    """One bar of a lane. Stands for ``ops`` of the lane's entries from ``first`` on. ``busy``: milliseconds
    of work in it; ``kind``: the phase that most of that work has."""

    left: float
    right: float
    first: int
    ops: int
    busy: float
    kind: int


def make_lane(
    start: Sequence[float], end: Sequence[float], kind: Sequence[int], node: Sequence[int]
) -> BarLane:
    """Make a lane from seconds, in any order."""
    starts = np.asarray(start, dtype=np.float64) * 1e3
    order = np.argsort(starts, kind="stable")
    ends = np.asarray(end, dtype=np.float64) * 1e3
    return BarLane(
        starts[order],
        ends[order],
        np.asarray(kind, dtype=np.int64)[order],
        np.asarray(node, dtype=np.int64)[order],
    )


def bars_in(lane: BarLane, low: float, high: float, most: int = BARS_MAX) -> list[Bar]:
    """Return bars for the window from ``low`` to ``high`` milliseconds, at most about ``most``."""
    inside = np.flatnonzero((lane.end >= low) & (lane.start <= high))
    if not len(inside):
        return []
    first, last = int(inside[0]), int(inside[-1]) + 1
    start, end = lane.start[first:last], lane.end[first:last]
    if last - first <= most:
        heads = np.arange(last - first)
    else:
        slot = max(high - low, 1e-9) / (most / 3)
        bucket = np.floor((start - low) / slot)
        alone = (end - start) >= slot
        kind = lane.kind[first:last]
        new = np.ones(last - first, dtype=bool)
        new[1:] = (bucket[1:] != bucket[:-1]) | (kind[1:] != kind[:-1]) | alone[1:] | alone[:-1]
        heads = np.flatnonzero(new)
        if len(heads) > most:
            heads = np.flatnonzero(
                np.concatenate([[True], (bucket[1:] != bucket[:-1]) | alone[1:] | alone[:-1]])
            )
    right = np.maximum.reduceat(end, heads)
    counts = np.diff(np.append(heads, last - first))
    work = end - start
    busy = np.add.reduceat(work, heads)
    kinds = lane.kind[first:last]
    shares = np.stack(
        [np.add.reduceat(work * (kinds == kind), heads) for kind in range(int(kinds.max()) + 1)]
    )
    most_work = np.where(counts == 1, kinds[heads], shares.argmax(axis=0))
    columns = zip(start[heads], right, first + heads, counts, busy, most_work, strict=True)
    return [Bar(float(a), float(b), int(c), int(d), float(e), int(f)) for a, b, c, d, e, f in columns]
