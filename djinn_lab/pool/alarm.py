"""Wakes a core at the moment when it has something to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DELAY_S_MIN = 0.002


class Alarm:
    """``now_s``: the pool's clock; ``ring`` is called once, at or shortly after the moment that was set."""

    def __init__(self, now_s: Callable[[], float], ring: Callable[[], None]) -> None:
        self._now_s = now_s
        self._ring = ring
        self._due_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due_s: float | None) -> None:
        """An earlier moment replaces the one that is set; a later one, or None, leaves it."""
        if due_s is None or (self._due_s is not None and self._due_s <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        delay_s = max(DELAY_S_MIN, due_s - self._now_s())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ended)

    def _ended(self) -> None:
        self._due_s = self._timer = None
        self._ring()
