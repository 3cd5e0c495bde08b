"""Simulated time: what happens next, in a fixed order."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

Happen = Callable[[], None]


class SimulatedClock:
    """A heap of moments; equal ones in the order they were set."""

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
        """Let the next thing happen."""
        self.now_s, _, happen = heapq.heappop(self._due)
        happen()
