"""A schedule as bars, rows of a table, and files to take away."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from djinn_lab.client.phase_colours import PHASE_COLOURS, TRANSFER_COLOUR, phase_colour
from djinn_lab.dashboard.csv_text import csv_text
from djinn_lab.dashboard.graph.folding import short_op
from djinn_lab.dashboard.widgets.bars import BarLane, bars_in, make_lane
from djinn_lab.dashboard.widgets.table_cells import number_cell
from djinn_lab.scheduler.schedule import ExecutionSchedule, ScheduledNode
from djinn_lab.srg.curves import Bound
from djinn_lab.srg.program import Phase
from djinn_lab.units import format_bytes, format_seconds

TRANSFER_BARS_MAX = 200
"""Fewer than other bars: a browser draws hatched ones slowly."""
_PHASES = list(PHASE_COLOURS)
TABLE_MAX = 300
Columns = dict[str, list[Any]]
BAR_COLUMNS = ("row", "left", "right", "colour", "name", "module", "detail", "took")


def row_names(schedule: ExecutionSchedule) -> list[str]:
    """Return the Gantt's rows from top to bottom."""
    device = schedule.device.device
    rows = [f"{device} predicted"]
    if schedule.transfers:
        rows.insert(0, f"{device} transfers")
    return [*rows, *(f"{ran_on} measured" for ran_on in schedule.measured_nodes)]


def lanes(schedule: ExecutionSchedule) -> dict[str, BarLane]:
    """Return the op rows by name: predicted, and measured by each device that ran some."""
    device = schedule.device.device
    nodes = schedule.nodes
    found = {
        f"{device} predicted": _lane(nodes, [node.start_s for node in nodes], [node.end_s for node in nodes])
    }
    starts, ends = schedule.node_start_s or (), schedule.node_end_s or ()
    for ran_on, ran in schedule.measured_nodes.items():
        measured = _lane(ran, [starts[node.node] for node in ran], [ends[node.node] for node in ran])
        found[f"{ran_on} measured"] = measured
    return found


def _lane(nodes: Sequence[ScheduledNode], starts: list[float], ends: list[float]) -> BarLane:
    return make_lane(
        starts, ends, [_PHASES.index(node.phase) for node in nodes], [node.node for node in nodes]
    )


def op_columns(schedule: ExecutionSchedule, rows: Mapping[str, BarLane], low: float, high: float) -> Columns:
    """Return bars of the ops in the window from ``low`` to ``high`` milliseconds."""
    columns: Columns = {name: [] for name in BAR_COLUMNS}
    by_node = {node.node: node for node in schedule.nodes}
    for row, lane in rows.items():
        for bar in bars_in(lane, low, high):
            node = by_node[int(lane.node[bar.first])]
            place = f", line {node.line}" if node.line else ""
            detail = f"node {node.node}, {node.phase}, {node.bound} bound{place}"
            if bar.ops > 1:
                detail = f"from node {node.node} on, mostly {_PHASES[bar.kind]}; zoom in for each of them"
            values = (
                row,
                bar.left,
                bar.right,
                phase_colour(_PHASES[bar.kind]),
                short_op(node.op) if bar.ops == 1 else f"{bar.ops} ops",
                (node.module or "outside modules") if bar.ops == 1 else "several",
                detail,
                format_seconds(bar.busy / 1e3),
            )
            for name, value in zip(BAR_COLUMNS, values, strict=True):
                columns[name].append(value)
    return columns


def transfer_lane(schedule: ExecutionSchedule) -> BarLane:
    """The uploads and fetches; ``node`` is the position in ``schedule.transfers``."""
    transfers = schedule.transfers
    return make_lane(
        [transfer.start_s for transfer in transfers],
        [transfer.end_s for transfer in transfers],
        [int(transfer.direction == "fetch") for transfer in transfers],
        range(len(transfers)),
    )


def transfer_columns(schedule: ExecutionSchedule, lane: BarLane, low: float, high: float) -> Columns:
    """Return bars of the transfers in the window from ``low`` to ``high`` milliseconds."""
    columns: Columns = {name: [] for name in BAR_COLUMNS}
    for bar in bars_in(lane, low, high, TRANSFER_BARS_MAX):
        parts = [schedule.transfers[int(at)] for at in lane.node[bar.first : bar.first + bar.ops]]
        many = (
            f"{len(parts)} transfers, zoom in for each of them" if bar.ops > 1 else f"value {parts[0].value}"
        )
        values = (
            f"{schedule.device.device} transfers",
            bar.left,
            bar.right,
            TRANSFER_COLOUR,
            parts[0].direction,
            many,
            format_bytes(sum(part.nbytes for part in parts)),
            format_seconds(bar.busy / 1e3),
        )
        for name, value in zip(BAR_COLUMNS, values, strict=True):
            columns[name].append(value)
    return columns


def memory_columns(schedule: ExecutionSchedule) -> Columns:
    """Bytes alive over predicted time, in milliseconds and MiB: the most in each of up to 2000 steps."""
    nodes = schedule.nodes
    times: list[float] = []
    live: list[float] = []
    size = max(1, -(-len(nodes) // 1000))
    for at in range(0, len(nodes), size):
        chunk = nodes[at : at + size]
        most = max(node.live_bytes for node in chunk) / 2**20
        times += [chunk[0].start_s * 1e3, chunk[-1].end_s * 1e3]
        live += [most, most]
    return {"time": times, "live": live}


def schedule_sentence(schedule: ExecutionSchedule) -> str:
    """Summarise predicted against measured time, and what takes longest."""
    shares: Counter[str] = Counter()
    for node in schedule.nodes:
        shares[short_op(node.op)] += node.end_s - node.start_s  # type: ignore[assignment]
    total = sum(shares.values())
    sentence = f"{len(schedule.nodes)} ops, now predicted {format_seconds(schedule.predicted_s)}"
    measured = schedule.measured_s
    if measured is None:
        sentence += ", not measured yet"
    elif measured > 0:
        ratio = measured / schedule.predicted_s if schedule.predicted_s else float("inf")
        sentence += f", measured {format_seconds(measured)} ({ratio:.2g} times the prediction)"
        if (several := len(schedule.measured_nodes)) > 1:
            sentence += (
                f" on {several} devices at once, while the prediction is for {schedule.device.device} alone"
            )
    if total > 0:
        op, longest = shares.most_common(1)[0]
        sentence += f"; {op} takes the largest part, {longest / total:.0%} of the predicted op time"
    return sentence + f". Peak memory planned: {format_bytes(schedule.memory.peak_bytes)}."


class OpRow(NamedTuple):
    """Show an op of a schedule. ``measured_start_ms``, ``measured_ms``: None for one that did not run;
    ``ran_on``: the device that ran it."""

    node: int
    op: str
    module: str
    line: int
    phase: Phase
    bound: Bound
    live_bytes: int
    start_ms: float
    predicted_ms: float
    measured_start_ms: float | None
    measured_ms: float | None
    ran_on: str


def table_rows(schedule: ExecutionSchedule) -> tuple[list[dict[str, object]], str]:
    """List the longest ops first, and a note when not all are listed."""
    rows = sorted(_all_rows(schedule), key=lambda row: -max(row.predicted_ms, row.measured_ms or 0.0))
    listed: list[dict[str, object]] = [
        {
            "id": str(row.node),
            "node": row.node,
            "op": row.op,
            "module": row.module,
            "line": row.line,
            "phase": row.phase,
            "start": number_cell(row.start_ms, "{:.3f}".format),
            "predicted": number_cell(row.predicted_ms, "{:.3f}".format),
            "measured": number_cell(row.measured_ms, "{:.3f}".format),
        }
        for row in rows[:TABLE_MAX]
    ]
    note = f"The {TABLE_MAX} longest of {len(rows)} ops; the CSV holds all" if len(rows) > TABLE_MAX else ""
    return listed, note


def _all_rows(schedule: ExecutionSchedule) -> list[OpRow]:
    starts, ends = schedule.node_start_s or (), schedule.node_end_s or ()
    ran_on = {node.node: device for device, ran in schedule.measured_nodes.items() for node in ran}
    return [
        OpRow(
            node=node.node,
            op=node.op,
            module=node.module,
            line=node.line,
            phase=node.phase,
            bound=node.bound,
            live_bytes=node.live_bytes,
            start_ms=node.start_s * 1e3,
            predicted_ms=(node.end_s - node.start_s) * 1e3,
            measured_start_ms=starts[node.node] * 1e3 if node.node < len(ends) else None,
            measured_ms=(ends[node.node] - starts[node.node]) * 1e3 if node.node < len(ends) else None,
            ran_on=ran_on.get(node.node, ""),
        )
        for node in schedule.nodes
    ]


def to_csv(schedule: ExecutionSchedule) -> str:
    """Return every op as a line of CSV."""
    rows = _all_rows(schedule)
    return csv_text(OpRow._fields if rows else ("node",), rows)


def to_trace(schedule: ExecutionSchedule) -> str:
    """Return JSON for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    return json.dumps(schedule.chrome_trace(), allow_nan=False)
