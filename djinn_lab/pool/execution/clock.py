"""The pool's clock, and a timer on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TIMER_DELAY_S_MIN = 0.002


class PoolClock:
    """Seconds since the epoch that never step back. One per pool."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.perf_counter()

    def now_s(self) -> float:
        return self._offset_s + time.perf_counter()


class Timer:
    """Wake a core when it has something to do: call ``ring`` once, at or shortly after the moment that was
    set. ``now_s``: the pool's clock."""

    def __init__(self, now_s: Callable[[], float], ring: Callable[[], None]) -> None:
        self._now_s = now_s
        self._ring = ring
        self._due_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due_s: float | None) -> None:
        """Move the timer to an earlier moment; ignore a later one, and None."""
        if due_s is None or (self._due_s is not None and self._due_s <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        delay_s = max(TIMER_DELAY_S_MIN, due_s - self._now_s())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ended)

    def _ended(self) -> None:
        self._due_s = self._timer = None
        self._ring()
