"""How long a node takes: the roofline model.

A node is limited either by arithmetic or by moving its bytes, by the slower of both, plus the fixed cost of
starting an op (Williams, Waterman, Patterson, "Roofline", CACM 2009).
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from djinn_lab.scheduler.devices import DeviceProfile
from djinn_lab.srg.graph import Node

Bound = Literal["compute", "memory", "overhead"]


class NodeEstimate(msgspec.Struct, frozen=True):
    """``bound``: what most of the time goes to."""

    seconds: float
    bound: Bound


class CostEstimator(Protocol):
    """Predicts run times. The scheduler asks for every node on every candidate device."""

    def estimate(self, node: Node, device: DeviceProfile) -> NodeEstimate: ...


class GraphCostEstimator:
    """The roofline over the graph's FLOPs and bytes."""

    def estimate(self, node: Node, device: DeviceProfile) -> NodeEstimate:
        compute_s = node.flops / device.flops_per_s
        memory_s = (node.bytes_read + node.bytes_written) / device.memory_bytes_per_s
        busy_s = max(compute_s, memory_s)
        bound: Bound = "compute" if compute_s > memory_s else "memory"
        return NodeEstimate(
            busy_s + device.op_overhead_s, bound if busy_s > device.op_overhead_s else "overhead"
        )
