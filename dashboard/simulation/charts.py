"""How simulated policies went over time, and how long jobs took under each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import NamedTuple

import panel as pn
from bokeh.models import ColumnDataSource, GlyphRenderer, HoverTool
from bokeh.plotting import figure

from djinn_lab.dashboard.widgets.panes import html_pane, show_html
from djinn_lab.dashboard.widgets.theme import DEVICE_COLOURS, Look, duration_ticks, new_figure
from djinn_lab.simulator.queue.result_file import QueueResult
from djinn_lab.simulator.queue.run import Course, QueueRun

DASHES = ("solid", "dashed", "dotted")


class Line(NamedTuple):
    colour: str
    dash: str


def line_of(number: int) -> Line:
    """Return the look of a run's lines, by its position in the file; no two of eighteen look the same."""
    colours = len(DEVICE_COLOURS)
    return Line(DEVICE_COLOURS[number % colours], DASHES[number // colours % len(DASHES)])


class SimulationCharts:
    """Three charts over the runs of one result: devices held and jobs waiting over time, and which part of
    the jobs was completed within which time."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._drawn: dict[str, list[GlyphRenderer]] = {}
        self.legend = html_pane(margin=(8, 0, 6, 0))
        self.plots = pn.Column(sizing_mode="stretch_width", margin=0)
        self.view = pn.Column(self.legend, self.plots, sizing_mode="stretch_width", margin=0)

    def show(self, result: QueueResult, pool: str) -> None:
        """Draw another result. ``pool``: whose course over time is drawn."""
        held, waiting = self._over_time("devices held"), self._over_time("jobs waiting")
        waiting.x_range = held.x_range
        within = self._plot("part of the jobs", x_axis_type="log", x_axis_label="from submission to end")
        self._drawn = {}
        begin_s = min((run.courses[pool].times_s[0] for run in result.runs if _known(run, pool)), default=0.0)
        for number, run in enumerate(result.runs):
            policy, line = run.figures.policy, line_of(number)
            drawn = self._drawn[policy] = []
            if _known(run, pool):
                course = run.courses[pool]
                times = [time_s - begin_s for time_s in course.times_s]
                drawn.append(_draw(held, times, course.devices_held, policy, line))
                drawn.append(_draw(waiting, times, course.waiting, policy, line))
            drawn.append(_draw(within, *completed_within(run), policy, line))
        lines = {run.figures.policy: line_of(number) for number, run in enumerate(result.runs)}
        show_html(self.legend, _legend_html(lines))
        self.plots.objects = [
            pn.pane.Bokeh(plot, sizing_mode="stretch_width", margin=(0, 0, 8, 0))
            for plot in (held, waiting, within)
        ]

    def highlight(self, policy: str) -> None:
        """Dim the other policies; an unknown name dims none."""
        for name, drawn in self._drawn.items():
            behind = policy in self._drawn and name != policy
            for line in drawn:
                line.glyph.line_alpha = 0.18 if behind else 1.0
                line.glyph.line_width = 2.4 if name == policy else 1.8

    def _over_time(self, label: str) -> figure:
        return self._plot(label, x_axis_label="since the first submission")

    def _plot(self, label: str, **options: object) -> figure:
        plot = new_figure(
            self._look, height=210, tools="xpan,xwheel_zoom,reset,save", y_axis_label=label, **options
        )
        plot.y_range.start = 0
        plot.xaxis.formatter = duration_ticks()
        return plot


def completed_within(run: QueueRun) -> tuple[list[float], list[float]]:
    """Return times in seconds, and which part of the kept jobs was done within each."""
    times = sorted(max(1.0, job.ended_s - job.submitted_s) for job in run.jobs)
    parts = [count / len(times) for count in accumulate(1 for _ in times)]
    return times, parts


def _known(run: QueueRun, pool: str) -> bool:
    course: Course | None = run.courses.get(pool)
    return course is not None and bool(course.times_s)


def _draw(plot: figure, x: Sequence[float], y: Sequence[float], policy: str, line: Line) -> GlyphRenderer:
    source = ColumnDataSource({"x": list(x), "y": list(y), "policy": [policy] * len(x)})
    drawn = plot.line("x", "y", source=source, line_width=1.8, line_color=line.colour, line_dash=line.dash)
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=[("", "@policy"), (plot.yaxis[0].axis_label, "@y")]))
    return drawn


def _legend_html(lines: Mapping[str, Line]) -> str:
    """Return the policies beside their lines; unlike a legend of Bokeh, it breaks in a narrow window."""
    items = "".join(
        f'<span class="key"><i class="line" style="border-top:2px {line.dash} {line.colour}"></i>'
        f"{escape(policy)}</span>"
        for policy, line in lines.items()
    )
    return f'<div class="legend" aria-label="Lines of the policies">{items}</div>'
