"""Look for a shorter makespan than list scheduling finds.

It begins with the best of HEFT, of HEFT by ranks that are a little off, and of each device alone. Simulated
annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) then moves a task, or some that hang together,
to another device or to another place in the order, mostly tasks of the critical path. The result is never
longer than any of the beginnings. Equal graphs give equal results: the random numbers have a fixed seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from djinn_lab.scheduler.makespan.graph import Laid, TaskGraph, in_order
from djinn_lab.scheduler.makespan.heft import heft

LOOKS = 400_000
"""Tasks laid in all while searching: about half a second."""
STEPS = 5_000
"""Of one search, at most; then another one begins from the best so far."""
CLOSE = 1.0001
"""A schedule so near the lower bound is not improved any more."""
RANKINGS = 0.15
"""Share of the search for HEFT by other ranks; each lays every task on every device."""
WARM = 0.2
"""Share of the makespan by which a step may make it longer, at first in one of e times."""
COOLING = 0.02
"""What is left of that at the end."""
_SPREAD = 0.15


def lay(graph: TaskGraph, looks: int = LOOKS) -> Laid:
    """Return a schedule of the graph that is at most as long as HEFT's. ``looks``: how many tasks may be laid
    in the search; fewer take less time."""
    tasks, devices = len(graph.seconds), graph.devices
    alone = [in_order(graph, [device] * tasks, range(tasks)) for device in range(devices)]
    best = min([heft(graph), *alone], key=lambda laid: laid.makespan_s)
    if tasks < 2 or devices < 2:
        return best
    bound_s = max(graph.longest_way_s(), sum(map(min, graph.seconds)) / devices) * CLOSE
    rankings = int(RANKINGS * looks / (tasks * devices))
    best = min([best, *_by_other_ranks(graph, min(rankings, 100))], key=lambda laid: laid.makespan_s)
    steps = max(1, int((1 - RANKINGS) * looks) // tasks)
    for number in range(max(1, steps // STEPS)):
        if best.makespan_s <= bound_s:
            break
        found = _Annealing(graph, best, random.Random(number)).run(min(steps, STEPS), bound_s)
        best = min(best, found, key=lambda laid: laid.makespan_s)
    return best


def _by_other_ranks(graph: TaskGraph, count: int) -> Iterator[Laid]:
    """Lay tasks by ranks that are up to 15 % off, which keep every task before those that need it."""
    draw = random.Random(count)
    for _ in range(count):
        rank = [one * (1 + draw.uniform(-_SPREAD, _SPREAD)) for one in graph.upward_s]
        for task in reversed(range(len(rank))):
            rank[task] = max([rank[task], *(rank[other] * (1 + 1e-9) for other, _ in graph.after[task])])
        yield heft(graph, rank)


class _Annealing:
    """``order``: every task after what it needs; ``device``: of every task."""

    def __init__(self, graph: TaskGraph, begin: Laid, random: random.Random) -> None:
        self._graph, self._random = graph, random
        self._device = list(begin.device)
        self._order = begin.order()
        self._now = in_order(graph, self._device, self._order)
        self.best = min(begin, self._now, key=lambda laid: laid.makespan_s)

    def run(self, steps: int, bound_s: float) -> Laid:
        """Return the shortest that was found, after so many steps at most."""
        warm_s = WARM * self._now.makespan_s
        for step in range(steps):
            heat_s = warm_s * COOLING ** (step / steps)
            self._step(heat_s)
            if self.best.makespan_s <= bound_s:
                break
        return self.best

    def _step(self, heat_s: float) -> None:
        device, order = self._moved()
        laid = in_order(self._graph, device, order)
        longer_s = laid.makespan_s - self._now.makespan_s
        if longer_s <= 0 or self._random.random() < math.exp(-longer_s / max(heat_s, 1e-12)):
            self._device, self._order, self._now = device, order, laid
            if laid.makespan_s < self.best.makespan_s:
                self.best = laid

    def _moved(self) -> tuple[list[int], list[int]]:
        draw = self._random
        device, order = self._device, self._order
        task = self._critical() if draw.random() < 0.5 else draw.randrange(len(device))
        if draw.random() < 0.6:
            device = list(device)
            where = (device[task] + draw.randrange(1, self._graph.devices)) % self._graph.devices
            for one in self._around(task) if draw.random() < 0.3 else (task,):
                device[one] = where
        if draw.random() < 0.6:
            order = self._shifted(order, task)
        return device, order

    def _around(self, task: int) -> set[int]:
        """Return a task and some that hang together with it."""
        found, todo = {task}, [task]
        while todo:
            one = todo.pop()
            for other, _ in (*self._graph.before[one], *self._graph.after[one]):
                if other not in found and self._random.random() < 0.4:
                    found.add(other)
                    todo.append(other)
        return found

    def _shifted(self, order: Sequence[int], task: int) -> list[int]:
        """Return the order with a task at another place between what it needs and what needs it."""
        place = {one: index for index, one in enumerate(order)}
        here = place[task]
        low = 1 + max((place[one] for one, _ in self._graph.before[task]), default=-1)
        high = min((place[one] for one, _ in self._graph.after[task]), default=len(order)) - 1
        there = self._random.randint(low, high)
        found = list(order)
        found.insert(there, found.pop(here))
        return found

    def _critical(self) -> int:
        """Return a task that the makespan waits for: one of those on the way back from the last end."""
        graph, laid = self._graph, self._now
        ends = [start + graph.seconds[t][laid.device[t]] for t, start in enumerate(laid.start_s)]
        task = max(range(len(ends)), key=ends.__getitem__)
        for _ in range(self._random.randrange(len(ends))):
            start_s = laid.start_s[task]
            holding = [one for one, _ in graph.before[task] if ends[one] >= start_s - 1e-12]
            holding += [one for one, s in graph.before[task] if s and abs(ends[one] + s - start_s) < 1e-12]
            if not holding:
                same = laid.device[task]
                holding = [t for t, end in enumerate(ends) if laid.device[t] == same and end == start_s]
            if not holding:
                break
            task = self._random.choice(holding)
        return task
