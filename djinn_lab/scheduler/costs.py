"""How long a node takes: the roofline model.

A node is limited either by arithmetic or by moving its bytes, by the slower of both
(:func:`djinn_lab.srg.work.roofline_s`), plus the fixed cost of starting an op.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from djinn_lab.scheduler.devices import DeviceProfile
from djinn_lab.srg.graph import Node
from djinn_lab.srg.work import roofline_s

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
        moved_bytes = node.bytes_read + node.bytes_written
        busy_s = roofline_s(node.flops, moved_bytes, device.flops_per_s, device.memory_bytes_per_s)
        seconds = busy_s + device.op_overhead_s
        if busy_s <= device.op_overhead_s:
            return NodeEstimate(seconds, "overhead")
        memory_bound = moved_bytes / device.memory_bytes_per_s >= busy_s
        return NodeEstimate(seconds, "memory" if memory_bound else "compute")
