"""What the scheduler knows about a device, and how long a node takes there: the roofline model.

A node is limited either by arithmetic or by moving its bytes, by the slower of both
(:func:`djinn_lab.srg.costs.roofline_s`), plus the fixed cost of starting an op.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from djinn_lab.srg.costs import roofline_s
from djinn_lab.srg.graph import Node

GIB = 2**30
_DEFAULT_RATES = {"cpu": (5e10, 1e10, 3e-6), "cuda": (2e13, 1e12, 5e-6)}
_DEFAULT_MEMORY_BYTES = {"cpu": 4 * GIB, "cuda": 16 * GIB}


class DeviceProfile(msgspec.Struct, frozen=True):
    """Rates and memory of one device.

    ``memory_bytes``: the limit. ``used_bytes``: what others hold (other sessions, or values of this
    session that the graph does not mention). ``transfer_bytes_per_s``: to and from the client; None: half
    the memory rate, as a copy reads and writes. ``measured``: whether the rates come from calibration.
    """

    device: str
    kind: str
    memory_bytes: int
    flops_per_s: float
    memory_bytes_per_s: float
    op_overhead_s: float
    measured: bool = True
    used_bytes: int = 0
    transfer_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if min(self.flops_per_s, self.memory_bytes_per_s) <= 0 or min(self.memory_bytes, self.used_bytes) < 0:
            raise ValueError(f"the rates and memory of device {self.device} must be positive")

    @classmethod
    def default(
        cls, kind: str = "cpu", device: str | None = None, memory_bytes: int | None = None
    ) -> DeviceProfile:
        """Return cautious figures for a device that is not measured yet; ``measured`` is False. ``kind``:
        ``cpu`` or ``cuda``, else ValueError."""
        if kind not in _DEFAULT_RATES:
            raise ValueError(f"no default rates for a device of kind {kind!r}; known: cpu, cuda")
        flops_per_s, memory_bytes_per_s, op_overhead_s = _DEFAULT_RATES[kind]
        return cls(
            device=device or f"{kind}:0",
            kind=kind,
            memory_bytes=_DEFAULT_MEMORY_BYTES[kind] if memory_bytes is None else memory_bytes,
            flops_per_s=flops_per_s,
            memory_bytes_per_s=memory_bytes_per_s,
            op_overhead_s=op_overhead_s,
            measured=False,
        )

    def transfer_s(self, nbytes: int) -> float:
        """Return the seconds to move bytes between client and device."""
        return nbytes / (self.transfer_bytes_per_s or self.memory_bytes_per_s / 2)


Bound = Literal["compute", "memory", "overhead"]


class NodeEstimate(msgspec.Struct, frozen=True):
    """The predicted time of a node. ``bound``: what most of the time goes to."""

    seconds: float
    bound: Bound


class CostEstimator(Protocol):
    """Predicts run times. The scheduler asks for every node on every candidate device."""

    def estimate(self, node: Node, device: DeviceProfile) -> NodeEstimate: ...


class GraphCostEstimator:
    """The roofline over the graph's FLOPs and bytes."""

    def estimate(self, node: Node, device: DeviceProfile) -> NodeEstimate:
        moved_bytes = node.bytes_read + node.bytes_written
        busy_s = roofline_s(node.flops, moved_bytes, device.flops_per_s, device.memory_bytes_per_s)
        seconds = busy_s + device.op_overhead_s
        if busy_s <= device.op_overhead_s:
            return NodeEstimate(seconds, "overhead")
        memory_bound = moved_bytes / device.memory_bytes_per_s >= busy_s
        return NodeEstimate(seconds, "memory" if memory_bound else "compute")
