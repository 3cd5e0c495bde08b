"""The result of scheduling: where, in which order, how long, with how much memory, and why. And what it
is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from djinn_lab.scheduler.costs import Bound, DeviceProfile
from djinn_lab.scheduler.memory_plan import MemoryPlan
from djinn_lab.scheduler.trace import Times, chrome_trace
from djinn_lab.srg.program import Phase


class ScheduledNode(msgspec.Struct, frozen=True, gc=False):
    """A node of the graph at its place. Times are predicted seconds since the segment began on the device."""

    node: int
    op: str
    module: str
    line: int
    phase: Phase
    start_s: float
    end_s: float
    bound: Bound
    live_bytes: int


class PlannedTransfer(msgspec.Struct, frozen=True):
    """Bytes between client and device: an ``upload`` before the first node, a ``fetch`` after the last.
    ``node``: the first to read what was uploaded, or the one that produced what is fetched; None when there
    is none."""

    value: int
    direction: Literal["upload", "fetch"]
    nbytes: int
    start_s: float
    end_s: float
    node: int | None


class ExecutionSchedule(msgspec.Struct, frozen=True):
    """``nodes`` in the order of execution, all on ``device``. ``groups``: node ids that share memory (views
    and in-place ops with what they act on) and must stay on one device. ``limit_bytes``: what the plan may
    use of the device. ``node_start_s``/``node_end_s``: measured, by node id, once it ran; shorter than
    ``nodes`` when it stopped early.
    """

    device: DeviceProfile
    profile: str
    structural_hash: str
    nodes: tuple[ScheduledNode, ...]
    transfers: tuple[PlannedTransfer, ...]
    groups: tuple[tuple[int, ...], ...]
    memory: MemoryPlan
    limit_bytes: int
    predicted_s: float
    decisions: tuple[str, ...]
    node_start_s: tuple[float, ...] | None = None
    node_end_s: tuple[float, ...] | None = None

    @property
    def order(self) -> tuple[int, ...]:
        """Node ids in the order of execution."""
        return tuple(node.node for node in self.nodes)

    @property
    def measured_s(self) -> float | None:
        """Return the seconds from the first node's start to the last one's end, once the segment ran."""
        if not self.node_start_s or not self.node_end_s:
            return None
        return max(self.node_end_s) - min(self.node_start_s)

    def explain(self) -> tuple[str, ...]:
        """One sentence for each decision, with its numbers."""
        return self.decisions

    def with_measured(self, start_s: Sequence[float], end_s: Sequence[float]) -> ExecutionSchedule:
        """The same schedule with what really happened, by node id. Raises ValueError on lengths that cannot
        be."""
        if len(start_s) != len(end_s) or len(end_s) > len(self.nodes):
            raise ValueError(f"{len(start_s)} starts and {len(end_s)} ends for {len(self.nodes)} nodes")
        return msgspec.structs.replace(self, node_start_s=tuple(start_s), node_end_s=tuple(end_s))

    def to_json(self) -> dict[str, object]:
        """Plain lists, dicts and numbers."""
        document: dict[str, object] = msgspec.to_builtins(self)
        return document

    @classmethod
    def from_json(cls, document: dict[str, object]) -> ExecutionSchedule:
        """The inverse of :meth:`to_json`. Raises ``msgspec.ValidationError`` on anything else."""
        return msgspec.convert(document, cls)

    def chrome_trace(self, measured: Times | None = None) -> dict[str, object]:
        """A trace for Perfetto or chrome://tracing. ``measured``: starts and ends by node id; by default
        the schedule's own."""
        if measured is None and self.node_start_s is not None and self.node_end_s is not None:
            measured = (self.node_start_s, self.node_end_s)
        return chrome_trace(self.device.device, self.nodes, self.transfers, measured)
