"""What the scheduler knows about a device, and how long a node takes there: as its curves say."""

from __future__ import annotations

import math
from typing import Protocol, get_args

import msgspec

from djinn_lab.errors import OptionError
from djinn_lab.srg.curves import Bound, DeviceCurves
from djinn_lab.srg.families import FamilyWork
from djinn_lab.srg.graph import Node
from djinn_lab.srg.program_costs import NotSeconds, checked_seconds
from djinn_lab.units import format_bytes

GIB = 2**30
_DEFAULT_RATES = {"cpu": (5e10, 1e10, 3e-6), "cuda": (2e13, 1e12, 5e-6)}
_DEFAULT_MEMORY_BYTES = {"cpu": 4 * GIB, "cuda": 16 * GIB}


class DeviceProfile(msgspec.Struct, frozen=True):
    """Speed and memory of one device.

    ``memory_bytes``: the limit. ``used_bytes``: what others hold (other sessions, or values of this
    session that the graph does not mention). ``transfer_bytes_per_s``: to and from the client; None: half
    the memory rate, as a copy reads and writes. ``measured``: whether the curves come from calibration.
    ``below_bytes``: of the host and the disk, for values that are offloaded; ``link_bytes_per_s``: to these,
    None: as to the client. ``watts``: that the device draws when busy, None for unknown.
    """

    device: str
    kind: str
    memory_bytes: int
    curves: DeviceCurves
    measured: bool = True
    used_bytes: int = 0
    transfer_bytes_per_s: float | None = None
    below_bytes: int = 0
    link_bytes_per_s: float | None = None
    watts: float | None = None

    def __repr__(self) -> str:
        """Leave out the curves, which are hundreds of numbers."""
        free = format_bytes(max(0, self.memory_bytes - self.used_bytes))
        speed = "measured" if self.measured else "not measured"
        return f"<DeviceProfile {self.device}: {free} of {format_bytes(self.memory_bytes)} free, {speed}>"

    def __post_init__(self) -> None:
        if min(self.memory_bytes, self.used_bytes) < 0:
            raise ValueError(f"the memory of device {self.device} must be positive")
        if self.watts is not None and not 0 <= self.watts < math.inf:
            raise ValueError(f"device {self.device} cannot draw {self.watts} W")

    @classmethod
    def default(
        cls, kind: str = "cpu", device: str | None = None, memory_bytes: int | None = None
    ) -> DeviceProfile:
        """Return cautious figures for a device that is not measured yet; ``measured`` is False. ``kind``:
        ``cpu`` or ``cuda``, else ValueError."""
        if kind not in _DEFAULT_RATES:
            raise ValueError(f"no default rates for a device of kind {kind!r}; known: cpu, cuda")
        return cls(
            device=device or f"{kind}:0",
            kind=kind,
            memory_bytes=_DEFAULT_MEMORY_BYTES[kind] if memory_bytes is None else memory_bytes,
            curves=DeviceCurves.of_rates(*_DEFAULT_RATES[kind]),
            measured=False,
        )

    def offload_s(self, nbytes: int) -> float:
        """Return the seconds to move bytes between the device and the tiers below it."""
        return nbytes / self.link_bytes_per_s if self.link_bytes_per_s else self.transfer_s(nbytes)

    def transfer_s(self, nbytes: int) -> float:
        """Return the seconds to move bytes between client and device."""
        return nbytes / (self.transfer_bytes_per_s or self.curves.memory_bytes_per_s / 2)


class NodeEstimate(msgspec.Struct, frozen=True):
    """The predicted time of a node. ``bound``: what most of the time goes to."""

    seconds: float
    bound: Bound


class CostEstimator(Protocol):
    """Predicts run times. The scheduler asks for every node on every candidate device."""

    def estimate(self, node: Node, device: DeviceProfile) -> NodeEstimate: ...


def check_estimator(estimator: CostEstimator) -> CostEstimator:
    """Return the estimator. Raises OptionError for an object without its method."""
    if not callable(getattr(estimator, "estimate", None)):
        raise OptionError(
            f"{estimator!r} is no cost estimator: it has no method estimate(node, device).",
            "Pass an object such as GraphCostEstimator(); docs/extending.md has an example.",
        )
    return estimator


class CheckedEstimates:
    """An estimator's times of nodes on one device."""

    def __init__(self, estimator: CostEstimator, device: DeviceProfile) -> None:
        self._estimator, self._device = estimator, device
        self._checked: dict[int, NodeEstimate] = {}
        """By identity: an estimator may return one object for many nodes."""

    def of(self, node: Node) -> NodeEstimate:
        """Ask for a node's time. Raises OptionError, which names estimator and node, for an estimator that
        raises, an answer that is no estimate, or one whose seconds are no finite number from 0 on."""
        try:
            found = self._estimator.estimate(node, self._device)
        except Exception as error:
            raise OptionError(
                f"The cost estimator {type(self._estimator).__name__} raised {type(error).__name__} for node "
                f"{node.id} ({node.op}) on {self._device.device}: {error}.",
                "Correct it, or schedule with GraphCostEstimator().",
            ) from error
        if id(found) not in self._checked:
            self._checked[id(found)] = self._check(node, found)
        return found

    def _check(self, node: Node, found: object) -> NodeEstimate:
        try:
            if not isinstance(found, NodeEstimate):
                raise NotSeconds(f"an object of type {type(found).__name__} instead of a NodeEstimate")
            checked_seconds(found.seconds)
            if found.bound not in get_args(Bound):
                raise NotSeconds(f"a time bound by {found.bound!r}, not by {', '.join(get_args(Bound))}")
        except NotSeconds as error:
            raise OptionError(
                f"The cost estimator {type(self._estimator).__name__} returned {error} for node {node.id} "
                f"({node.op}) on {self._device.device}.",
                "Correct it, or schedule with GraphCostEstimator().",
            ) from None
        return found


class GraphCostEstimator:
    """The device's curves over what the node charges."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[DeviceCurves, dict[FamilyWork, NodeEstimate]]] = {}
        """By the identity of the curves, which are kept with them."""

    def estimate(self, node: Node, device: DeviceProfile) -> NodeEstimate:
        curves, charge = device.curves, node.charge
        _, known = self._known.setdefault(id(curves), (curves, {}))
        found = known.get(charge)
        if found is None:
            found = known[charge] = NodeEstimate(curves.seconds(charge), curves.bound(charge))
        return found
