"""``/v1/costs``: what run times are predicted from, and how predictions fare."""

from __future__ import annotations

import msgspec

from djinn_lab.jobs.cost_drift import FamilyDrift


class DeviceCosts(msgspec.Struct, frozen=True):
    """``measuring``: a measurement was asked for and is not done. ``op_s``: fixed cost of an op. ``drift``:
    ``watching``, ``asked`` (for a new measurement, because runs were off) or ``settling`` after one.
    ``measurements``: in this life of the pool. ``families``: measured over predicted in sampled runs."""

    device: str
    measured: bool = False
    measuring: bool = False
    flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    op_s: float | None = None
    drift: str = "watching"
    measurements: int = 0
    families: tuple[FamilyDrift, ...] = ()


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
    they were predicted from. ``estimator``: None for the built-in cost model alone."""

    devices: tuple[DeviceCosts, ...] = ()
    runs_spread: float = 1.0
    graph_spread: float = 1.0
    estimator: EstimatorView | None = None
