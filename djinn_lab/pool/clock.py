"""The one clock of a pool: seconds since the epoch that never step back."""

from __future__ import annotations

import time


class Clock:
    def __init__(self) -> None:
        self._offset_s = time.time() - time.perf_counter()

    def now_s(self) -> float:
        return self._offset_s + time.perf_counter()
