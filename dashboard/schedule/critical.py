"""The critical paths of a schedule's plan and of its run: as outlines of bars, as a table, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from djinn_lab.dashboard.graph.figures import NodeFigures
from djinn_lab.dashboard.graph.folding import Tree
from djinn_lab.dashboard.schedule.gantt import Columns
from djinn_lab.dashboard.widgets.bars import BarLane, bars_in
from djinn_lab.dashboard.widgets.table_cells import columns, number_cell
from djinn_lab.scheduler.critical_path import CriticalPath, find_critical_path
from djinn_lab.scheduler.schedule import ExecutionSchedule
from djinn_lab.units import counted, format_seconds

GAP_SHARE = 0.004
"""Part of the window, a few pixels of a screen."""
ROWS_MAX = 300
PATH_COLUMNS = columns(
    ("node", "Node", "number"),
    ("op", "Op", "mono"),
    ("module", "Module", "text"),
    ("line", "Line", "number"),
    ("path", "Critical in", "short"),
    ("predicted", "Predicted (ms)", "number"),
    ("measured", "Measured (ms)", "number"),
)


class CriticalPaths(NamedTuple):
    """The longest chains of dependent ops. ``measured``: None before all ops ran. ``figures``: the seconds of
    each op."""

    plan: CriticalPath
    measured: CriticalPath | None
    figures: NodeFigures

    def nodes(self, row: str) -> frozenset[int]:
        """Return the ops of the path that counts for a row of the chart."""
        path = self.plan if row.endswith(" predicted") else self.measured
        return frozenset() if path is None else frozenset(path.nodes)


def critical_paths(schedule: ExecutionSchedule, tree: Tree) -> CriticalPaths:
    """Find both paths. Raises PoolError where the cell has got more ops since its schedule was read."""
    figures = NodeFigures.of(schedule, len(tree.srg.nodes))
    edges = list(zip(tree.edge_source.tolist(), tree.edge_target.tolist(), strict=True))
    measured = None
    if figures.measured_s is not None:
        measured = find_critical_path(figures.measured_s.tolist(), edges)
    return CriticalPaths(find_critical_path(figures.predicted_s.tolist(), edges), measured, figures)


def critical_lanes(lanes: Mapping[str, BarLane], paths: CriticalPaths) -> dict[str, BarLane]:
    """Return the rows of a chart with the ops of the critical path alone."""
    found: dict[str, BarLane] = {}
    for row, lane in lanes.items():
        inside = np.isin(lane.node, np.array(sorted(paths.nodes(row)), dtype=np.int64))
        found[row] = BarLane(lane.start[inside], lane.end[inside], lane.kind[inside], lane.node[inside])
    return found


def outline_columns(lanes: Mapping[str, BarLane], low: float, high: float) -> Columns:
    """Return outlines for the window from ``low`` to ``high`` milliseconds; those with nearly nothing between
    them are one."""
    found: Columns = {"row": [], "left": [], "right": []}
    gap = GAP_SHARE * (high - low)
    for row, lane in lanes.items():
        joined: list[tuple[float, float]] = []
        for bar in bars_in(lane, low, high):
            if joined and bar.left - joined[-1][1] <= gap:
                joined[-1] = joined[-1][0], max(bar.right, joined[-1][1])
            else:
                joined.append((bar.left, bar.right))
        found["row"] += [row] * len(joined)
        found["left"] += [left for left, _ in joined]
        found["right"] += [right for _, right in joined]
    return found


def path_sentence(schedule: ExecutionSchedule, paths: CriticalPaths) -> str:
    """Summarise both paths."""
    sentence = _one("The plan's critical path", paths.plan, len(schedule.nodes), schedule.compute_s)
    if paths.measured is not None and paths.figures.measured_s is not None:
        busy_s = float(paths.figures.measured_s.sum())
        sentence += " " + _one("That of the run", paths.measured, len(schedule.nodes), busy_s)
    return (
        sentence
        + " Each of its ops needs the one before, so the cell takes no less on any number of devices."
    )


def _one(name: str, path: CriticalPath, ops: int, all_s: float) -> str:
    share = f", {path.seconds / all_s:.0%} of all op time" if all_s > 0 else ""
    length = f"{len(path.nodes)} of {counted(ops, 'op')}"
    return f"{name} has {length} and takes {format_seconds(path.seconds)}{share}."


def path_rows(schedule: ExecutionSchedule, paths: CriticalPaths) -> tuple[list[dict[str, object]], str]:
    """List the ops of either path in the order of the plan, and a note when only the longest are listed."""
    planned = frozenset(paths.plan.nodes)
    ran = frozenset(paths.measured.nodes if paths.measured is not None else ())
    predicted_s, measured_s = paths.figures.predicted_s, paths.figures.measured_s
    listed = [node for node in schedule.nodes if node.node in planned or node.node in ran]
    count = len(listed)
    if count > ROWS_MAX:
        weights = predicted_s if measured_s is None else measured_s
        longest = sorted(listed, key=lambda node: -weights[node.node])[:ROWS_MAX]
        kept = {node.node for node in longest}
        listed = [node for node in listed if node.node in kept]
    rows: list[dict[str, object]] = []
    for node in listed:
        number = node.node
        both = number in planned and number in ran
        measured_ms = None if measured_s is None else float(measured_s[number]) * 1e3
        rows.append(
            {
                "id": str(number),
                "node": number,
                "op": node.op,
                "module": node.module,
                "line": node.line,
                "path": "both" if both else "plan" if number in planned else "run",
                "predicted": number_cell(float(predicted_s[number]) * 1e3, "{:.3f}".format),
                "measured": number_cell(measured_ms, "{:.3f}".format),
            }
        )
    return rows, f"The {ROWS_MAX} longest of {count} ops" if count > ROWS_MAX else ""
