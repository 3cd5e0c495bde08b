"""Device use by account over the last minutes, and its Jain's index, as charts."""

from __future__ import annotations

from collections.abc import Sequence

import panel as pn
from bokeh.models import ColumnDataSource, HoverTool, Legend, LegendItem, Range1d
from bokeh.plotting import figure

from djinn_lab.dashboard.queueing.history import RecentUse
from djinn_lab.dashboard.widgets.series import drawn
from djinn_lab.dashboard.widgets.theme import DEVICE_COLOURS, Look, new_figure

LINES_MAX = len(DEVICE_COLOURS)
SHOWN_S_MIN = 60.0
"""The chart spans no less, however little is known yet."""


class FairnessChart:
    """A line for each of the heaviest accounts, in devices, and Jain's index below."""

    def __init__(self, look: Look) -> None:
        self.jain = ColumnDataSource({"at": [], "jain": []})
        self.lines = [ColumnDataSource({"at": [], "devices": [], "account": []}) for _ in range(LINES_MAX)]
        self.use_figure = self._new_use(look)
        self.jain_figure = self._new_jain(look)
        views = [
            pn.pane.Bokeh(plot, sizing_mode="stretch_width", margin=0)
            for plot in (self.use_figure, self.jain_figure)
        ]
        self.view = pn.Column(*views, sizing_mode="stretch_width", margin=0)
        self._drawn_at = 0.0

    def _new_use(self, look: Look) -> figure:
        plot = new_figure(
            look,
            height=190,
            x_axis_type="datetime",
            x_range=Range1d(0, SHOWN_S_MIN * 1e3),
            y_range=Range1d(0, 1),
            tools="save",
            y_axis_label="devices, last minute",
        )
        self._legend = Legend(orientation="horizontal", border_line_color=None, background_fill_alpha=0)
        self._legend.label_text_color = look.text
        plot.add_layout(self._legend, "above")
        self._glyphs = [
            plot.line("at", "devices", source=source, line_width=2, line_color=DEVICE_COLOURS[number])
            for number, source in enumerate(self.lines)
        ]
        hover = HoverTool(renderers=self._glyphs, tooltips=[("", "@account"), ("devices", "@devices{0.00}")])
        plot.add_tools(hover)
        return plot

    def _new_jain(self, look: Look) -> figure:
        plot = new_figure(
            look,
            height=120,
            x_axis_type="datetime",
            y_range=Range1d(0, 1.05),
            tools="save",
            x_range=self.use_figure.x_range,
            y_axis_label="Jain’s index",
        )
        line = plot.line("at", "jain", source=self.jain, line_width=2, line_color="#0072B2")
        plot.add_tools(HoverTool(renderers=[line], tooltips=[("Jain’s index", "@jain{0.000}")]))
        return plot

    def update(self, recent: Sequence[RecentUse]) -> None:
        """Send what is new."""
        if not recent or recent[-1].at == self._drawn_at:
            return
        self._drawn_at = recent[-1].at
        totals: dict[str, float] = {}
        for sample in recent:
            for account, devices in sample.devices.items():
                totals[account] = totals.get(account, 0.0) + devices
        heaviest = sorted((a for a, total in totals.items() if total > 0), key=lambda a: -totals[a])
        chosen = sorted(heaviest[:LINES_MAX])
        at_s = [sample.at for sample in recent]
        for number, source in enumerate(self.lines):
            if number >= len(chosen):
                source.data = {"at": [], "devices": [], "account": []}
                continue
            name = chosen[number]
            times, values = drawn(at_s, [sample.devices.get(name, 0.0) for sample in recent])
            source.data = {"at": times, "devices": values, "account": [name] * len(values)}
        shown = zip(chosen, self._glyphs, strict=False)
        self._legend.items = [LegendItem(label=account, renderers=[glyph]) for account, glyph in shown]
        known = [sample for sample in recent if sample.jain is not None]
        times, values = drawn([sample.at for sample in known], [sample.jain or 0.0 for sample in known])
        self.jain.data = {"at": times, "jain": values}
        highest = max((max(sample.devices.values(), default=0.0) for sample in recent), default=0.0)
        self.use_figure.y_range.end = max(1.0, 1.1 * highest)
        ends_at = recent[-1].at
        self.use_figure.x_range.update(
            start=min(recent[0].at, ends_at - SHOWN_S_MIN) * 1e3, end=ends_at * 1e3
        )
