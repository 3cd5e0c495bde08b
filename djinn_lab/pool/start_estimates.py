"""How far the pool's estimates of starts are off: every estimate that was told is compared with what came."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
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
    """The first estimate that is made of a wait is the one that is checked; the latest is told. ``errors_s``:
    by how much those of an earlier pool were off, oldest first."""

    def __init__(self, errors_s: Iterable[float] = ()) -> None:
        self._first: dict[str, float] = {}
        self._latest: dict[str, float] = {}
        self._errors_s = deque(errors_s, SAMPLES_MAX)
        self._checked = False

    def estimated(self, starts_at_s: Mapping[str, float]) -> None:
        """All that are expected to start, anew."""
        self._latest = dict(starts_at_s)
        for job, at_s in starts_at_s.items():
            self._first.setdefault(job, at_s)

    def started(self, job: str, at_s: float) -> None:
        expected_s = self._first.pop(job, None)
        self._latest.pop(job, None)
        if expected_s is not None:
            self._errors_s.append(abs(at_s - expected_s))
            self._checked = True

    def left(self, job: str) -> None:
        """It ended without starting."""
        self._first.pop(job, None)
        self._latest.pop(job, None)

    def news(self) -> tuple[float, ...] | None:
        """By how much all that are remembered were off, oldest first; None if none was checked since the last
        call."""
        checked, self._checked = self._checked, False
        return tuple(self._errors_s) if checked else None

    def wait_s(self, job: str, now_s: float) -> float | None:
        """Until its expected start; None where that is unknown, or how far such estimates are off."""
        at_s = self._latest.get(job)
        return None if at_s is None or self.error is None else max(0.0, at_s - now_s)

    @property
    def error(self) -> EstimateError | None:
        """None until enough estimates could be checked."""
        if len(self._errors_s) < SAMPLES_MIN:
            return None
        ordered = sorted(self._errors_s)
        return EstimateError(len(ordered), median(ordered), ordered[int(0.9 * (len(ordered) - 1))])
