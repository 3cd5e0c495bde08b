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
        self.link_bytes_per_s = 0.0
        """What the link lately passed on, compressed as it was; 0 until known."""
        self._link_since: tuple[float, int] | None = None

    def begin(self, total: int, here: int = 0) -> None:
        """An upload of ``total`` bytes begins, of which ``here`` have arrived before."""
        self._total, self._sent, self.arrived = total, here, here
        self._lately.clear()
        self._lately.append((perf_counter(), here))
        self._link_since = None

    def add(self, nbytes: int, on_link: int) -> None:
        """So many bytes more have left, as fewer ones ``on_link`` where they were compressed."""
        now_s = perf_counter()
        self._measure_link(now_s, on_link)
        self._sent += nbytes
        self._lately.append((now_s, self._sent))
        while self._lately[0][0] < now_s - RATE_OVER_S and len(self._lately) > 2:
            self._lately.popleft()

    def _measure_link(self, now_s: float, on_link: int) -> None:
        """Measure over stretches of half a second; the first bytes only fill buffers on the way."""
        since_s, sent = self._link_since or (now_s, -on_link)
        sent += on_link
        if now_s - since_s >= RATE_AFTER_S:
            self.link_bytes_per_s = sent / (now_s - since_s)
            since_s, sent = now_s, 0
        self._link_since = (since_s, sent)

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
