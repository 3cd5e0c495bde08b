"""Times that the page History shows, and what the pool said of them lately."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.hub import JOBS_MAX, Snapshot
from djinn_lab.protocol.rest.history import PoolHistory

DAY_S = 86_400.0


class HistoryRange(NamedTuple):
    """A time up to now, in buckets. ``words``, ``step``: for sentences."""

    name: str
    label: str
    words: str
    step: str
    seconds: float
    bucket_s: float

    @property
    def refresh_s(self) -> float:
        """Return the seconds after which it is read again."""
        return min(60.0, max(5.0, self.bucket_s / 12))

    def since(self, now: float) -> float:
        """Return when the first bucket begins, so that buckets stay where they are from one read to the
        next."""
        return (now - self.seconds) // self.bucket_s * self.bucket_s


RANGES = {
    one.name: one
    for one in (
        HistoryRange("hour", "Last hour", "the last hour", "a minute", 3600.0, 60.0),
        HistoryRange("day", "Last day", "the last day", "15 minutes", DAY_S, 900.0),
        HistoryRange("week", "Last week", "the last week", "2 hours", 7 * DAY_S, 7200.0),
        HistoryRange("month", "Last month", "the last 30 days", "8 hours", 30 * DAY_S, 4 * 7200.0),
    )
}
RANGE_DEFAULT = "day"


def suited_range(snapshot: Snapshot) -> str:
    """Return the range that is shown unless a visitor chooses: the last hour while the pool knows no older
    cell, since most of a day would be empty."""
    if snapshot.status is None or len(snapshot.jobs) >= JOBS_MAX:
        return RANGE_DEFAULT
    hour = RANGES["hour"]
    begins = snapshot.status.now - hour.seconds
    return hour.name if all(job.submitted_at > begins for job in snapshot.jobs) else RANGE_DEFAULT


class HistoryCache:
    """Keep the newest answers of the pool, for all pages of one user. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, float, PoolHistory]] = {}

    def read(self, reader: PoolClient, chosen: HistoryRange, pool: str, now: float) -> PoolHistory:
        """Return what ``pool`` said of a range, at most ``refresh_s`` old. ``now``: by the pool's clock."""
        with self._lock:
            known_pool, read_at, history = self._known.get(chosen.name, ("", 0.0, None))
            if history is not None and known_pool == pool and time.monotonic() - read_at < chosen.refresh_s:
                return history
        history = reader.history(chosen.since(now), bucket_s=chosen.bucket_s)
        with self._lock:
            self._known[chosen.name] = pool, time.monotonic(), history
        return history
