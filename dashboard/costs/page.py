"""Cost model: what run times are predicted from, and how runs compare with their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import panel as pn

from djinn_lab.client.cost_sentences import spread_sentence, unpriced_sentence
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.costs.curve_chart import (
    CurveChart,
    CurvePoint,
    curve_sentence,
    dtype_colours,
    families_of,
    points_of,
)
from djinn_lab.dashboard.costs.runs_chart import SOURCE_COLOURS, SOURCES, RunsChart, runs_sentence
from djinn_lab.dashboard.costs.tables import (
    CHANGE_COLUMNS,
    CURVE_COLUMNS,
    FAMILY_COLUMNS,
    PROGRAM_COLUMNS,
    RUN_COLUMNS,
    RUNS_SHOWN_MAX,
    change_rows,
    curve_rows,
    curves_csv,
    device_cards,
    family_rows,
    model_sentences,
    program_rows,
    run_rows,
    runs_csv,
)
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import choice_bar, control_bar, download, select, toggle
from djinn_lab.dashboard.widgets.panes import empty_state, heading, html_pane, show_html, show_known
from djinn_lab.protocol.rest.costs import ComparedRun, CostView, DeviceCosts

FAMILY = "matmul"
BANDWIDTH_FAMILY = "copy"
ALL = "all"
_STACKED = "@media (max-width: 900px) { :host { display: flex !important; flex-direction: column; } }"
"""Side by side, but not on a narrow screen."""
NOT_MEASURED = empty_state(
    "No device is measured yet",
    "The pool measures each kind of device once, when it has been idle for a moment. Until then nothing is "
    "predicted from graphs.",
)
NO_RUNS = empty_state(
    "No run has been compared yet",
    "Paste this into a notebook, twice: the second run is predicted from the first.",
    "%load_ext djinn_lab\n\n%%djinn\nimport torch\nx = torch.randn(1000, 1000)\nprint((x @ x).mean())",
)


class CostsPage:
    """State: the address holds device, family, and what the predictions came from."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._snapshot = Snapshot()
        self._drawn: tuple[object, ...] | None = None
        self._curves_drawn: tuple[object, ...] | None = None
        self._filling = False
        self.products = CurveChart(board.look)
        self.bandwidth = CurveChart(board.look, marked=True)
        self.scatter = RunsChart(board.look)
        self.products_table = _table(CURVE_COLUMNS, "Probes of the family", visible=False)
        self.bandwidth_table = _table(CURVE_COLUMNS, "Probes of copies", visible=False)
        self.runs_table = _table(RUN_COLUMNS, "Runs and their predictions", visible=False)
        self.programs = _table(PROGRAM_COLUMNS, "Programs")
        self.families = _table(FAMILY_COLUMNS, "Families of ops")
        self.changes = _table(CHANGE_COLUMNS, "Measurements and corrections")
        self._build_controls()
        self._build_view()

    def _build_controls(self) -> None:
        source = self._board.route.get("source")
        self.device = select("Device", [""], width=160)
        self.family = select("Family of ops", [FAMILY], width=220)
        self.curves_as_table = toggle("View as table", align="end")
        self.curves_csv = download("CSV of curves", "cost-curves.csv", self._curves_csv, align="end")
        self.source = choice_bar(
            {"All": ALL, "From earlier runs": "runs", "From graphs": "graph"},
            source if source in SOURCES else ALL,
        )
        self.runs_as_table = toggle("View as table")
        self.runs_csv = download("CSV of runs", "cost-runs.csv", self._runs_csv)
        for control in (self.device, self.family, self.source, self.curves_as_table, self.runs_as_table):
            control.param.watch(lambda event: self._board.background.soon(self._choices_changed), "value")

    def _build_view(self) -> None:
        full: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
        self._heading = html_pane(margin=(0, 0, 10, 0))
        self.cards = html_pane(margin=(0, 0, 8, 0))
        self._runs_heading = html_pane(margin=(18, 0, 6, 0))
        self._no_curves = html_pane(NOT_MEASURED, visible=False)
        self._no_runs = html_pane(NO_RUNS, visible=False)
        self._unpriced = html_pane(margin=(16, 0, 0, 0))
        self._curves_part, self._runs_part = self._curves_view(), self._runs_view()
        self._live = pn.Column(
            self._heading,
            self.cards,
            _titled("Measured curves", "How fast calls of each size run on a device."),
            self._no_curves,
            self._curves_part,
            self._runs_heading,
            self._no_runs,
            self._runs_part,
            _titled(
                "Families of ops",
                "Ops of sampled runs beside the measured curves: 2 × the curve is twice as long as "
                "measured alone.",
            ),
            self.families,
            self._unpriced,
            _titled("Drift and measurements", "When devices were measured, and runs corrected a curve."),
            self.changes,
            visible=False,
            **full,
        )
        self.families.empty = "No run was sampled yet: on CPU devices, runs are looked at now and then"
        self.changes.empty = "Nothing was measured or corrected since the pool started"
        self._missing = html_pane()
        self.view = pn.Column(self._missing, self._live, **full)

    def _curves_view(self) -> pn.Column:
        full: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
        self._products_heading, self._bandwidth_heading = html_pane(margin=0), html_pane(margin=0)
        self._products_legend = html_pane(margin=(4, 0, 0, 0))
        self._bandwidth_legend = html_pane(margin=(4, 0, 0, 0))
        products = pn.Column(
            self._products_heading,
            self._products_legend,
            self.products.view,
            self.products_table,
            sizing_mode="stretch_width",
            margin=(0, 16, 0, 0),
        )
        bandwidth = pn.Column(
            self._bandwidth_heading, self._bandwidth_legend, self.bandwidth.view, self.bandwidth_table, **full
        )
        controls = (self.device, self.family, self.curves_as_table, self.curves_csv)
        return pn.Column(
            control_bar(*controls),
            pn.GridBox(products, bandwidth, ncols=2, stylesheets=[_STACKED], **full),
            **full,
        )

    def _runs_view(self) -> pn.Column:
        return pn.Column(
            control_bar(self.source, self.runs_as_table, self.runs_csv),
            html_pane(_legend({SOURCES[source]: colour for source, colour in SOURCE_COLOURS.items()})),
            self.scatter.view,
            self.runs_table,
            _titled("Programs", "How far each one’s runs were from their predictions."),
            self.programs,
            sizing_mode="stretch_width",
            margin=0,
        )

    def enter(self) -> None:
        """Called when the page is shown: follow the address."""
        source = self._board.route.get("source")
        self._filling = True
        self.source.value = source if source in SOURCES else ALL
        self._filling = False
        self._drawn = self._curves_drawn = None

    def update(self, snapshot: Snapshot) -> None:
        """Bring the page up to the snapshot, sending only what changed."""
        self._snapshot = snapshot
        self._board.hub.want_costs()
        view = snapshot.costs
        waiting = heading("Cost model", "Asking the pool.")
        if not show_known(self._live, self._missing, snapshot, view, waiting):
            return
        assert view is not None
        spread = [spread_sentence(view)] if view.runs else []
        summary = " ".join([*spread, *model_sentences(view)])
        show_html(self._heading, heading("Cost model", summary))
        show_html(self.cards, device_cards(view, snapshot.connection != "live"))
        show_html(self._unpriced, heading("Ops without a price", unpriced_sentence(view)))
        self.families.show(family_rows(view))
        self.changes.show(change_rows(view))
        self._show_curves(view)
        self._show_runs(view)

    def _show_curves(self, view: CostView) -> None:
        measured = [device for device in view.devices if device.kind in view.curves]
        self._no_curves.visible, self._curves_part.visible = not measured, bool(measured)
        if not measured:
            return
        device = self._chosen_device(measured)
        curves = view.curves[device.kind]
        families = families_of(curves)
        wanted = self._board.route.get("family", FAMILY)
        family = wanted if wanted in families else FAMILY
        self._fill(self.device, [one.device for one in measured], device.device)
        self._fill(self.family, list(families), family)
        drawn = (device.device, family, curves.digest, self.curves_as_table.value, device.families)
        if drawn == self._curves_drawn:
            return
        self._curves_drawn = drawn
        products, copies = points_of(curves, family), points_of(curves, BANDWIDTH_FAMILY)
        self.products.show(products, family)
        self.bandwidth.show(copies, BANDWIDTH_FAMILY, device.link_bytes_per_s or None)
        show_html(self._products_heading, heading(family, _said(products, family, device)))
        show_html(self._bandwidth_heading, heading("Bandwidth", _said(copies, BANDWIDTH_FAMILY, device)))
        show_html(self._products_legend, _legend(dtype_colours(products)))
        link = {"link to the host (dashed)": "#D55E00"} if device.link_bytes_per_s else {}
        show_html(self._bandwidth_legend, _legend(dtype_colours(copies) | link))
        self._show_twins(products, family, copies)

    def _show_twins(self, products: Sequence[CurvePoint], family: str, copies: Sequence[CurvePoint]) -> None:
        as_table = bool(self.curves_as_table.value)
        for chart, table, points, name in (
            (self.products, self.products_table, products, family),
            (self.bandwidth, self.bandwidth_table, copies, BANDWIDTH_FAMILY),
        ):
            chart.view.visible, table.visible = not as_table, as_table
            table.show(curve_rows(points, name) if as_table else [])

    def _chosen_device(self, measured: Sequence[DeviceCosts]) -> DeviceCosts:
        wanted = self._board.route.get("device")
        return next((device for device in measured if device.device == wanted), measured[0])

    def _show_runs(self, view: CostView) -> None:
        self._no_runs.visible, self._runs_part.visible = not view.runs, bool(view.runs)
        runs = [run for run in view.runs if self.source.value in (ALL, run.source)]
        cells = {job.job: job.cell for job in self._snapshot.jobs}
        drawn = (len(runs), runs[-1] if runs else None, self.source.value, self.runs_as_table.value)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        words = runs_sentence(runs) if runs or not view.runs else "No prediction came from there."
        show_html(self._runs_heading, heading("Predicted and measured", words))
        self.scatter.show(runs, cells)
        self.programs.show(program_rows(runs, cells))
        self._show_runs_twin(runs, cells)

    def _show_runs_twin(self, runs: Sequence[ComparedRun], cells: dict[str, str]) -> None:
        as_table = bool(self.runs_as_table.value)
        self.scatter.view.visible, self.runs_table.visible = not as_table, as_table
        left_out = len(runs) - RUNS_SHOWN_MAX
        note = f"The newest {RUNS_SHOWN_MAX} of {len(runs)}; the CSV has all" if left_out > 0 else ""
        self.runs_table.show(run_rows(runs, cells) if as_table else [], note if as_table else "")

    def _fill(self, widget: pn.widgets.Select, options: list[str], value: str) -> None:
        self._filling = True
        if widget.options != options:
            widget.param.update(options=options, value=value)
        elif widget.value != value:
            widget.value = value
        self._filling = False

    def _choices_changed(self) -> None:
        if self._filling:
            return
        device, family = self.device.value, self.family.value
        self._board.route.update(
            source=None if self.source.value == ALL else self.source.value,
            device=device if device in self.device.options[1:] else None,
            family=None if family == FAMILY else family,
        )
        self.update(self._snapshot)

    def _runs_csv(self) -> BytesIO:
        return BytesIO(runs_csv(self._snapshot.costs).encode())

    def _curves_csv(self) -> BytesIO:
        return BytesIO(curves_csv(self._snapshot.costs).encode())


def _table(table_columns: list[dict[str, str]], label: str, **options: Any) -> LiveTable:
    return LiveTable(columns=table_columns, label=label, sizing_mode="stretch_width", **options)


def _said(points: Sequence[CurvePoint], family: str, device: DeviceCosts) -> str:
    factor = next((one.factor for one in device.families if one.family == family), 1.0)
    return curve_sentence(points, family, device.device, factor)


def _titled(title: str, sentence: str) -> pn.pane.HTML:
    return html_pane(heading(title, sentence), margin=(16, 0, 6, 0))


def _legend(colours: dict[str, str]) -> str:
    """Return names with their colours, as HTML."""
    keys = (f'<i style="background:{colour}"></i>{name}' for name, colour in colours.items())
    return f"""<div class="legend">{"".join(f'<span class="key">{key}</span>' for key in keys)}</div>"""
