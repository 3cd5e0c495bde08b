"""Used memory of every device over time, streamed; Pause keeps the view while samples still arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import panel as pn
from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    CustomJSTickFormatter,
    HoverTool,
    Legend,
    Range1d,
)
from bokeh.plotting import figure

from djinn_lab.dashboard.hub import HISTORY_MAX, MemorySample
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import toggle
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.dashboard.widgets.series import drawn
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.dashboard.widgets.theme import DEVICE_COLOURS, Look, new_figure
from djinn_lab.protocol.rest.status import PoolStatus
from djinn_lab.units import format_bytes

WINDOW_S = 120.0
_BYTES_JS = "return tick >= 1024 ? `${+(tick / 1024).toFixed(2)} GiB` : `${+tick.toFixed(2)} MiB`"
_MIB = 2**20


class MemoryChart:
    """``version`` is that of the newest sample drawn."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self.version = -1
        self.sources: dict[str, ColumnDataSource] = {}
        self._pool = ""
        self._limits: dict[str, int] = {}
        self._last: dict[str, tuple[float, float]] = {}
        self.follow = toggle("Following", value=True)
        self.as_table = toggle("View as table", value=False, margin=0)
        self.table = LiveTable(
            columns=columns(
                ("device", "Device", "short"),
                ("now", "Used now", "number"),
                ("peak", "Most in view", "number"),
                ("limit", "Limit", "number"),
            ),
            label="Memory of each device",
            visible=False,
            sizing_mode="stretch_width",
        )
        self._heading = html_pane(margin=0)
        self.figure = self._new_figure()
        self._pane = pn.pane.Bokeh(self.figure, sizing_mode="stretch_width", margin=0)
        buttons = pn.Row(self.follow, self.as_table, margin=0, align="end")
        bar = pn.Row(self._heading, buttons, sizing_mode="stretch_width", margin=(18, 0, 6, 0))
        self.view = pn.Column(bar, self._pane, self.table, sizing_mode="stretch_width", margin=0)
        self.follow.param.watch(lambda event: self._follow_changed(), "value")
        self.as_table.param.watch(lambda event: self._table_toggled(), "value")

    def _new_legend(self) -> Legend:
        return Legend(
            location="top_left",
            orientation="horizontal",
            background_fill_color=self._look.surface,
            background_fill_alpha=0.7,
            border_line_color=None,
            label_text_color=self._look.text,
            label_text_font_size="11px",
        )

    def _new_figure(self) -> figure:
        plot = new_figure(
            self._look,
            height=210,
            x_range=Range1d(0, 1000 * WINDOW_S),
            y_range=Range1d(0, 1),
            tools="xpan,xwheel_zoom,reset,save",
            x_axis_type="datetime",
            y_axis_label="used",
        )
        plot.add_layout(self._new_legend())  # a browser that lays the plot out anew needs its view then
        plot.yaxis.formatter = CustomJSTickFormatter(code=_BYTES_JS)
        plot.yaxis.ticker = AdaptiveTicker(base=2, mantissas=[1], desired_num_ticks=4)
        return plot

    def update(self, status: PoolStatus, samples: Sequence[MemorySample]) -> None:
        """Stream samples newer than those drawn; another pool starts afresh."""
        if status.pool != self._pool:
            self._restart(status)
        self._limits = {device.device: device.memory_bytes for device in status.devices}
        fresh = [sample for sample in samples if sample.pool == self._pool]
        if not fresh:
            return
        for position, device in enumerate(status.devices):
            source = self.sources.get(device.device) or self._add_device(device.device, position)
            used = [sample.used_bytes.get(device.device, 0) / _MIB for sample in fresh]
            times, points = drawn([sample.at for sample in fresh], used, self._last.get(device.device))
            self._last[device.device] = (fresh[-1].at, used[-1])
            source.stream({"time": times, "used": points}, rollover=HISTORY_MAX)
        self.version = fresh[-1].version
        if self.follow.value:
            self._show_window(fresh[-1].at)
        self._describe()

    def _restart(self, status: PoolStatus) -> None:
        self._pool = status.pool
        self.version = -1
        self._last.clear()
        for source in self.sources.values():
            source.data = {"time": [], "used": []}

    def _add_device(self, device: str, position: int) -> ColumnDataSource:
        source = ColumnDataSource({"time": [], "used": []}, name=device)
        colour = DEVICE_COLOURS[position % len(DEVICE_COLOURS)]
        dash = "solid" if position < len(DEVICE_COLOURS) else "dashed"
        self.figure.varea("time", 0, "used", source=source, fill_color=colour, fill_alpha=0.12)
        line = self.figure.line(
            "time",
            "used",
            source=source,
            color=colour,
            line_width=2,
            line_dash=dash,
            legend_label=device,
        )
        self.figure.add_tools(
            HoverTool(
                renderers=[line],
                tooltips=[("", device), ("used", "@used{0.0} MiB"), ("at", "@time{%H:%M:%S}")],
                formatters={"@time": "datetime"},
                mode="vline",
            )
        )
        self.sources[device] = source
        return source

    def _show_window(self, now: float) -> None:
        self.figure.x_range.update(start=(now - WINDOW_S) * 1000, end=now * 1000)
        top = max((_most(source.data["used"]) for source in self.sources.values()), default=0.0)
        wanted = max(8.0, top * 1.25)
        if not 0.7 * wanted <= self.figure.y_range.end <= 1.3 * wanted:
            self.figure.y_range.end = wanted

    def _follow_changed(self) -> None:
        self.follow.label = "Following" if self.follow.value else "Paused"

    def _table_toggled(self) -> None:
        self.table.visible = self.as_table.value
        self._pane.visible = not self.as_table.value

    def _describe(self) -> None:
        shown = {
            name: source.data["used"] for name, source in self.sources.items() if len(source.data["used"])
        }
        now = {name: used[-1] * _MIB for name, used in shown.items()}
        peaks = {name: _most(used) * _MIB for name, used in shown.items()}
        limits = {name: self._limits.get(name, 0) for name in now}
        parts = [f"{name} uses {format_bytes(now[name])} of {format_bytes(limits[name])}" for name in now]
        show_html(self._heading, heading("Memory over time", "; ".join(parts) + "." if parts else ""))
        self.table.show(
            [
                {
                    "id": name,
                    "device": name,
                    "now": {"text": format_bytes(used), "sort": used},
                    "peak": {"text": format_bytes(peaks[name]), "sort": peaks[name]},
                    "limit": {"text": format_bytes(limits[name]), "sort": limits[name]},
                }
                for name, used in now.items()
            ]
        )


def _most(used: Iterable[float]) -> float:
    return max((value for value in used if value == value), default=0.0)  # gaps are NaN
