"""Simulated time, and links between memories: one lane a direction; transfers for which a segment waits
overtake the others."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

Happen = Callable[[], None]


class SimulatedClock:
    """Order what is due by time; what is due at one moment happens in the order in which it was set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Happen]] = []
        self._numbers = count()

    @property
    def next_s(self) -> float:
        """Return when the next thing happens; infinite where nothing is left."""
        return self._due[0][0] if self._due else math.inf

    def at(self, when_s: float, happen: Happen) -> None:
        heapq.heappush(self._due, (max(when_s, self.now_s), next(self._numbers), happen))

    def after(self, seconds: float, happen: Happen) -> None:
        self.at(self.now_s + seconds, happen)

    def step(self) -> None:
        """Advance to the next moment at which something is due, and let it happen."""
        self.now_s, _, happen = heapq.heappop(self._due)
        happen()


@dataclass(slots=True)
class SimulatedCopy:
    """A copy on a lane; ``left_s``: seconds of copying still to do, were it alone."""

    number: int
    left_s: float
    finish: Callable[[float, float], None]
    asked_s: float
    took_s: float = 0.0
    expedited: bool = False


class SimulatedLane:
    """Serve one copy at a time; an expedited copy interrupts the others, which resume later."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._queues: dict[bool, deque[SimulatedCopy]] = {True: deque(), False: deque()}
        self._serving: SimulatedCopy | None = None
        self._since_s = 0.0
        self._turn = 0

    def add(self, copy: SimulatedCopy) -> None:
        self._queues[copy.expedited].append(copy)
        self._choose()

    def expedite(self, number: int) -> None:
        for copy in list(self._queues[False]):
            if copy.number == number:
                self._queues[False].remove(copy)
                copy.expedited = True
                self._queues[True].append(copy)
        if self._serving is not None and self._serving.number == number:
            self._serving.expedited = True
        self._choose()

    def remove(self, number: int) -> None:
        """Drop the copy with this number, whether it is pending or under way."""
        for queue in self._queues.values():
            for copy in [copy for copy in queue if copy.number == number]:
                queue.remove(copy)
        if self._serving is not None and self._serving.number == number:
            self._serving = None
            self._turn += 1
            self._choose()

    def _choose(self) -> None:
        serving = self._serving
        if serving is not None:
            if serving.expedited or not self._queues[True]:
                return
            self._pause(serving)
        queue = self._queues[True] or self._queues[False]
        if not queue:
            self._serving = None
            return
        self._serving = copy = queue.popleft()
        self._since_s = self._clock.now_s
        self._turn += 1
        turn = self._turn
        self._clock.after(copy.left_s, lambda: self._finish(copy, turn))

    def _pause(self, copy: SimulatedCopy) -> None:
        passed_s = self._clock.now_s - self._since_s
        copy.left_s = max(0.0, copy.left_s - passed_s)
        copy.took_s += passed_s
        self._queues[False].appendleft(copy)
        self._serving = None

    def _finish(self, copy: SimulatedCopy, turn: int) -> None:
        if turn != self._turn or self._serving is not copy:
            return
        copy.took_s += copy.left_s
        self._serving = None
        queued_s = self._clock.now_s - copy.asked_s - copy.took_s
        copy.finish(copy.took_s, max(0.0, queued_s))
        self._choose()
