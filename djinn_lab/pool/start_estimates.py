"""How far the pool's estimates of starts are off: every estimate that was told is compared with what came."""

from __future__ import annotations

from collections import deque
from statistics import median

import msgspec

SAMPLES_MAX = 500
SAMPLES_MIN = 5
"""With fewer, no estimate is shown."""


class EstimateError(msgspec.Struct, frozen=True):
    """Of the latest ``count`` estimates that came to be checked: half of them were off by less than
    ``median_s``, nine of ten by less than ``p90_s``."""

    count: int
    median_s: float
    p90_s: float


class StartEstimates:
    """The first estimate that is made of each wait counts."""

    def __init__(self) -> None:
        self._open: dict[str, float] = {}
        self._errors_s: deque[float] = deque(maxlen=SAMPLES_MAX)

    def estimated(self, job: str, starts_at_s: float) -> None:
        self._open.setdefault(job, starts_at_s)

    def started(self, job: str, at_s: float) -> None:
        expected_s = self._open.pop(job, None)
        if expected_s is not None:
            self._errors_s.append(abs(at_s - expected_s))

    def left(self, job: str) -> None:
        """It ended without starting."""
        self._open.pop(job, None)

    @property
    def error(self) -> EstimateError | None:
        """None until enough estimates could be checked."""
        if len(self._errors_s) < SAMPLES_MIN:
            return None
        ordered = sorted(self._errors_s)
        return EstimateError(len(ordered), median(ordered), ordered[int(0.9 * (len(ordered) - 1))])
