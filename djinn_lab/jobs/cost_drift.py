"""Watch how a device's measured curves fare in real runs: correct families, and ask for a new measurement.

Sampled runs say what the nodes of each family took and what the curves said. A family whose ratio is steadily
off gets a factor; when whole runs are off, the device is to be measured again. Two thresholds keep this from
flapping: a factor changes only when it is off by :data:`FACTOR_STEP`, and after a measurement the next is
asked for only once runs were within :data:`SETTLED`, or after :data:`REARM_RUNS` runs.

::

    watching --drifted--> asked --measured--> settling --settled, or many runs--> watching
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from math import exp, isfinite, log
from statistics import median
from typing import Literal

import msgspec

SAMPLES_MAX = 64
FAMILY_SAMPLES_MIN = 8
RUN_SAMPLES_MIN = 16
FAMILY_S_MIN = 20e-6
"""A family that takes less in a run says nothing."""
FACTOR_MAX = 4.0
FACTOR_STEP = 1.1
DRIFTED = 1.6
SETTLED = 1.25
REARM_RUNS = 256
State = Literal["watching", "asked", "settling"]


class FamilySums(msgspec.Struct, frozen=True):
    """Seconds of all nodes of a family in one run."""

    predicted_s: float
    measured_s: float


class FamilyDrift(msgspec.Struct, frozen=True):
    """``ratio``: measured over predicted in the median of the last ``runs``; half of them were between
    ``low`` and ``high``. ``factor``: by which predictions are corrected. ``error``, ``error_p90``: how far
    such corrected predictions are from these runs, as a share of the prediction, in the median and at the
    ninetieth percentile."""

    family: str
    runs: int
    ratio: float
    low: float
    high: float
    factor: float
    error: float = 0.0
    error_p90: float = 0.0


class CostDrift:
    """The state of one kind of device. ``factors``: by family, learned by an earlier pool."""

    def __init__(self, factors: Mapping[str, float] | None = None) -> None:
        self.state: State = "watching"
        self.factors: dict[str, float] = dict(factors or {})
        self.measurements = 0
        self._families: dict[str, deque[float]] = {}
        self._runs: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._since_measured = 0

    def observed(self, sums: Mapping[str, FamilySums]) -> bool:
        """Take in one run, as uncorrected curves predicted it; return whether a factor changed. Raises
        ValueError for seconds that cannot be, with nothing changed."""
        times = [value for one in sums.values() for value in (one.predicted_s, one.measured_s)]
        if not all(isfinite(value) and value >= 0 for value in times):
            raise ValueError("seconds are finite, and not negative")
        for family, one in sums.items():
            if min(one.predicted_s, one.measured_s) >= FAMILY_S_MIN:
                logs = self._families.setdefault(family, deque(maxlen=SAMPLES_MAX))
                logs.append(log(one.measured_s / one.predicted_s))
        predicted_s = sum(one.predicted_s for one in sums.values())
        measured_s = sum(one.measured_s for one in sums.values())
        if min(predicted_s, measured_s) >= FAMILY_S_MIN:
            self._runs.append(log(measured_s / predicted_s))
            self._since_measured += 1
            self._judge()
        return self._correct(sums)

    def _judge(self) -> None:
        off = self._off
        if self.state == "settling" and (
            (off is not None and off < log(SETTLED)) or self._since_measured >= REARM_RUNS
        ):
            self.state = "watching"
        if self.state == "watching" and off is not None and off > log(DRIFTED):
            self.state = "asked"

    @property
    def _off(self) -> float | None:
        """How far runs are off in the median, as a logarithm; None while too few are known."""
        return abs(median(self._runs)) if len(self._runs) >= RUN_SAMPLES_MIN else None

    def _correct(self, families: Iterable[str]) -> bool:
        changed = False
        for family in families:
            logs = self._families.get(family, ())
            if len(logs) < FAMILY_SAMPLES_MIN:
                continue
            factor = min(FACTOR_MAX, max(1 / FACTOR_MAX, exp(median(logs))))
            if abs(log(factor / self.factors.get(family, 1.0))) > log(FACTOR_STEP):
                self.factors[family] = factor
                changed = True
        return changed

    @property
    def wants_measurement(self) -> bool:
        return self.state == "asked"

    def measured(self) -> None:
        """The device was measured again: its curves are new, and nothing is known of them."""
        self.state = "settling" if self.measurements or self._runs else "watching"
        self.measurements += 1
        self._since_measured = 0
        self.factors.clear()
        self._families.clear()
        self._runs.clear()

    def families(self) -> tuple[FamilyDrift, ...]:
        """Return what is known, by family."""
        return tuple(self._drift(family, logs) for family, logs in sorted(self._families.items()))

    def _drift(self, family: str, logs: deque[float]) -> FamilyDrift:
        ordered = sorted(logs)
        last = len(ordered) - 1
        low, middle, high = (exp(ordered[round(part * last)]) for part in (0.25, 0.5, 0.75))
        factor = self.factors.get(family, 1.0)
        errors = sorted(abs(exp(one) / factor - 1) for one in logs)
        typical, large = (errors[round(part * last)] for part in (0.5, 0.9))
        return FamilyDrift(family, len(logs), middle, low, high, factor, typical, large)
