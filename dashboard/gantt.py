"""A schedule as bars, rows of a table, and files to take away."""

from __future__ import annotations

import csv
import json
from collections import Counter
from io import StringIO
from typing import Any

from djinn_lab.dashboard.folding import short_op
from djinn_lab.dashboard.theme import TRANSFER_COLOUR, phase_colour
from djinn_lab.scheduler.parts import ScheduledNode
from djinn_lab.scheduler.schedule import ExecutionSchedule
from djinn_lab.units import format_bytes, format_seconds

BARS_MAX = 20_000
TABLE_MAX = 300
Columns = dict[str, list[Any]]
BAR_COLUMNS = ("row", "left", "right", "colour", "name", "module", "detail", "took")


def row_names(schedule: ExecutionSchedule) -> list[str]:
    """The Gantt's rows from top to bottom."""
    device = schedule.device.device
    rows = [f"{device} predicted"]
    if schedule.transfers:
        rows.insert(0, f"{device} transfers")
    return [*rows, f"{device} measured"] if schedule.node_end_s else rows


def op_columns(schedule: ExecutionSchedule) -> tuple[Columns, int]:
    """Bars of the ops, predicted and measured, in milliseconds; and how many short ones were left out."""
    nodes = _longest(schedule)
    columns: Columns = {name: [] for name in BAR_COLUMNS}
    device = schedule.device.device
    for node in nodes:
        _append(columns, f"{device} predicted", node.start_s, node.end_s, node)
    if schedule.node_start_s is not None and schedule.node_end_s is not None:
        for node in nodes:
            if node.node < len(schedule.node_end_s):
                start, end = schedule.node_start_s[node.node], schedule.node_end_s[node.node]
                _append(columns, f"{device} measured", start, end, node)
    return columns, len(schedule.nodes) - len(nodes)


def _longest(schedule: ExecutionSchedule) -> list[ScheduledNode]:
    if len(schedule.nodes) <= BARS_MAX:
        return list(schedule.nodes)
    ends = schedule.node_end_s or ()
    starts = schedule.node_start_s or ()

    def weight(node: ScheduledNode) -> float:
        measured = ends[node.node] - starts[node.node] if node.node < len(ends) else 0.0
        return max(node.end_s - node.start_s, measured)

    return sorted(schedule.nodes, key=weight, reverse=True)[:BARS_MAX]


def _append(columns: Columns, row: str, start_s: float, end_s: float, node: ScheduledNode) -> None:
    place = f", line {node.line}" if node.line else ""
    values = (
        row,
        start_s * 1e3,
        end_s * 1e3,
        phase_colour(node.phase),
        short_op(node.op),
        node.module or "outside modules",
        f"node {node.node}, {node.phase}, {node.bound} bound{place}",
        format_seconds(end_s - start_s),
    )
    for name, value in zip(BAR_COLUMNS, values, strict=True):
        columns[name].append(value)


def transfer_columns(schedule: ExecutionSchedule) -> Columns:
    """Bars of the uploads and fetches, in milliseconds."""
    columns: Columns = {name: [] for name in BAR_COLUMNS}
    for transfer in schedule.transfers[:BARS_MAX]:
        took = transfer.end_s - transfer.start_s
        values = (
            f"{schedule.device.device} transfers",
            transfer.start_s * 1e3,
            transfer.end_s * 1e3,
            TRANSFER_COLOUR,
            transfer.direction,
            f"value {transfer.value}",
            format_bytes(transfer.nbytes),
            format_seconds(took),
        )
        for name, value in zip(BAR_COLUMNS, values, strict=True):
            columns[name].append(value)
    return columns


def memory_columns(schedule: ExecutionSchedule) -> Columns:
    """Bytes alive over predicted time, in milliseconds and MiB, one point where it changes."""
    times: list[float] = []
    live: list[float] = []
    for node in schedule.nodes:
        mib = node.live_bytes / 2**20
        if not live or mib != live[-1]:
            times.append(node.start_s * 1e3)
            live.append(mib)
    if schedule.nodes:
        times.append(schedule.nodes[-1].end_s * 1e3)
        live.append(live[-1])
    return {"time": times, "live": live}


def schedule_sentence(schedule: ExecutionSchedule) -> str:
    """Predicted against measured, and what takes longest, in one sentence."""
    shares: Counter[str] = Counter()
    for node in schedule.nodes:
        shares[short_op(node.op)] += node.end_s - node.start_s  # type: ignore[assignment]
    total = sum(shares.values())
    sentence = f"{len(schedule.nodes)} ops, predicted {format_seconds(schedule.predicted_s)}"
    measured = schedule.measured_s
    if measured is None:
        sentence += ", not measured yet"
    elif measured > 0:
        ratio = measured / schedule.predicted_s if schedule.predicted_s else float("inf")
        sentence += f", measured {format_seconds(measured)} ({ratio:.2g} times the prediction)"
    if total > 0:
        op, longest = shares.most_common(1)[0]
        sentence += f"; {op} takes the largest part, {longest / total:.0%} of the predicted op time"
    return sentence + f". Peak memory planned: {format_bytes(schedule.memory.peak_bytes)}."


def table_rows(schedule: ExecutionSchedule) -> tuple[list[dict[str, Any]], str]:
    """The longest ops first, and a note when not all are listed."""
    rows = sorted(_all_rows(schedule), key=lambda row: -max(row["predicted_ms"], row["measured_ms"] or 0.0))
    listed = [
        {
            "id": str(row["node"]),
            **{key: row[key] for key in ("node", "op", "module", "line", "phase")},
            "start": {"text": f"{row['start_ms']:.3f}", "sort": row["start_ms"]},
            "predicted": {"text": f"{row['predicted_ms']:.3f}", "sort": row["predicted_ms"]},
            "measured": None
            if row["measured_ms"] is None
            else {"text": f"{row['measured_ms']:.3f}", "sort": row["measured_ms"]},
        }
        for row in rows[:TABLE_MAX]
    ]
    note = f"The {TABLE_MAX} longest of {len(rows)} ops; the CSV holds all" if len(rows) > TABLE_MAX else ""
    return listed, note


def _all_rows(schedule: ExecutionSchedule) -> list[dict[str, Any]]:
    starts, ends = schedule.node_start_s or (), schedule.node_end_s or ()
    return [
        {
            "node": node.node,
            "op": node.op,
            "module": node.module,
            "line": node.line,
            "phase": node.phase,
            "bound": node.bound,
            "live_bytes": node.live_bytes,
            "start_ms": node.start_s * 1e3,
            "predicted_ms": (node.end_s - node.start_s) * 1e3,
            "measured_start_ms": starts[node.node] * 1e3 if node.node < len(ends) else None,
            "measured_ms": (ends[node.node] - starts[node.node]) * 1e3 if node.node < len(ends) else None,
        }
        for node in schedule.nodes
    ]


def to_csv(schedule: ExecutionSchedule) -> str:
    """Every op as a line of CSV."""
    rows = _all_rows(schedule)
    text = StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["node"])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_trace(schedule: ExecutionSchedule) -> str:
    """JSON for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    return json.dumps(schedule.chrome_trace(), allow_nan=False)
