"""Heterogeneous Earliest Finish Time (Topcuoglu, Hariri and Wu, IEEE TPDS 13 (3), 2002)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from djinn_lab.scheduler.makespan.graph import Laid, TaskGraph

Slots = list[tuple[float, float]]
"""Starts and ends of what a device runs, in order."""


def heft(graph: TaskGraph, rank: Sequence[float] | None = None) -> Laid:
    """Lay tasks by descending rank, each where it ends first, also into gaps between others. ``rank``: of
    each task, higher than those of the tasks that need it; by default the upward rank."""
    count, rank = len(graph.seconds), graph.upward_s if rank is None else rank
    device, start, end = [0] * count, [0.0] * count, [0.0] * count
    slots: list[Slots] = [[] for _ in range(graph.devices)]
    for task in sorted(range(count), key=lambda one: (-rank[one], one)):
        best: tuple[float, float, int] | None = None
        for where, seconds in enumerate(graph.seconds[task]):
            ready = max(
                (end[one] + (0.0 if device[one] == where else s) for one, s in graph.before[task]),
                default=0.0,
            )
            begins = _first_gap(slots[where], ready, seconds)
            if best is None or (begins + seconds, where) < (best[0], best[2]):
                best = (begins + seconds, begins, where)
        assert best is not None
        end[task], start[task], device[task] = best
        insort(slots[best[2]], (start[task], end[task]))
    return Laid(tuple(device), tuple(start), max(end, default=0.0))


def _first_gap(slots: Slots, ready_s: float, seconds: float) -> float:
    now = ready_s
    for begins, ends in slots:
        if now + seconds <= begins:
            return now
        now = max(now, ends)
    return now
