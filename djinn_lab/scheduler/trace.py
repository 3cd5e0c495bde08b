"""A schedule as Chrome-trace JSON.

Times are numbers in microseconds relative to the start. One process per kind of time (predicted, measured),
one thread per lane, each named by a metadata event. A flow arrow joins each transfer to its node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from djinn_lab.scheduler.schedule import PlannedTransfer, ScheduledNode

Times = tuple[Sequence[float], Sequence[float]]
"""Starts and ends in seconds, by node id."""
_PREDICTED, _MEASURED = 1, 2
_NODES, _UPLOADS, _FETCHES = 1, 2, 3
Event = dict[str, Any]


def chrome_trace(
    device: str, nodes: Sequence[ScheduledNode], transfers: Sequence[PlannedTransfer], measured: Times | None
) -> dict[str, Any]:
    """``{"traceEvents": [...], "displayTimeUnit": "ms"}``. ``measured`` is indexed by node id and may be
    shorter."""
    events = list(_names(_PREDICTED, f"{device} predicted"))
    events += [
        _slice(_PREDICTED, _NODES, node.op, node.start_s, node.end_s, _details(node)) for node in nodes
    ]
    starts = {node.node: node.start_s for node in nodes}
    for flow, transfer in enumerate(transfers):
        name, lane = f"{transfer.direction} value {transfer.value}", _lane(transfer)
        details = {"value": transfer.value, "nbytes": transfer.nbytes}
        events.append(_slice(_PREDICTED, lane, name, transfer.start_s, transfer.end_s, details))
        if transfer.node in starts:
            events += _arrow(flow, transfer, starts[transfer.node])
    if measured is not None:
        events += _names(_MEASURED, f"{device} measured")
        events += [
            _slice(_MEASURED, _NODES, node.op, measured[0][node.node], measured[1][node.node], _details(node))
            for node in nodes
            if node.node < len(measured[1])
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _names(process: int, label: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": label}}
    lanes = (
        {_NODES: "ops"} if process == _MEASURED else {_NODES: "ops", _UPLOADS: "uploads", _FETCHES: "fetches"}
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
