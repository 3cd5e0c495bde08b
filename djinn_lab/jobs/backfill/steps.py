"""How much is free from when on: a sorted list of steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Level = TypeVar("Level")


class Timeline(Generic[Level]):
    """``free[i]`` holds from ``times[i]`` until ``times[i + 1]``, the last one for ever."""

    __slots__ = ("free", "times")

    def __init__(self, free: Level, now_s: float) -> None:
        self.times = [now_s]
        self.free = [free]

    def change(self, start_s: float, end_s: float, changed: Callable[[Level], Level]) -> None:
        """Apply ``changed`` to the levels between the two moments (infinite: for ever)."""
        for number in range(self.cut(start_s), self.cut(end_s)):
            self.free[number] = changed(self.free[number])

    def cut(self, when_s: float) -> int:
        """Return the number of the step that begins then; split a step where none does."""
        if when_s == float("inf"):
            return len(self.times)
        number = bisect_right(self.times, when_s) - 1
        if self.times[number] != when_s:
            number += 1
            self.times.insert(number, when_s)
            self.free.insert(number, self.free[number - 1])
        return number


class Steps(Timeline[int]):
    """Free devices over time."""

    __slots__ = ()

    def __init__(self, free: int, returned: Iterable[tuple[float, int]], now_s: float) -> None:
        """``returned``: how many devices come back when, after ``now_s``."""
        super().__init__(free, now_s)
        for when_s, devices in sorted(returned):
            free += devices
            if when_s == self.times[-1]:
                self.free[-1] = free
            else:
                self.times.append(when_s)
                self.free.append(free)

    def earliest(self, devices: int, seconds: float, after_s: float) -> float | None:
        """Return the first moment at which so many devices are free for so long."""
        times, free = self.times, self.free
        step = max(0, bisect_right(times, after_s) - 1)
        start: float | None = None
        for number in range(step, len(times)):
            if free[number] < devices:
                start = None
            elif start is None:
                start = max(times[number], after_s)
            if start is not None and (number + 1 == len(times) or times[number + 1] >= start + seconds):
                return start
        return None

    def least(self, start_s: float, seconds: float) -> int:
        """Return how many devices are free throughout."""
        step = max(0, bisect_right(self.times, start_s) - 1)
        least = self.free[step]
        end_s = start_s + seconds
        for number in range(step + 1, len(self.times)):
            if self.times[number] >= end_s:
                break
            least = min(least, self.free[number])
        return least

    def take(self, devices: int, start_s: float, seconds: float) -> None:
        self.change(start_s, start_s + seconds, lambda free: free - devices)
