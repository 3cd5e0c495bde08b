"""The result of scheduling: where, in which order, how long, with how much memory, and why. And what it
is made of.

As a Chrome trace its times are numbers in microseconds relative to the start. There is one process per kind
of time (predicted, measured), one thread per lane, each named by a metadata event. A flow arrow joins each
transfer to its node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from djinn_lab.scheduler.costs import DeviceProfile
from djinn_lab.scheduler.memory_plan import MemoryPlan
from djinn_lab.srg.curves import Bound
from djinn_lab.srg.offload import OffloadPlan
from djinn_lab.srg.program import Phase

Times = tuple[Sequence[float], Sequence[float]]
"""Starts and ends in seconds, by node id."""
_PREDICTED, _MEASURED = 1, 2
_NODES, _UPLOADS, _FETCHES = 1, 2, 3
Event = dict[str, object]
"""Of a Chrome trace."""


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
    """A schedule of one graph. ``nodes`` in the order of execution, all on ``device``. ``groups``: node ids
    that share memory (views and in-place ops with what they act on) and must stay on one device.
    ``limit_bytes``: what the plan may use of the device. ``offload``: what is moved to the tiers below and
    back where that is not enough; its time is in ``predicted_s``. ``node_start_s``/``node_end_s``: measured,
    by node id, once it ran; shorter than ``nodes`` when it stopped early. ``node_device``: which device ran
    each, where several did."""

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
    node_device: tuple[str, ...] | None = None
    offload: OffloadPlan | None = None

    @property
    def order(self) -> tuple[int, ...]:
        """Node ids in the order of execution."""
        return tuple(node.node for node in self.nodes)

    @property
    def compute_s(self) -> float:
        """Return the predicted seconds of the ops alone, without transfers."""
        return sum(node.end_s - node.start_s for node in self.nodes)

    @property
    def interval_s(self) -> float:
        """Return the predicted seconds from one such graph to the next, in a long row of them, where the
        transfers of one overlap with the ops of another."""
        moving_s = sum(transfer.end_s - transfer.start_s for transfer in self.transfers)
        return max(self.compute_s, moving_s)

    @property
    def joules(self) -> float | None:
        """Return the predicted seconds times what the device draws when busy, None where that is unknown."""
        return None if self.device.watts is None else self.predicted_s * self.device.watts

    @property
    def measured_s(self) -> float | None:
        """Return the seconds from the first node's start to the last one's end, once the segment ran."""
        if not self.node_start_s or not self.node_end_s:
            return None
        return max(self.node_end_s) - min(self.node_start_s)

    def explain(self) -> tuple[str, ...]:
        """Return one sentence for each decision, with its numbers."""
        return self.decisions

    @property
    def measured_nodes(self) -> dict[str, list[ScheduledNode]]:
        """Map each device that ran nodes to these, in the order of execution; empty before it ran."""
        found: dict[str, list[ScheduledNode]] = {}
        ran = len(self.node_end_s or ())
        for node in self.nodes:
            if node.node < ran:
                device = self.node_device[node.node] if self.node_device else self.device.device
                found.setdefault(device, []).append(node)
        return dict(sorted(found.items()))

    def with_measured(
        self, start_s: Sequence[float], end_s: Sequence[float], devices: Sequence[str] = ()
    ) -> ExecutionSchedule:
        """Return the same schedule with what really happened, by node id. ``devices``: which one ran each
        node; empty where it was the schedule's. Raises ValueError on lengths that cannot be."""
        if len(start_s) != len(end_s) or len(end_s) > len(self.nodes):
            raise ValueError(f"{len(start_s)} starts and {len(end_s)} ends for {len(self.nodes)} nodes")
        if len(devices) not in (0, len(end_s)):
            raise ValueError(f"{len(devices)} devices for {len(end_s)} nodes that ran")
        return msgspec.structs.replace(
            self,
            node_start_s=tuple(start_s),
            node_end_s=tuple(end_s),
            node_device=tuple(devices) or None,
        )

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
        schedule = self if measured is None else self.with_measured(*measured)
        return _chrome_trace(schedule)


def _chrome_trace(schedule: ExecutionSchedule) -> dict[str, object]:
    """Write ``{"traceEvents": [...], "displayTimeUnit": "ms"}``."""
    nodes, transfers = schedule.nodes, schedule.transfers
    events = list(_names(_PREDICTED, f"{schedule.device.device} predicted"))
    events += [
        _slice(_PREDICTED, _NODES, node.op, node.start_s, node.end_s, _details(node)) for node in nodes
    ]
    starts = {node.node: node.start_s for node in nodes}
    for flow, transfer in enumerate(transfers):
        name, lane = f"{transfer.direction} value {transfer.value}", _lane(transfer)
        details: Event = {"value": transfer.value, "nbytes": transfer.nbytes}
        events.append(_slice(_PREDICTED, lane, name, transfer.start_s, transfer.end_s, details))
        if transfer.node in starts:
            events += _arrow(flow, transfer, starts[transfer.node])
    starts_s, ends_s = schedule.node_start_s or (), schedule.node_end_s or ()
    for process, (device, ran) in enumerate(schedule.measured_nodes.items(), start=_MEASURED):
        events += _names(process, f"{device} measured")
        events += [
            _slice(process, _NODES, node.op, starts_s[node.node], ends_s[node.node], _details(node))
            for node in ran
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _names(process: int, label: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": label}}
    lanes = (
        {_NODES: "ops"} if process >= _MEASURED else {_NODES: "ops", _UPLOADS: "uploads", _FETCHES: "fetches"}
    )
    for thread, name in lanes.items():
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}


def _slice(process: int, thread: int, name: str, start_s: float, end_s: float, details: Event) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": start_s * 1e6,
        "dur": max(end_s - start_s, 0.0) * 1e6,
        "args": details,
    }


def _details(node: ScheduledNode) -> Event:
    return {
        "node": node.node,
        "module": node.module,
        "line": node.line,
        "phase": node.phase,
        "bound": node.bound,
        "live_bytes": node.live_bytes,
    }


def _lane(transfer: PlannedTransfer) -> int:
    return _UPLOADS if transfer.direction == "upload" else _FETCHES


def _arrow(flow: int, transfer: PlannedTransfer, node_start_s: float) -> list[Event]:
    """Return the arrow from an upload to the node that reads it, or from the node to the fetch of its
    result."""
    ends = [(_lane(transfer), transfer.start_s), (_NODES, node_start_s)]
    if transfer.direction == "fetch":
        ends.reverse()
    common = {"name": transfer.direction, "cat": "transfer", "id": flow, "pid": _PREDICTED}
    (first, first_s), (second, second_s) = ends
    return [
        {**common, "ph": "s", "tid": first, "ts": first_s * 1e6},
        {**common, "ph": "f", "bp": "e", "tid": second, "ts": second_s * 1e6},
    ]
