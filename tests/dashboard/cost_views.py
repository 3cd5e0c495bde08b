"""Answers of ``/v1/costs``, made by hand."""

from __future__ import annotations

from djinn_lab.jobs.cost_drift import FamilyDrift
from djinn_lab.protocol.rest.costs import ComparedRun, CostChange, CostView, DeviceCosts, UnpricedOp
from djinn_lab.srg.curves import Curve, DeviceCurves

KIND = "EPYC/1/2.13"
CURVES = DeviceCurves(
    op_s=1e-6,
    families={
        "matmul/float32": (Curve(1.0, (1e4, 1e6), (1e-5, 1e-4)), Curve(256.0, (1e6, 1e9), (1e-4, 2e-2))),
        "matmul/bfloat16": (Curve(256.0, (1e6,), (5e-5,)),),
        "copy/float32": (Curve(1.0, (1e3, 1e8), (1e-6, 1e-2)),),
        "pointwise/float32": (Curve(1.0, (1e3,), (1e-6,)),),
        "softmax/float32": (Curve(1.0, (3e4,), (1e-5,)),),
    },
)


def device(name: str, kind: str = KIND, link_bytes_per_s: float | None = 1e9) -> DeviceCosts:
    families = (
        FamilyDrift("matmul", 12, 1.4, 1.3, 1.5, 1.38, 0.05, 0.2),
        FamilyDrift("softmax", 9, 1.0, 0.9, 1.1, 1.0, 0.1, 0.6),
    )
    return DeviceCosts(
        name,
        measured=True,
        flops_per_s=3.6e10,
        memory_bytes_per_s=1e10,
        op_s=1e-6,
        measurements=2,
        families=families,
        kind=kind,
        measured_at=100.0,
        link_bytes_per_s=link_bytes_per_s,
    )


def run(number: int, measured_s: float, program: str = "aa", source: str = "runs") -> ComparedRun:
    return ComparedRun(1000.0 + number, f"{number:032x}", "cpu:0", program, source, 0.1, measured_s)  # type: ignore[arg-type]


def costs() -> CostView:
    """Two devices that share curves, six runs of two programs, a drift and a correction."""
    runs = [run(number, 0.1 * ratio) for number, ratio in enumerate((1.0, 1.1, 0.9, 1.3))]
    runs += [run(4, 0.5, "bb", "graph"), run(5, 0.11, "bb")]
    changes = (
        CostChange(100.0, KIND, "measured", "measured"),
        CostChange(200.0, KIND, "corrected", "matmul: predictions count 1.38 times the curve, before 1.00"),
    )
    return CostView(
        devices=(device("cpu:0"), device("cpu:1")),
        runs_spread=1.2,
        graph_spread=3.0,
        unpriced=(UnpricedOp("special_bessel_j0", 2), UnpricedOp("histc", 1)),
        changes=changes,
        runs=tuple(runs),
        curves={KIND: CURVES},
    )
