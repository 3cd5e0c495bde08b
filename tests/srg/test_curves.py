"""What a device's curves price calls at."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.srg.curves import Curve, DeviceCurves, fit
from djinn_lab.srg.families import UNKNOWN, VIEW, FamilyWork
from djinn_lab.srg.family_table import FAMILY_OF

works = st.floats(1.0, 1e12)
times = st.floats(1e-8, 1e3)


@st.composite
def curves(draw: st.DrawFn, lane: float = 1.0) -> Curve:
    points = sorted(draw(st.sets(works, min_size=1, max_size=6)))
    seconds = sorted(draw(st.lists(times, min_size=len(points), max_size=len(points))))
    return Curve(lane, tuple(points), tuple(seconds))


@st.composite
def devices(draw: st.DrawFn) -> DeviceCurves:
    lanes = sorted(draw(st.sets(st.floats(1.0, 1e4), min_size=1, max_size=4)))
    families = {
        "matmul/float32": tuple(draw(curves(lane)) for lane in lanes),
        "pointwise/float32": (draw(curves()),),
    }
    return DeviceCurves(draw(times), families, {"matmul": draw(times)})


@given(curves())
def test_a_curve_hits_its_probes(curve: Curve) -> None:
    for work, seconds in zip(curve.work, curve.seconds, strict=True):
        assert curve.at(work) == pytest.approx(seconds, rel=1e-9)


@given(devices(), works, works, st.floats(1.0, 1e5), st.sampled_from(("matmul", "pointwise", "sort", VIEW)))
def test_more_work_never_costs_less(
    device: DeviceCurves, one: float, other: float, lane: float, family: str
) -> None:
    less, more = (device.seconds(FamilyWork(family, "float32", work, lane)) for work in sorted((one, other)))
    assert 0 < less <= more * (1 + 1e-9)
    assert math.isfinite(more)


@given(devices(), works, st.floats(1.0, 1e5))
def test_a_first_call_costs_no_less_and_a_factor_scales_it(
    device: DeviceCurves, work: float, lane: float
) -> None:
    charge = FamilyWork("matmul", "float32", work, lane)
    first = msgspec.structs.replace(charge, first=True)
    assert device.seconds(first) >= device.seconds(charge)
    doubled = device.corrected({"matmul": 2.0})
    assert doubled.seconds(first) == pytest.approx(2 * device.seconds(first))
    assert doubled.seconds(FamilyWork("pointwise", "float32", work)) == device.seconds(
        FamilyWork("pointwise", "float32", work)
    )


@given(st.dictionaries(st.tuples(st.sampled_from((1.0, 8.0)), works), times, min_size=1))
def test_fitted_curves_are_sound_whatever_the_noise(samples: dict[tuple[float, float], float]) -> None:
    fitted = fit({FamilyWork("copy", "float32", work, lane): s for (lane, work), s in samples.items()})
    slowest = max(samples.values())
    for curve in fitted["copy/float32"]:
        assert max(curve.seconds) <= slowest
        assert list(curve.seconds) == sorted(curve.seconds)


@pytest.mark.parametrize(
    ("work", "seconds"),
    [((), ()), ((1.0,), (0.0,)), ((2.0, 1.0), (1.0, 2.0)), ((1.0, 2.0), (2.0, 1.0)), ((1.0,), (math.nan,))],
)
def test_impossible_curves_are_refused(work: tuple[float, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="curve"):
        Curve(1.0, work, seconds)
    with pytest.raises(msgspec.MsgspecError):
        msgspec.msgpack.decode(msgspec.msgpack.encode([1.0, work, seconds]), type=Curve)


def test_a_device_without_a_curve_for_pointwise_ops_is_refused() -> None:
    with pytest.raises(ValueError, match="pointwise"):
        DeviceCurves(1e-6, {})


def test_a_skinny_product_on_made_up_curves_is_bound_by_its_bytes() -> None:
    """A token's step reads every weight once: a product with one row takes as long as its weights."""
    device = DeviceCurves.of_rates(flops_per_s=1e13, memory_bytes_per_s=1e12, op_s=1e-6)
    weights = 4096 * 4096
    step_s = device.seconds(FamilyWork("matmul", "float32", 2.0 * weights, 1.0))
    assert step_s == pytest.approx(4 * weights / 1e12, rel=0.1)
    assert device.bound(FamilyWork("matmul", "float32", 2.0 * weights, 1.0)) == "memory"
    batch_s = device.seconds(FamilyWork("matmul", "float32", 2.0 * weights * 1024, 1024.0))
    assert batch_s == pytest.approx(2 * weights * 1024 / 1e13, rel=0.1)
    assert device.bound(FamilyWork("matmul", "float32", 2.0 * weights * 1024, 1024.0)) == "compute"


def test_families_are_known_by_the_curves_of_rates() -> None:
    """Otherwise elements of such a family would be priced as bytes."""
    made = DeviceCurves.of_rates(1e9, 1e9, 1e-6)
    assert UNKNOWN not in FAMILY_OF.values()
    assert made.find("gelu", "bfloat16") == made.find("gelu", "float32") is not None
