"""Charts over a time of the pool. All share their time axis, and show when no pool served."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import nan

import panel as pn
from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    DatetimeTickFormatter,
    GlyphRenderer,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
)

from djinn_lab.dashboard.history.series import ALL_DEVICES, OTHERS, Line, Share, down_times, moment
from djinn_lab.dashboard.widgets.theme import DEVICE_COLOURS, Look, duration_ticks, new_figure
from djinn_lab.protocol.rest.history import HistorySpan, PoolHistory
from djinn_lab.units import format_seconds

LINES_MAX = len(DEVICE_COLOURS) + 1
OTHERS_COLOUR = "#7F8C99"
DOWN = "no pool served"
LEFT_PX = 72
"""So much that the charts' frames stand below each other, whatever their axes say."""
SECONDS_BELOW_S = 5.0
"""Shorter waits are divided by tens, longer ones as clocks are."""
_TICKS = dict.fromkeys(("minutes", "hourmin", "hours"), "%H:%M") | dict.fromkeys(("days", "months"), "%d %b")


def axis_ms(at_s: float) -> float:
    """Return a moment as a place on a time axis, which is written by this machine's clock."""
    return (at_s + time.localtime(at_s).tm_gmtoff) * 1e3


def outline(span: HistorySpan, line: Line) -> tuple[list[float], list[float]]:
    """Return the points of a line with a step for each bucket. Where it has no value there is a gap: one
    bucket between two gaps is still seen."""
    times: list[float] = []
    values: list[float] = []
    for bucket, value in enumerate(line.values):
        times += [axis_ms(span.begins(bucket)), axis_ms(span.ends(bucket))]
        values += [nan if value is None else value] * 2
    return times, values


class HistoryChart:
    """The parts that all of these charts have. ``legend``: names with their colours, as last drawn."""

    def __init__(self, look: Look, label: str, x_range: Range1d, highest: float = 1.0) -> None:
        self.figure = new_figure(
            look,
            height=210,
            x_axis_type="datetime",
            x_range=x_range,
            y_range=Range1d(0, highest),
            tools="xpan,xwheel_zoom,reset,save",
            y_axis_label=label,
            min_border_left=LEFT_PX,
        )
        self.figure.xaxis.formatter = DatetimeTickFormatter(**_TICKS)
        self.down = ColumnDataSource({"left": [], "right": []})
        self.figure.vstrip(
            x0="left", x1="right", source=self.down, fill_color=look.muted, fill_alpha=0.13, line_color=None
        )
        self.legend: dict[str, str] = {}
        self.view = pn.pane.Bokeh(self.figure, sizing_mode="stretch_width", margin=0)

    def _show_down(self, history: PoolHistory) -> None:
        down = down_times(history)
        self.down.data = {
            "left": [axis_ms(begins) for begins, _ in down],
            "right": [axis_ms(ends) for _, ends in down],
        }
        if down:
            self.legend[DOWN] = f"{OTHERS_COLOUR}40"


class LinesChart(HistoryChart):
    """A line with steps for each name. ``show``: writes a value."""

    def __init__(
        self, look: Look, label: str, x_range: Range1d, show: Callable[[float], str], fixed: bool
    ) -> None:
        super().__init__(look, label, x_range, 1.02)
        self._show, self._fixed, self._together_colour = show, fixed, look.text
        if fixed:
            self.figure.yaxis.formatter = NumeralTickFormatter(format="0%")
        else:
            self.figure.yaxis.formatter = duration_ticks()
        empty: dict[str, list[object]] = {name: [] for name in ("x", "y", "name", "value", "at")}
        self.lines = [ColumnDataSource(dict(empty)) for _ in range(LINES_MAX)]
        self._glyphs: list[GlyphRenderer] = [
            self.figure.line("x", "y", source=source, line_width=1.8) for source in self.lines
        ]
        self.figure.add_tools(
            HoverTool(
                renderers=self._glyphs,
                tooltips=[("", "@name: @value"), ("from", "@at")],
                line_policy="nearest",
            )
        )

    def show(self, history: PoolHistory, lines: Sequence[Line]) -> None:
        """Draw lines, at most LINES_MAX."""
        self.legend = {}
        colours = iter(DEVICE_COLOURS)
        for number, (source, glyph) in enumerate(zip(self.lines, self._glyphs, strict=True)):
            line = lines[number] if number < len(lines) else Line("", ())
            times, values = outline(history, line)
            source.data = {
                "x": times,
                "y": values,
                "name": [line.name] * len(times),
                "value": ["" if value != value else self._show(value) for value in values],
                "at": [moment(history.begins(point // 2), history.bucket_s) for point in range(len(times))],
            }
            if line.name:
                colour = self._together_colour if line.name == ALL_DEVICES else next(colours)
                glyph.glyph.update(line_color=colour, line_width=2.6 if line.name == ALL_DEVICES else 1.8)
                self.legend[line.name] = colour
        if not self._fixed:
            highest = max((value for line in lines for value in line.values if value is not None), default=0)
            self.figure.y_range.end = 1.1 * highest or 1.0
            self.figure.yaxis.ticker = _duration_ticker(highest)
        self._show_down(history)


def _duration_ticker(highest_s: float) -> AdaptiveTicker:
    if highest_s < SECONDS_BELOW_S:
        return AdaptiveTicker(desired_num_ticks=5)
    return AdaptiveTicker(base=60, mantissas=[1, 2, 5, 10, 15, 30], desired_num_ticks=5)


class SharesChart(HistoryChart):
    """Stacked bars: how many devices each user or project used at a time, on average over a bucket."""

    def __init__(self, look: Look, x_range: Range1d) -> None:
        super().__init__(look, "devices used", x_range)
        names = ("left", "right", "bottom", "top", "colour", "name", "used", "at")
        self.bars = ColumnDataSource({name: [] for name in names})
        drawn = self.figure.quad(
            left="left",
            right="right",
            bottom="bottom",
            top="top",
            fill_color="colour",
            line_color=None,
            source=self.bars,
        )
        self.figure.add_tools(HoverTool(renderers=[drawn], tooltips=[("", "@name: @used"), ("from", "@at")]))

    def show(self, history: PoolHistory, shares: Sequence[Share]) -> None:
        """Draw shares, the largest at the bottom."""
        colours = dict(zip((share.name for share in shares), DEVICE_COLOURS, strict=False))
        if OTHERS in colours:
            colours[OTHERS] = OTHERS_COLOUR
        self.legend = colours
        data: dict[str, list[object]] = {name: [] for name in self.bars.data}
        highest = 0.0
        for bucket in range(history.count):
            begins, ends = history.begins(bucket), history.ends(bucket)
            level = 0.0
            for share in shares:
                if not share.device_s[bucket]:
                    continue
                top = level + share.device_s[bucket] / (ends - begins)
                row = {
                    "left": axis_ms(begins),
                    "right": axis_ms(ends),
                    "bottom": level,
                    "top": top,
                    "colour": colours[share.name],
                    "name": share.name,
                    "used": f"{format_seconds(share.device_s[bucket])} of devices",
                    "at": moment(begins, history.bucket_s),
                }
                for name, value in row.items():
                    data[name].append(value)
                level = top
            highest = max(highest, level)
        self.bars.data = data
        self.figure.y_range.end = 1.1 * highest or 1.0
        self._show_down(history)
