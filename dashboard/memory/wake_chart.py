"""How long wake-ups took, as multiples of what copying the bytes takes at least."""

from __future__ import annotations

from bisect import bisect_right

import panel as pn
from bokeh.models import ColumnDataSource, FactorRange, HoverTool, Label, Range1d, Span
from bokeh.plotting import figure

from djinn_lab.dashboard.widgets.theme import BAD_COLOUR, Look, new_figure
from djinn_lab.memory.snapshot import WakeUps
from djinn_lab.units import format_seconds

EDGES = (0.0, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Lower edges of the bars, after the one of those that waited for no copy. Below 1 lies only what the link's
measured rate is off by."""
LABELS = ("no copy", "< 1", "1–1.1", "1.1–1.25", "1.25–1.5", "1.5–2", "2–3", "3–5", "5–10", "> 10")


def ratio_counts(wakes: WakeUps) -> list[int]:
    """Count the recent wake-ups under each of :data:`LABELS`."""
    counts = [0] * len(LABELS)
    for ratio in wakes.recent_ratios:
        counts[bisect_right(EDGES, ratio) if ratio > 0 else 0] += 1
    return counts


def wake_sentence(wakes: WakeUps) -> str:
    """Summarise the chart in one sentence."""
    counts = ratio_counts(wakes)
    total = sum(counts)
    if not total:
        return "No session has woken up yet: a session wakes when it computes again after it was idle."
    late = sum(counts[LABELS.index("2–3") :])
    longest = format_seconds(max(wakes.recent_s, default=0.0))
    return (
        f"Of the last {total:,}, {counts[0] / total:.0%} waited for no copy and {late / total:.1%} took more "
        f"than twice as long as the best possible copy; the longest took {longest}."
    )


class WakeChart:
    """A histogram with the best possible copy at 1."""

    def __init__(self, look: Look) -> None:
        self.source = ColumnDataSource(
            {"label": list(LABELS), "count": [0] * len(LABELS), "share": [""] * len(LABELS)}
        )
        self.figure = self._new_figure(look)
        self.view = pn.pane.Bokeh(self.figure, sizing_mode="stretch_width", margin=0)

    def _new_figure(self, look: Look) -> figure:
        plot = new_figure(
            look,
            height=210,
            x_range=FactorRange(*LABELS),
            y_range=Range1d(0, 1),
            tools="save",
            x_axis_label="wake-up / best possible copy (bytes over the link’s rate)",
            y_axis_label="wake-ups",
        )
        plot.xgrid.visible = False
        late = LABELS.index("2–3")
        colours = ["#009E73"] + ["#56B4E9"] * (late - 1) + ["#E69F00"] * (len(LABELS) - late)
        self.source.data["colour"] = colours
        bars = plot.vbar(
            "label", top="count", width=0.86, source=self.source, fill_color="colour", line_color=None
        )
        plot.add_tools(
            HoverTool(renderers=[bars], tooltips=[("", "@label"), ("wake-ups", "@count (@share)")])
        )
        goal = Span(
            location=2.0, dimension="height", line_color=BAD_COLOUR, line_dash="dashed", line_width=1.6
        )
        plot.add_layout(goal)
        text = Label(
            x=2.04, y=128, y_units="screen", text="goal", text_color=BAD_COLOUR, text_font_size="11px"
        )
        plot.add_layout(text)
        return plot

    def update(self, wakes: WakeUps) -> None:
        """Send the counts, when they changed."""
        counts = ratio_counts(wakes)
        if counts == list(self.source.data["count"]):
            return
        total = sum(counts)
        shares = [f"{count / total:.1%}" if total else "" for count in counts]
        self.source.data = {**self.source.data, "count": counts, "share": shares}
        self.figure.y_range.end = max(1.0, 1.15 * max(counts))
