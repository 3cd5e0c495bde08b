"""Seconds of a family's calls over their work, as measured on one device, and what a call is priced from
them.

Between two probes a price is interpolated linearly, as a fixed cost plus a rate is linear. Above the last it
grows at the last rate, below the first it is the first: what a call costs besides its work. Between two lanes
it is interpolated in the logarithms of lane and seconds.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, isfinite, log
from typing import Literal

import msgspec
from msgspec.structs import replace

from djinn_lab.srg.families import COMPUTE, UNIT_BYTES, VIEW, FamilyWork

FALLBACK = "pointwise"
"""Family that prices unknown ops, and those that were not measured on a device."""
DTYPE = "float32"
WORK_MAX = 1e15
LANES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
SIDE_BYTES = 2.0
"""Of curves made up from rates. A product of float32 reads 2 bytes for a FLOP, divided by its shorter
side."""


Bound = Literal["compute", "memory", "overhead"]


class Curve(msgspec.Struct, frozen=True, array_like=True):
    """``work`` increases; ``seconds`` never decrease with it."""

    lane: float
    work: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        sound = (
            len(self.work) == len(self.seconds) > 0
            and all(isfinite(value) and value > 0 for value in (self.lane, *self.work, *self.seconds))
            and all(before < after for before, after in pairwise(self.work))
            and all(before <= after for before, after in pairwise(self.seconds))
        )
        if not sound:
            raise ValueError("a curve needs positive work that increases and seconds that do not decrease")

    def at(self, work: float) -> float:
        """Seconds of one call."""
        points = self.work
        if work <= points[0]:
            return self.seconds[0]
        if work >= points[-1]:
            return self.seconds[-1] * work / points[-1]
        after = bisect_right(points, work)
        low, high = self.seconds[after - 1], self.seconds[after]
        return low + (high - low) * (work - points[after - 1]) / (points[after] - points[after - 1])


class DeviceCurves(msgspec.Struct, frozen=True):
    """``families``: curves by family and dtype (``matmul/float32``), by increasing lane. ``op_s``: fixed cost
    of an op that does nothing."""

    op_s: float
    families: dict[str, tuple[Curve, ...]]
    first_s: dict[str, float] = {}

    def __post_init__(self) -> None:
        lanes = self.families.values()
        if not (isfinite(self.op_s) and self.op_s > 0) or self.find(FALLBACK, DTYPE) is None:
            raise ValueError("a device needs its fixed cost of an op and a curve for pointwise ops")
        if any(a.lane >= b.lane for curves in lanes for a, b in pairwise(curves)):
            raise ValueError("the curves of a family need increasing lanes")

    @classmethod
    def of_rates(cls, flops_per_s: float, memory_bytes_per_s: float, op_s: float) -> DeviceCurves:
        """Make curves up from three rates, for a device that is not measured."""
        if min(flops_per_s, memory_bytes_per_s, op_s) <= 0:
            raise ValueError("the rates of a device must be positive")
        products = tuple(
            _of_rate(min(flops_per_s, memory_bytes_per_s * lane / SIDE_BYTES), op_s, lane) for lane in LANES
        )
        families: dict[str, tuple[Curve, ...]] = {f"{family}/{DTYPE}": products for family in COMPUTE}
        for family, unit_bytes in UNIT_BYTES.items():
            families[f"{family}/{DTYPE}"] = (_of_rate(memory_bytes_per_s / unit_bytes, op_s),)
        return cls(op_s, families)

    def find(self, family: str, dtype: str) -> tuple[Curve, ...] | None:
        """Curves of a family, in float32 where it was not measured in this dtype."""
        return self.families.get(f"{family}/{dtype}") or self.families.get(f"{family}/{DTYPE}")

    def seconds(self, charge: FamilyWork) -> float:
        """Price a call."""
        seconds = self.op_s
        if charge.family != VIEW:
            curves = self.find(charge.family, charge.dtype) or self.families[f"{FALLBACK}/{DTYPE}"]
            seconds = _between(curves, charge.lane, charge.work / charge.calls) * charge.calls
        return seconds + self.first_s.get(charge.family, 0.0) if charge.first else seconds

    def each(self, charges: Sequence[FamilyWork]) -> list[float]:
        """Price many calls, equal ones once."""
        known = {charge: self.seconds(charge) for charge in set(charges)}
        return [known[charge] for charge in charges]

    def corrected(self, factors: Mapping[str, float]) -> DeviceCurves:
        """Return the curves with the seconds of families times a factor."""

        def scaled(name: str, curves: tuple[Curve, ...]) -> tuple[Curve, ...]:
            factor = factors.get(name.partition("/")[0], 1.0)
            return tuple(replace(one, seconds=tuple(factor * s for s in one.seconds)) for one in curves)

        families = {name: scaled(name, curves) for name, curves in self.families.items()}
        first_s = {family: seconds * factors.get(family, 1.0) for family, seconds in self.first_s.items()}
        return DeviceCurves(self.op_s * factors.get(VIEW, 1.0), families, first_s)

    def bound(self, charge: FamilyWork) -> Bound:
        """Say what most of a call's time goes to: its fixed cost, arithmetic or memory."""
        least = replace(charge, work=1.0, calls=1, first=False)
        if self.seconds(charge) < 2 * charge.calls * self.seconds(least):
            return "overhead"
        rate_s = charge.work / self.flops_per_s
        return "compute" if charge.family in COMPUTE and self.seconds(charge) < 2 * rate_s else "memory"

    @property
    def digest(self) -> bytes:
        """Equal for equal curves."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=16).digest()

    @property
    def flops_per_s(self) -> float:
        """Highest rate of float32 products that was measured."""
        return _best_rate(self.find("matmul", DTYPE) or ())

    @property
    def memory_bytes_per_s(self) -> float:
        """Highest rate of moved bytes at the largest copy that was measured."""
        curves = self.find("copy", DTYPE) or self.families[f"{FALLBACK}/{DTYPE}"]
        return curves[-1].work[-1] / curves[-1].seconds[-1]


def _of_rate(rate: float, op_s: float, lane: float = 1.0) -> Curve:
    return Curve(lane, (1.0, WORK_MAX), (op_s + 1 / rate, op_s + WORK_MAX / rate))


def _best_rate(curves: Iterable[Curve]) -> float:
    return max(
        (work / s for curve in curves for work, s in zip(curve.work, curve.seconds, strict=True)), default=0
    )


def _between(curves: tuple[Curve, ...], lane: float, work: float) -> float:
    if lane <= curves[0].lane or len(curves) == 1:
        return curves[0].at(work)
    if lane >= curves[-1].lane:
        return curves[-1].at(work)
    after = next(index for index, curve in enumerate(curves) if curve.lane > lane)
    low, high = curves[after - 1], curves[after]
    part = log(lane / low.lane) / log(high.lane / low.lane)
    return exp((1 - part) * log(low.at(work)) + part * log(high.at(work)))


def fit(samples: Mapping[FamilyWork, float]) -> dict[str, tuple[Curve, ...]]:
    """Make curves from measured seconds. Where more work took less time, noise is taken out by the maximum so
    far."""
    lanes: dict[str, dict[float, dict[float, float]]] = {}
    for charge, seconds in samples.items():
        found = lanes.setdefault(f"{charge.family}/{charge.dtype}", {}).setdefault(charge.lane, {})
        found[charge.work] = seconds
    return {
        name: tuple(_curve(lane, points) for lane, points in sorted(by_lane.items()))
        for name, by_lane in lanes.items()
    }


def _curve(lane: float, points: dict[float, float]) -> Curve:
    ordered = sorted(points.items())
    seconds, most = [], 0.0
    for _, value in ordered:
        most = max(most, value)
        seconds.append(most)
    return Curve(lane, tuple(work for work, _ in ordered), tuple(seconds))
