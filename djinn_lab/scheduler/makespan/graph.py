"""Tasks, what they cost on each device, what travels between them, and how they are laid over the devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec


class TaskGraph(msgspec.Struct, frozen=True, dict=True):
    """Tasks in an order in which they could run one after the other. ``seconds``: of every task on every
    device. ``edges``: (task, a later task that needs it, seconds between them on different devices).

    Raises ValueError for times that are negative or no numbers, for tasks with different numbers of devices
    and for edges that do not go to a later task."""

    seconds: tuple[tuple[float, ...], ...]
    edges: tuple[tuple[int, int, float], ...] = ()

    def __post_init__(self) -> None:
        if any(len(row) != self.devices or not row for row in self.seconds):
            raise ValueError("every task needs its seconds on each of the devices")
        if not all(0 <= seconds < float("inf") for row in self.seconds for seconds in row):
            raise ValueError("the seconds of a task must be zero or more")
        for before, after, seconds in self.edges:
            if not 0 <= before < after < len(self.seconds) or not 0 <= seconds < float("inf"):
                raise ValueError(f"({before}, {after}, {seconds}) is no edge of {len(self.seconds)} tasks")

    @property
    def devices(self) -> int:
        """Count the devices."""
        return len(self.seconds[0]) if self.seconds else 1

    @cached_property
    def before(self) -> list[list[tuple[int, float]]]:
        """List what each task needs: (task, seconds where that ran on another device)."""
        found: list[list[tuple[int, float]]] = [[] for _ in self.seconds]
        for one, other, seconds in self.edges:
            found[other].append((one, seconds))
        return found

    @cached_property
    def after(self) -> list[list[tuple[int, float]]]:
        """List what needs each task: (task, seconds where that runs on another device)."""
        found: list[list[tuple[int, float]]] = [[] for _ in self.seconds]
        for one, other, seconds in self.edges:
            found[one].append((other, seconds))
        return found

    @cached_property
    def upward_s(self) -> list[float]:
        """Return each task's upward rank: mean seconds from its start to the end of what depends on it, with
        all that travels (Topcuoglu, Hariri and Wu, IEEE TPDS 13 (3), 2002)."""
        between = 1 - 1 / self.devices
        rank = [sum(row) / len(row) for row in self.seconds]
        for task in reversed(range(len(rank))):
            rank[task] += max((rank[other] + s * between for other, s in self.after[task]), default=0.0)
        return rank

    def alone_s(self, device: int) -> float:
        """Return the seconds of all tasks on one device."""
        return sum(row[device] for row in self.seconds)

    def longest_way_s(self) -> float:
        """Return the seconds of the longest way through the graph, each task where it is fastest: no
        schedule is shorter."""
        ends = [min(row) for row in self.seconds]
        for task, before in enumerate(self.before):
            ends[task] += max((ends[one] for one, _ in before), default=0.0)
        return max(ends, default=0.0)


class Laid(msgspec.Struct, frozen=True):
    """Tasks laid over devices: the ``device`` of each, when it starts, and the ``makespan_s`` of all."""

    device: tuple[int, ...]
    start_s: tuple[float, ...]
    makespan_s: float

    def order(self) -> list[int]:
        """Return the tasks by their starts; of equal ones the first first."""
        return sorted(range(len(self.device)), key=lambda task: (self.start_s[task], task))


def in_order(graph: TaskGraph, device: Sequence[int], order: Sequence[int]) -> Laid:
    """Lay tasks on these devices, each after what comes before it in ``order`` on its device. ``order`` has
    every task after what it needs."""
    free = [0.0] * graph.devices
    start, end = [0.0] * len(device), [0.0] * len(device)
    for task in order:
        where = device[task]
        now = free[where]
        for one, seconds in graph.before[task]:
            ready = end[one] if device[one] == where else end[one] + seconds
            if ready > now:
                now = ready
        start[task] = now
        free[where] = end[task] = now + graph.seconds[task][where]
    return Laid(tuple(device), tuple(start), max(end, default=0.0))
