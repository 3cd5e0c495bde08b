"""Sessions over the last minutes as lanes: where each one's state was, the copies, and what happened."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import panel as pn
from bokeh.models import ColumnDataSource, FactorRange, HoverTool, Range1d
from bokeh.plotting import figure

from djinn_lab.client.session_memory import STATES
from djinn_lab.dashboard.memory.history import MemoryHistory, Span
from djinn_lab.dashboard.memory.tables import WHAT
from djinn_lab.dashboard.widgets.bars import bars_in, make_lane
from djinn_lab.dashboard.widgets.theme import BAD_COLOUR, MEMORY_COLOURS, SHARED_COLOUR, Look, new_figure
from djinn_lab.memory.snapshot import MemoryChange
from djinn_lab.protocol.rest.sessions import MemorySession, MemoryView
from djinn_lab.units import format_bytes, format_seconds

LANES_MAX = 40
SPANS_DRAWN_MAX = 1500
EVENTS_DRAWN_MAX = 1200
LANE_PX = 19
COPIES = {"store": SHARED_COLOUR, "restore": "#56B4E9", "demote": "#7F8C99"}
"""Copies that take time are bars in these colours."""
MARKS = {
    "evict": ("inverted_triangle", "#E69F00"),
    "prefetch": ("diamond", "#56B4E9"),
    "wake": ("circle", "#009E73"),
    "defer": ("square", "#F0E442"),
    "lost": ("x", BAD_COLOUR),
    "failed": ("x", BAD_COLOUR),
}
"""Moments are marks of these shapes and colours."""
_GLYPHS = {"inverted_triangle": "▼", "diamond": "◆", "circle": "●", "square": "■", "x": "✕"}
_STATES = list(STATES)
_OPEN_S = 86_400.0
"""How far into the future a state that lasts is drawn, so that it need not be sent again as time passes."""
Columns = dict[str, list[Any]]


def lane_sessions(memory: MemoryView, chosen: str, active: set[str]) -> list[MemorySession]:
    """Return the sessions to draw, at most :data:`LANES_MAX`: the chosen one, those to which something
    happened and those that hold most, in an order that stays."""
    ranked = sorted(
        memory.sessions,
        key=lambda session: (
            session.session != chosen,
            session.session not in active,
            session.total_bytes == 0,
            session.session,
        ),
    )
    return sorted(ranked[:LANES_MAX], key=lambda session: (session.device or "~", session.label))


def span_columns(spans: dict[str, list[Span]], low_s: float, high_s: float) -> Columns:
    """Return ``spans`` by lane, as bars of the window; short ones are merged to what a screen can show."""
    columns: Columns = {name: [] for name in ("lane", "left", "right", "colour", "state", "took")}
    most = max(8, SPANS_DRAWN_MAX // max(1, len(spans)))
    for lane, found in spans.items():
        shown = [span for span in found if span.state != "none"]
        ends = [high_s + _OPEN_S if span.end is None else span.end for span in shown]
        kinds = [_STATES.index(span.state) for span in shown]
        starts = [max(span.start, low_s) for span in shown]
        drawn = make_lane(starts, ends, kinds, range(len(shown)))
        for bar in bars_in(drawn, low_s * 1e3, (high_s + _OPEN_S) * 1e3, most):
            state = _STATES[bar.kind]
            words, colour = STATES[state], MEMORY_COLOURS[state]
            lasts = bar.right > high_s * 1e3
            since = shown[int(drawn.node[bar.first])].start
            took = "still" if lasts else f"for {format_seconds(bar.right / 1e3 - since)}"
            values = (lane, bar.left, bar.right, colour, words if bar.ops == 1 else f"mostly {words}", took)
            for name, value in zip(columns, values, strict=True):
                columns[name].append(value)
    return columns


def event_columns(
    happenings: list[MemoryChange], lanes: dict[str, str], readable: Callable[[str], str] = str
) -> tuple[Columns, Columns]:
    """Return copies as bars that end when they were reported, and the other events as marks."""
    copies: Columns = {name: [] for name in ("lane", "left", "right", "colour", "what", "detail", "reason")}
    marks: Columns = {name: [] for name in ("lane", "at", "shape", "colour", "what", "detail", "reason")}
    drawn = [one for one in happenings if one.session in lanes and one.what in (*COPIES, *MARKS)]
    for happening in drawn[-EVENTS_DRAWN_MAX:]:
        parts = [format_bytes(happening.nbytes)] if happening.nbytes else []
        parts += [format_seconds(happening.seconds)] if happening.seconds is not None else []
        common = (WHAT[happening.what], ", ".join(parts), readable(happening.reason))
        lane, at = lanes[happening.session], happening.at_s * 1e3
        if happening.what in COPIES:
            began = at - 1e3 * (happening.seconds or 0.0)
            _append(copies, (lane, began, at, COPIES[happening.what], *common))
        else:
            _append(marks, (lane, at, *MARKS[happening.what], *common))
    return copies, marks


def _append(columns: Columns, values: tuple[object, ...]) -> None:
    for name, value in zip(columns, values, strict=True):
        columns[name].append(value)


def lanes_legend() -> str:
    """States, copies and marks with their colours and shapes."""
    shown = [state for state in STATES if state != "none"]
    keys = [(f"<i style='background:{MEMORY_COLOURS[state]}'></i>", STATES[state]) for state in shown]
    keys += [
        (f"<i style='background:{colour};width:3px'></i>", WHAT[what]) for what, colour in COPIES.items()
    ]
    marks = {**MARKS, "lost": MARKS["lost"]}
    keys += [
        (f"<b style='color:{colour}'>{_GLYPHS[shape]}</b>", WHAT[what])
        for what, (shape, colour) in marks.items()
    ]
    items = "".join(f"<span class='key'>{mark}{words}</span>" for mark, words in keys)
    return f"<div class='legend marks' aria-label='Colours and shapes of the lanes'>{items}</div>"


class MemoryLanes:
    """Draw sessions as lanes, sending only what changed: a state that lasts is drawn once, and the window
    advances."""

    def __init__(self, look: Look) -> None:
        self.spans = ColumnDataSource(
            {name: [] for name in ("lane", "left", "right", "colour", "state", "took")}
        )
        self.copies = ColumnDataSource(event_columns([], {})[0])
        self.marks = ColumnDataSource(event_columns([], {})[1])
        self.left_out = 0
        """Happenings of the window that are not drawn, since there are too many."""
        self._drawn: tuple[int, float, tuple[str, ...]] | None = None
        self.figure = self._new_figure(look)
        self.view = pn.pane.Bokeh(self.figure, sizing_mode="stretch_width", margin=0)

    def _new_figure(self, look: Look) -> figure:
        plot = new_figure(
            look,
            height=120,
            x_range=Range1d(0, 1),
            y_range=FactorRange(),
            tools="save",
            x_axis_type="datetime",
        )
        plot.ygrid.visible = False
        plot.yaxis.major_tick_line_color = None
        common = {"y": "lane", "left": "left", "right": "right", "fill_color": "colour"}
        spans = plot.hbar(**common, height=0.72, source=self.spans, line_color=None, fill_alpha=0.6)
        copies = plot.hbar(**common, height=0.72, source=self.copies, line_color="colour", line_width=1.5)
        marks = plot.scatter(
            "at",
            "lane",
            source=self.marks,
            marker="shape",
            color="colour",
            size=7,
            line_color=look.text,
            line_width=0.6,
        )
        plot.add_tools(
            HoverTool(renderers=[spans], tooltips=[("", "@lane"), ("state", "@state"), ("", "@took")]),
            HoverTool(
                renderers=[copies, marks],
                tooltips=[("", "@lane"), ("", "@what"), ("", "@detail"), ("why", "@reason")],
            ),
        )
        return plot

    def update(self, memory: MemoryView, history: MemoryHistory, window_s: float, chosen: str) -> None:
        """Draw the last ``window_s`` seconds."""
        low_s = memory.now - window_s
        self.figure.x_range.update(start=low_s * 1e3, end=memory.now * 1e3)
        happenings = history.happenings(low_s)
        sessions = lane_sessions(memory, chosen, {happening.session for happening in happenings})
        key = (history.version, window_s, tuple(session.session for session in sessions))
        if key == self._drawn:
            return
        self._drawn = key
        lanes = {session.session: session.label for session in sessions}
        factors = [session.label for session in reversed(sessions)]
        if list(self.figure.y_range.factors) != factors:
            self.figure.y_range.factors = factors
            self.figure.height = 46 + LANE_PX * max(3, len(factors))
        spans = {lane: history.spans(session, low_s) for session, lane in lanes.items()}
        self.spans.data = span_columns(spans, low_s, memory.now)
        self.copies.data, self.marks.data = event_columns(happenings, lanes, functools.cache(memory.readable))
        self.left_out = max(0, sum(one.session in lanes for one in happenings) - EVENTS_DRAWN_MAX)
