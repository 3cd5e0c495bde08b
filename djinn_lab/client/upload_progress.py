"""How far uploads are, at which rate, and for how long they will take yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter

RATE_OVER_S = 5.0
"""The rate is that of the last seconds."""
RATE_AFTER_S = 0.5
"""Less says nothing: the first bytes only fill buffers."""


@dataclass(frozen=True)
class UploadState:
    """``bytes_per_s``: of the last seconds, 0 where unknown. ``left_s``: None where unknown."""

    sent: int
    total: int
    bytes_per_s: float
    left_s: float | None


class UploadProgress:
    """Of one session: the upload under way, or the last one."""

    def __init__(self) -> None:
        self.arrived = 0
        """Bytes of the upload that the pool had when this attempt at it began."""
        self._total = 0
        self._sent = 0
        self._lately: deque[tuple[float, int]] = deque()

    def begin(self, total: int, here: int = 0) -> None:
        """An upload of ``total`` bytes begins, of which ``here`` have arrived before."""
        self._total, self._sent, self.arrived = total, here, here
        self._lately.clear()
        self._lately.append((perf_counter(), here))

    def add(self, nbytes: int) -> None:
        """So many bytes more have left."""
        now_s = perf_counter()
        self._sent += nbytes
        self._lately.append((now_s, self._sent))
        while self._lately[0][0] < now_s - RATE_OVER_S and len(self._lately) > 2:
            self._lately.popleft()

    def end(self) -> None:
        self._total = 0

    @property
    def state(self) -> UploadState | None:
        """Return how far the upload under way is, None without one."""
        if not self._total:
            return None
        first_s, first = self._lately[0]
        took_s = perf_counter() - first_s
        rate = (self._sent - first) / took_s if took_s >= RATE_AFTER_S else 0.0
        left_s = (self._total - self._sent) / rate if rate else None
        return UploadState(self._sent, self._total, rate, left_s)
