"""Find cells that run much longer than predicted: something may be wrong with them.

Every run is compared with its forecast. A running cell is unusual when it has run for a larger multiple of
its forecast than nearly all cells did in the end. It is not stopped; the queue, ``why`` and the pages say
so."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from djinn_lab.jobs import Job, JobState
from djinn_lab.units import format_seconds

SAMPLES_MAX = 1000
SAMPLES_MIN = 50
"""With fewer, nothing is called unusual."""
USUAL_PART = 0.99
RATIO_MIN = 2.0
RAN_S_MIN = 2.0
"""Below this a forecast says little."""


class OverrunDetector:
    """``ratios``: of run times to forecasts in an earlier pool, oldest first."""

    def __init__(self, ratios: Iterable[float] = ()) -> None:
        self._ratios = deque(ratios, SAMPLES_MAX)
        self._compared = False
        self._usual: float | None = None
        """None: to be looked for again."""

    def ended(self, predicted_s: float | None, run_s: float) -> None:
        if predicted_s:
            self._ratios.append(run_s / predicted_s)
            self._usual = None
            self._compared = True

    def take_changes(self) -> tuple[float, ...] | None:
        """Return all remembered ratios, oldest first; None if no run was compared since the last call."""
        compared, self._compared = self._compared, False
        return tuple(self._ratios) if compared else None

    @property
    def usual(self) -> float | None:
        """Nearly all cells end within this multiple of their forecast, at least :data:`RATIO_MIN`; None while
        too few have been compared."""
        if len(self._ratios) < SAMPLES_MIN:
            return None
        if self._usual is None:
            ordered = sorted(self._ratios)
            self._usual = max(RATIO_MIN, ordered[int(USUAL_PART * (len(ordered) - 1))])
        return self._usual

    def sentence(self, job: Job, now_s: float) -> str:
        """Say what is unusual about a running cell, ``""`` when nothing is."""
        if job.state is not JobState.RUNNING or not job.predicted_s or job.running_since_s is None:
            return ""
        ran_s = now_s - job.running_since_s
        if ran_s < max(RAN_S_MIN, RATIO_MIN * job.predicted_s):
            return ""
        usual = self.usual
        if usual is None or ran_s <= usual * job.predicted_s:
            return ""
        return (
            f"Unusually long: {format_seconds(ran_s)} so far where {format_seconds(job.predicted_s)} were "
            f"predicted; of the last {len(self._ratios)}, 99 % ended within {usual:.1f} times their forecast."
        )
