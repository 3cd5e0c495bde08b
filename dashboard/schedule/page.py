"""Schedule: when each op of a cell was meant to run and when it did, as a Gantt chart."""

from __future__ import annotations

from html import escape
from io import BytesIO

import panel as pn
from bokeh.models import ColumnDataSource, FactorRange, HoverTool, Range1d, Span, WheelZoomTool
from bokeh.plotting import figure

from djinn_lab.client.phase_colours import TRANSFER_COLOUR
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.graph.store import GraphStore, read_schedule
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.schedule.critical import (
    PATH_COLUMNS,
    CriticalPaths,
    critical_lanes,
    critical_paths,
    outline_columns,
    path_rows,
    path_sentence,
)
from djinn_lab.dashboard.schedule.gantt import (
    BAR_COLUMNS,
    lanes,
    memory_columns,
    op_columns,
    row_names,
    schedule_sentence,
    table_rows,
    to_csv,
    to_trace,
    transfer_columns,
    transfer_lane,
)
from djinn_lab.dashboard.widgets.bars import BarLane, make_lane
from djinn_lab.dashboard.widgets.chooser import CellPart, JobChooser, graph_version
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import button, control_bar, download, toggle
from djinn_lab.dashboard.widgets.panes import (
    CHOOSE_OTHER,
    NO_JOBS,
    empty_state,
    heading,
    html_pane,
    no_pool,
    notice,
    show_html,
)
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.dashboard.widgets.theme import DEVICE_COLOURS, legend_html, new_figure
from djinn_lab.errors import DjinnError
from djinn_lab.scheduler.difference import difference_sentence
from djinn_lab.scheduler.schedule import ExecutionSchedule

TABLE_COLUMNS = columns(
    ("node", "Node", "number"),
    ("op", "Op", "mono"),
    ("module", "Module", "text"),
    ("line", "Line", "number"),
    ("phase", "Phase", "short"),
    ("start", "Starts (ms)", "number"),
    ("predicted", "Predicted (ms)", "number"),
    ("measured", "Measured (ms)", "number"),
)
_TOOLTIPS = [
    ("", "@name"),
    ("module", "@module"),
    ("takes", "@took"),
    ("", "@detail"),
    ("from", "@left{0.000} ms"),
]


class SchedulePage:
    """State: the address holds job and segment."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._store: GraphStore = board.hub.keep("graphs", GraphStore)
        self.chooser = JobChooser(board)
        self.schedule: ExecutionSchedule | None = None
        self.paths: CriticalPaths | None = None
        self.lanes: dict[str, BarLane] = {}
        self._critical_lanes: dict[str, BarLane] = {}
        self._transfer_lane = make_lane([], [], [], [])
        self._window: tuple[float, float] | None = None
        self._wanted: tuple[str, CellPart, int, bool] | None = None
        self.ops = ColumnDataSource({name: [] for name in BAR_COLUMNS})
        self.transfers = ColumnDataSource({name: [] for name in BAR_COLUMNS})
        self.outlines = ColumnDataSource({"row": [], "left": [], "right": []})
        self.memory = ColumnDataSource({"time": [], "live": []})
        self.figure = self._new_gantt()
        self.memory_figure = self._new_memory()
        self._build_controls()
        self._build_view()

    def _build_controls(self) -> None:
        self.fit = button("Fit", align="end")
        self.as_table = toggle("View as table", align="end")
        self.trace = download("Trace for Perfetto", "schedule.trace.json", self._trace, align="end")
        self.csv = download("CSV", "schedule.csv", self._csv, align="end")
        self.fit.on_click(lambda event: self._board.background.soon(self._show_all))
        self.as_table.param.watch(lambda event: self._table_toggled(), "value")

    def _build_view(self) -> None:
        self._heading = html_pane(margin=(10, 0, 6, 0))
        self.decisions = html_pane(margin=(14, 0, 0, 0))
        self.path_heading = html_pane(margin=(14, 0, 6, 0))
        self.path_table = LiveTable(
            columns=PATH_COLUMNS, label="Ops of the critical path", visible=False, sizing_mode="stretch_width"
        )
        self.table = LiveTable(
            columns=TABLE_COLUMNS, label="Ops of the schedule", visible=False, sizing_mode="stretch_width"
        )
        charts = [
            pn.pane.Bokeh(plot, sizing_mode="stretch_width", margin=0)
            for plot in (self.figure, self.memory_figure)
        ]
        self._charts = pn.Column(*charts, sizing_mode="stretch_width", margin=0)
        extra = (("transfer (hatched)", TRANSFER_COLOUR), ("critical path (outlined)", self._board.look.text))
        legend = html_pane(legend_html(extra), margin=(4, 0, 8, 0))
        bar = control_bar(self.chooser.view, self.fit, self.as_table, self.trace, self.csv)
        self._live = pn.Column(
            bar,
            self._heading,
            legend,
            self._charts,
            self.table,
            self.path_heading,
            self.path_table,
            self.decisions,
            sizing_mode="stretch_width",
            margin=0,
            visible=False,
        )
        self._missing = html_pane()
        self.view = pn.Column(self._missing, self._live, sizing_mode="stretch_width", margin=0)

    def _new_gantt(self) -> figure:
        plot = new_figure(
            self._board.look,
            height=230,
            x_range=Range1d(0, 1),
            y_range=FactorRange(),
            tools="xpan,reset,save",
            x_axis_label="ms since the segment began on the device",
        )
        zoom = WheelZoomTool(dimensions="width")
        plot.add_tools(zoom)
        plot.toolbar.active_scroll = zoom
        plot.ygrid.visible = False
        common = {"y": "row", "left": "left", "right": "right", "height": 0.72, "fill_color": "colour"}
        ops = plot.hbar(**common, source=self.ops, line_color="colour", line_width=0.7, fill_alpha=0.85)
        transfers = plot.hbar(
            **common,
            source=self.transfers,
            line_color="colour",
            line_width=0.7,
            hatch_pattern="/",
            hatch_alpha=0.5,
        )
        outline = {"y": "row", "left": "left", "right": "right", "height": 0.8, "fill_alpha": 0.0}
        plot.hbar(**outline, source=self.outlines, line_color=self._board.look.text, line_width=1.4)
        plot.add_tools(HoverTool(renderers=[ops, transfers], tooltips=_TOOLTIPS))
        return plot

    def _new_memory(self) -> figure:
        plot = new_figure(
            self._board.look,
            height=150,
            x_range=self.figure.x_range,
            y_range=Range1d(0, 1),
            tools="xpan,xwheel_zoom,save",
            y_axis_label="MiB",
            title="Planned memory over predicted time",
        )
        colour = DEVICE_COLOURS[0]
        plot.varea("time", 0, "live", source=self.memory, fill_color=colour, fill_alpha=0.15)
        line = plot.line("time", "live", source=self.memory, color=colour, line_width=1.6)
        self._limit = Span(dimension="width", line_color="#D55E00", line_dash="dashed", line_width=1.4)
        plot.add_layout(self._limit)
        plot.add_tools(HoverTool(renderers=[line], tooltips=[("alive", "@live{0.0} MiB")], mode="vline"))
        return plot

    def enter(self) -> None:
        """Called when the page is shown."""

    def update(self, snapshot: Snapshot) -> None:
        """Follow the choice of a job; read its schedule again when it ends, for what was measured."""
        chosen = self.chooser.wanted(snapshot)
        if chosen is None:
            text = NO_JOBS
            if snapshot.status is None or snapshot.connection != "live":
                text = no_pool(snapshot.connection, snapshot.message, snapshot.advice)
            self._show_only(text)
            return
        self.chooser.update(snapshot)
        self.draw_window()
        job, segment = chosen
        wanted = (job.job, segment, graph_version(job, segment), job.finished)
        if wanted == self._wanted:
            return
        if self._wanted is None or self._wanted[:2] != wanted[:2]:
            self._show_only(empty_state("Reading the schedule", f"Cell {job.cell or job.short_id}"))
        self._wanted = wanted
        hub = self._board.hub

        def work() -> ExecutionSchedule:
            return read_schedule(hub.reader(), job.job, segment)

        def done(schedule: ExecutionSchedule) -> None:
            self.show(schedule)
            self._find_paths(schedule, *wanted[:3])

        self._board.background.run("schedule", work, done, self._failed)

    def _find_paths(self, schedule: ExecutionSchedule, job: str, part: CellPart, segments: int) -> None:
        """Find the critical paths, which need the graph: the chart does not wait for it."""
        hub, store = self._board.hub, self._store

        def work() -> CriticalPaths:
            return critical_paths(schedule, store.tree(hub.reader(), job, part, segments))

        def done(paths: CriticalPaths) -> None:
            if self.schedule is schedule:
                self.show_paths(paths)

        def failed(error: DjinnError) -> None:
            if self.schedule is not schedule:
                return
            text = f"The critical path is not known. {error.message}"
            show_html(self.path_heading, notice(text, error.advice))

        self._board.background.run("critical path", work, done, failed)

    def show_paths(self, paths: CriticalPaths) -> None:
        """Outline the ops of the critical paths, and list them."""
        assert self.schedule is not None
        self.paths = paths
        self._critical_lanes = critical_lanes(self.lanes, paths)
        self._window = None
        self.draw_window()
        show_html(self.path_heading, heading("Critical path", path_sentence(self.schedule, paths)))
        self.path_table.show(*path_rows(self.schedule, paths))
        self.path_table.visible = True

    def _failed(self, error: DjinnError) -> None:
        text = empty_state("This cell has no schedule to show", f"{error.message} {error.advice}")
        self._show_only(text + CHOOSE_OTHER)

    def _show_only(self, text: str) -> None:
        show_html(self._missing, text)
        self._missing.visible = bool(text)
        self._live.visible = not text

    def show(self, schedule: ExecutionSchedule) -> None:
        """Draw a schedule."""
        self.schedule, self.paths = schedule, None
        self._critical_lanes = {}
        show_html(self.path_heading, "")
        self.path_table.visible = False
        self._window = None
        self._show_only("")
        self.figure.y_range.factors = row_names(schedule)[::-1]
        self.lanes = lanes(schedule)
        self._transfer_lane = transfer_lane(schedule)
        self.memory.data = memory_columns(schedule)
        self._show_all()
        self._show_memory_limit(schedule)
        summary = f"{schedule_sentence(schedule)} {difference_sentence(schedule)}"
        show_html(self._heading, heading("Schedule of the cell", summary))
        reasons = "".join(f"<li>{escape(sentence)}</li>" for sentence in schedule.explain())
        show_html(self.decisions, f"<h2>Why so</h2><ul>{reasons}</ul>" if reasons else "")
        self._fill_table()

    def _show_memory_limit(self, schedule: ExecutionSchedule) -> None:
        limit = schedule.limit_bytes / 2**20
        peak = max(self.memory.data["live"], default=0.0)
        near = limit <= 2.5 * peak
        self._limit.location = limit
        self._limit.visible = near
        self.memory_figure.y_range.end = max(1.05 * limit if near else 1.2 * peak, 0.001)

    def _show_all(self) -> None:
        edges = [
            edge
            for lane in (*self.lanes.values(), self._transfer_lane)
            if len(lane.start)
            for edge in (lane.start[0], lane.end.max())
        ]
        low, high = float(min(edges, default=0.0)), float(max(edges, default=1.0))
        margin = 0.01 * (high - low) or 0.001
        self.figure.x_range.update(start=low - margin, end=high + margin)
        self.draw_window()

    def draw_window(self) -> None:
        """Bars for what the x axis shows, when it shows something else than before."""
        window = (self.figure.x_range.start, self.figure.x_range.end)
        if self.schedule is None or window == self._window:
            return
        self._window = window
        self.ops.data = op_columns(self.schedule, self.lanes, *window)
        self.transfers.data = transfer_columns(self.schedule, self._transfer_lane, *window)
        self.outlines.data = outline_columns(self._critical_lanes, *window)

    def _table_toggled(self) -> None:
        self.table.visible = self.as_table.value
        self._charts.visible = not self.as_table.value
        self._fill_table()

    def _fill_table(self) -> None:
        if self.as_table.value and self.schedule is not None:
            self.table.show(*table_rows(self.schedule))

    def _trace(self) -> BytesIO:
        return BytesIO(to_trace(self.schedule).encode() if self.schedule is not None else b"{}")

    def _csv(self) -> BytesIO:
        return BytesIO(to_csv(self.schedule).encode() if self.schedule is not None else b"")
