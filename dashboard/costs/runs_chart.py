"""Run times beside their predictions: a point for each run, the line of equality and two bands around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import panel as pn
from bokeh.models import ColumnDataSource, CustomJSTickFormatter, HoverTool, Range1d
from bokeh.plotting import figure

from djinn_lab.dashboard.widgets.theme import DEVICE_COLOURS, Look, new_figure
from djinn_lab.protocol.rest.costs import ComparedRun
from djinn_lab.units import counted, format_error, format_seconds

BANDS = (0.2, 0.4)
"""Shares of the prediction on either side of equality."""
SOURCES = {"runs": "earlier runs", "graph": "graph"}
"""What a prediction came from, in words."""
SOURCE_COLOURS = {"runs": DEVICE_COLOURS[2], "graph": DEVICE_COLOURS[1]}
_BAND_COLOUR = "#56B4E9"
_SECONDS_JS = """
if (tick >= 60) return `${+(tick / 60).toPrecision(3)} min`;
if (tick >= 1) return `${+tick.toPrecision(3)} s`;
if (tick >= 0.001) return `${+(tick * 1000).toPrecision(3)} ms`;
return `${+(tick * 1e6).toPrecision(3)} us`;
"""


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which ``part`` of them are, of at least one."""
    ordered = sorted(values)
    return ordered[round(part * (len(ordered) - 1))]


def runs_sentence(runs: Sequence[ComparedRun]) -> str:
    """Summarise the chart in one sentence."""
    if not runs:
        return (
            "No run has been compared with a prediction since the pool started: run a cell, then look here."
        )
    errors = [run.error for run in runs]
    inside = [sum(error <= band for error in errors) / len(errors) for band in BANDS]
    return (
        f"Of the last {counted(len(runs), 'run')}, {inside[0]:.0%} are within {BANDS[0]:.0%} of their "
        f"prediction and {inside[1]:.0%} within {BANDS[1]:.0%}; off by {format_error(median(errors))} in the "
        "median, "
        f"{format_error(percentile(errors, 0.9))} at the ninetieth percentile."
    )


def off_text(run: ComparedRun) -> str:
    """``+12%``: the run took longer than predicted."""
    return f"{run.ratio - 1:+.0%}"


class RunsChart:
    """Measured over predicted seconds on two logarithmic axes of one span."""

    def __init__(self, look: Look) -> None:
        names = ("x", "y", "colour", "cell", "device", "source", "predicted", "measured", "off")
        self.points = ColumnDataSource({name: [] for name in names})
        self.bands = [ColumnDataSource({"x": [], "low": [], "high": []}) for _ in BANDS]
        self.equal = ColumnDataSource({"x": [], "y": []})
        self.figure = self._new_figure(look)
        self.view = pn.pane.Bokeh(self.figure, sizing_mode="stretch_width", margin=0)

    def _new_figure(self, look: Look) -> figure:
        plot = new_figure(
            look,
            height=360,
            x_axis_type="log",
            y_axis_type="log",
            x_range=Range1d(0.001, 1),
            y_range=Range1d(0.001, 1),
            tools="xpan,ypan,wheel_zoom,reset,save",
            x_axis_label="predicted",
            y_axis_label="measured",
        )
        for axis in (*plot.xaxis, *plot.yaxis):
            axis.formatter = CustomJSTickFormatter(code=_SECONDS_JS)
        for source in reversed(self.bands):
            plot.varea("x", "low", "high", source=source, fill_color=_BAND_COLOUR, fill_alpha=0.16)
        plot.line("x", "y", source=self.equal, line_color=look.muted, line_dash="dashed", line_width=1.4)
        drawn = plot.scatter(
            "x", "y", source=self.points, size=8, fill_color="colour", line_color=look.surface, fill_alpha=0.8
        )
        tooltips = [
            ("", "@cell on @device"),
            ("predicted", "@predicted, from @source"),
            ("measured", "@measured (@off)"),
        ]
        plot.add_tools(HoverTool(renderers=[drawn], tooltips=tooltips))
        return plot

    def show(self, runs: Sequence[ComparedRun], cells: Mapping[str, str]) -> None:
        """Draw the runs. ``cells``: names of cells by job."""
        self.points.data = {
            "x": [run.predicted_s for run in runs],
            "y": [run.measured_s for run in runs],
            "colour": [SOURCE_COLOURS[run.source] for run in runs],
            "cell": [cells.get(run.job, run.job[:8]) for run in runs],
            "device": [run.device for run in runs],
            "source": [SOURCES[run.source] for run in runs],
            "predicted": [format_seconds(run.predicted_s) for run in runs],
            "measured": [format_seconds(run.measured_s) for run in runs],
            "off": [off_text(run) for run in runs],
        }
        seconds = [value for run in runs for value in (run.predicted_s, run.measured_s)]
        low, high = (min(seconds) / 2, max(seconds) * 2) if seconds else (0.001, 1.0)
        for source, band in zip(self.bands, BANDS, strict=True):
            ends = [low, high]
            lows, highs = ([end * (1 + sign * band) for end in ends] for sign in (-1, 1))
            source.data = {"x": ends, "low": lows, "high": highs}
        if [low, high] != self.equal.data["x"]:  # else a zoomed view stays
            self.equal.data = {"x": [low, high], "y": [low, high]}
            for span in (self.figure.x_range, self.figure.y_range):
                span.update(start=low, end=high, reset_start=low, reset_end=high)
