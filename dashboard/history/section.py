"""A part of the page History: a chart with its sentence, its table and its files."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import panel as pn

from djinn_lab.dashboard.history.charts import HistoryChart
from djinn_lab.dashboard.history.tables import BucketTable
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import control_bar, download, toggle
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.dashboard.widgets.theme import colour_legend


class HistorySection:
    """``csv``: the text of the file. ``table``: that of what is drawn, made when it is wanted."""

    def __init__(
        self,
        title: str,
        chart: HistoryChart,
        filename: str,
        csv: Callable[[], str],
        *controls: pn.viewable.Viewable,
    ) -> None:
        self.title, self.chart = title, chart
        self._make_table: Callable[[], BucketTable] | None = None
        self.as_table = toggle("View as table", align="end")
        self.csv = download(f"CSV of {title.lower()}", filename, lambda: BytesIO(csv().encode()), align="end")
        self.table = LiveTable(label=title, visible=False, sizing_mode="stretch_width")
        self._heading, self._legend = html_pane(margin=(18, 0, 6, 0)), html_pane(margin=(0, 0, 4, 0))
        self.view = pn.Column(
            self._heading,
            control_bar(*controls, self.as_table, self.csv),
            self._legend,
            chart.view,
            self.table,
            sizing_mode="stretch_width",
            margin=0,
        )

    def show(self, sentence: str, make_table: Callable[[], BucketTable]) -> None:
        """Show what the chart was given."""
        self._make_table = make_table
        show_html(self._heading, heading(self.title, sentence))
        show_html(self._legend, colour_legend(self.chart.legend.items(), f"Colours: {self.title}"))
        self.switch()

    def switch(self) -> None:
        """Show the chart, or its table."""
        as_table = bool(self.as_table.value)
        self.chart.view.visible = self._legend.visible = not as_table
        self.table.visible = as_table
        if as_table and self._make_table is not None:
            made = self._make_table()
            if made.columns != self.table.columns:
                self.table.columns = made.columns
            self.table.show(made.rows)
