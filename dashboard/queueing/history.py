"""What was seen of the queue while a page was open: use by account, and how even the use was."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from djinn_lab.jobs.fairness import jain
from djinn_lab.protocol.rest.queue import QueueView

SAMPLES_MAX = 900
RECENT_S = 60.0
"""Use is looked at over so long; a shorter time says more about cells than about people."""
RECENT_S_MIN = 5.0
"""At least over so long: in less, one cell is all that there is to see."""


class QueueSample(NamedTuple):
    """``device_s``: by account, since the pool's usage ledger began. ``at``: seconds since the epoch."""

    at: float
    waiting: int
    device_s: dict[str, float]


class RecentUse(NamedTuple):
    """``devices``: by account, device-seconds over seconds in the :data:`RECENT_S` before ``at``. ``jain``:
    over the accounts with any use, None with less than two."""

    at: float
    waiting: int
    devices: dict[str, float]
    jain: float | None


class QueueHistory:
    """Samples of one pool's queue; another pool begins a new history."""

    def __init__(self) -> None:
        self._pool = ""
        self._samples: deque[QueueSample] = deque(maxlen=SAMPLES_MAX)

    def note(self, pool: str, queue: QueueView) -> None:
        if pool != self._pool:
            self._pool = pool
            self._samples.clear()
        if self._samples and queue.now <= self._samples[-1].at:
            return
        self._samples.append(QueueSample(queue.now, queue.waiting_count, queue.device_s()))

    def recent(self) -> list[RecentUse]:
        """Return, for every sample, the use in the time before it."""
        found: list[RecentUse] = []
        samples = list(self._samples)
        first = 0
        for sample in samples:
            while samples[first].at < sample.at - RECENT_S:
                first += 1
            before = samples[first]
            seconds = sample.at - before.at
            if seconds < RECENT_S_MIN:
                continue
            devices = {
                account: (used - before.device_s.get(account, 0.0)) / seconds
                for account, used in sample.device_s.items()
            }
            busy = [value for value in devices.values() if value > 0]
            found.append(RecentUse(sample.at, sample.waiting, devices, jain(busy) if len(busy) > 1 else None))
        return found
