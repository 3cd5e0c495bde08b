"""``/v1/costs``: what run times are predicted from, and how predictions fare."""

from __future__ import annotations

import msgspec

from djinn_lab.jobs.cost_drift import FamilyDrift
from djinn_lab.jobs.run_times import Source
from djinn_lab.protocol.rest.status import PlanCacheUsage
from djinn_lab.srg.curves import DeviceCurves


class DeviceCosts(msgspec.Struct, frozen=True):
    """``measuring``: a measurement was asked for and is not done. ``op_s``: fixed cost of an op. ``drift``:
    ``watching``, ``asked`` (for a new measurement, because runs were off) or ``settling`` after one.
    ``measurements``: in this life of the pool, the last one at ``measured_at`` (None: by an earlier pool, or
    not yet). ``families``: measured over predicted in sampled runs. ``kind``: equal for devices that share
    curves. ``link_bytes_per_s``: to the host, None for unknown."""

    device: str
    measured: bool = False
    measuring: bool = False
    flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    op_s: float | None = None
    drift: str = "watching"
    measurements: int = 0
    families: tuple[FamilyDrift, ...] = ()
    kind: str = ""
    measured_at: float | None = None
    link_bytes_per_s: float | None = None


class ComparedRun(msgspec.Struct, frozen=True):
    """A segment's run beside its prediction. ``program``: equal for equal programs on as many devices,
    empty for one without a name. ``source``: earlier ``runs`` of the program there, or its ``graph``."""

    at: float
    job: str
    device: str
    program: str
    source: Source
    predicted_s: float
    measured_s: float

    @property
    def ratio(self) -> float:
        """Return measured over predicted."""
        return self.measured_s / self.predicted_s

    @property
    def error(self) -> float:
        """Return how far the run was from its prediction, as a share of the prediction."""
        return abs(self.ratio - 1)


class CostChange(msgspec.Struct, frozen=True):
    """What changed for devices of a kind: ``what`` is ``measured``, ``drifted`` (a new measurement is wanted)
    or ``corrected`` (a family's factor)."""

    at: float
    kind: str
    what: str
    detail: str


class UnpricedOp(msgspec.Struct, frozen=True):
    """An op of no family, priced by its bytes. ``runs``: that were predicted with it."""

    op: str
    runs: int


class EstimatorView(msgspec.Struct, frozen=True):
    """The cost estimator of an installed package. ``asked``: how often, in this life of the pool. The answers
    are ``predicted`` seconds, ``refused`` (it raised, or what it returned is no time), or that it does not
    know. ``last_refusal``: why. ``mean_s``: its own time for an answer."""

    name: str
    package: str
    asked: int = 0
    predicted: int = 0
    refused: int = 0
    last_refusal: str = ""
    mean_s: float | None = None


class CostView(msgspec.Struct, frozen=True):
    """``runs_spread``, ``graph_spread``: within so many times the prediction nine of ten runs ended, by what
    they were predicted from. ``estimator``: None for the built-in cost model alone. ``changes`` and ``runs``:
    the newest, oldest first, in this life of the pool. Only where details are asked for: ``runs``, and
    ``curves`` as measured, by kind of device. ``plan_cache``: how
    often graphs were known."""

    devices: tuple[DeviceCosts, ...] = ()
    runs_spread: float = 1.0
    graph_spread: float = 1.0
    estimator: EstimatorView | None = None
    unpriced: tuple[UnpricedOp, ...] = ()
    changes: tuple[CostChange, ...] = ()
    runs: tuple[ComparedRun, ...] = ()
    curves: dict[str, DeviceCurves] = {}
    plan_cache: PlanCacheUsage = PlanCacheUsage()
