"""What the page Cost model draws and lists, from answers made by hand."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from typing import Any

import msgspec
import pytest
from cost_views import CURVES, KIND, costs, device

from djinn_lab.client.cost_sentences import unpriced_sentence
from djinn_lab.dashboard.background import Background
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.costs.curve_chart import (
    CurveChart,
    CurvePoint,
    curve_sentence,
    families_of,
    points_of,
    with_power,
)
from djinn_lab.dashboard.costs.page import CostsPage
from djinn_lab.dashboard.costs.runs_chart import RunsChart, runs_sentence
from djinn_lab.dashboard.costs.tables import (
    curve_rows,
    curves_csv,
    device_cards,
    family_rows,
    model_sentences,
    program_rows,
    runs_csv,
)
from djinn_lab.dashboard.hub import Hub, Snapshot
from djinn_lab.dashboard.route import Route
from djinn_lab.dashboard.widgets.theme import LIGHT
from djinn_lab.errors import PoolNotFound
from djinn_lab.protocol.rest.costs import CostView, DeviceCosts, EstimatorView
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.status import PoolStatus

VIEW = costs()


def snapshot(view: CostView | None = VIEW) -> Snapshot:
    jobs = (JobView(VIEW.runs[-1].job, cell="In [7]"),)
    return Snapshot(version=1, connection="live", status=PoolStatus("p"), jobs=jobs, costs=view)


@pytest.fixture
def board() -> Iterator[Board]:
    def find() -> Any:
        raise PoolNotFound("No pool is running", "djinn-lab pool start")

    hub = Hub(find)
    yield Board(hub, Route(), Background(hub.executor), LIGHT)
    hub.stop()


def test_curves_are_rates_by_dtype_and_lane() -> None:
    points = points_of(CURVES, "matmul")
    assert families_of(CURVES) == ("copy", "matmul", "pointwise", "softmax")
    chart = CurveChart(LIGHT, marked=True)
    chart.show(points, "matmul")
    assert sorted(zip(chart.points.data["x"], chart.points.data["y"], strict=True)) == [
        pytest.approx(pair) for pair in [(1e4, 1e9), (1e6, 1e10), (1e6, 1e10), (1e6, 2e10), (1e9, 5e10)]
    ]
    assert len(chart.lines.data["xs"]) == 3
    assert len(set(chart.points.data["colour"])) == 2
    assert not chart.mark.visible
    assert len(chart.lanes.data["text"]) == 3, "lines of one colour are told apart"
    close = [CurvePoint("float32", lane, 1e9, 1.0 + lane / 1e4) for lane in (64, 16)]
    chart.show([*points, *close], "matmul")
    assert "16, 64" in chart.lanes.data["text"], "labels that would overlap are one"
    assert "The number at a line is the shorter side of the product." in curve_sentence(
        points, "matmul", "cpu:0"
    )
    assert chart.figure.x_range.start < 1e4 < 1e9 < chart.figure.x_range.end
    chart.show(points_of(CURVES, "copy"), "copy", 1e9)
    assert (chart.mark.visible, chart.mark.location) == (True, 1e9)
    assert chart.figure.yaxis[0].axis_label == "bytes per second"
    [row] = curve_rows(points_of(CURVES, "softmax"), "softmax")
    assert row["work"] == {"text": "30 k elements", "sort": 3e4}
    assert with_power(512, "B") == "512 B"


def test_runs_lie_beside_the_line_of_equality_with_two_bands() -> None:
    chart = RunsChart(LIGHT)
    chart.show(VIEW.runs, {VIEW.runs[-1].job: "In [7]"})
    assert chart.points.data["y"] == [run.measured_s for run in VIEW.runs]
    assert chart.points.data["cell"][-1] == "In [7]"
    assert chart.points.data["off"][3:5] == ["+30%", "+400%"]
    low, high = chart.equal.data["x"]
    assert low < 0.09
    assert high > 0.5
    for source, band in zip(chart.bands, (0.2, 0.4), strict=True):
        assert source.data["low"] == pytest.approx([low * (1 - band), high * (1 - band)])
        assert source.data["high"] == pytest.approx([low * (1 + band), high * (1 + band)])
    assert runs_sentence(VIEW.runs).startswith("Of the last 6 runs, 67% are within 20% of their prediction")
    assert "83% within 40%" in runs_sentence(VIEW.runs)
    chart.figure.x_range.start = 0.2
    chart.show(VIEW.runs, {})
    assert chart.figure.x_range.start == 0.2, "new runs of the same extent leave a zoomed view as it is"


def test_programs_and_families_show_the_least_certain_first() -> None:
    worst, best = program_rows(VIEW.runs, {})
    assert (worst["id"], worst["runs"], best["id"], best["runs"]) == ("bb", 2, "aa", 4)
    assert best["error"] == {"text": "10%", "sort": pytest.approx(0.1)}
    assert best["p90"] == {"text": "30%", "sort": pytest.approx(0.3)}
    rows = family_rows(VIEW)
    assert [row["family"] for row in rows] == ["softmax", "matmul"]
    assert rows[0]["devices"] == "cpu:0, cpu:1"
    assert rows[1]["factor"] == {"text": "1.38 × the curve", "sort": 1.38}


def test_cards_say_what_is_measured_and_what_is_not() -> None:
    unknown = DeviceCosts("cuda:0", kind="<H200>", measuring=True)
    html = device_cards(msgspec.structs.replace(VIEW, devices=(device("cpu:0"), unknown)), stale=False)
    assert "36 GFLOP/s" in html
    assert "2 times since the pool started" in html
    assert "cuda:0 is being measured" in html
    assert "<H200>" not in html


def test_unpriced_ops_and_refused_answers_are_named() -> None:
    assert "special_bessel_j0 (2 runs) and histc (1 run)" in unpriced_sentence(VIEW)
    assert "No run" in unpriced_sentence(CostView())
    assert "had a price" in unpriced_sentence(CostView(runs=VIEW.runs))
    assert "built-in" in model_sentences(VIEW)[0]
    own = EstimatorView("mine", "my-package", 10, 7, 2, "it returned nan seconds", 0.0001)
    said = " ".join(model_sentences(msgspec.structs.replace(VIEW, estimator=own)))
    assert "Cost estimator mine of my-package: asked 10 times" in said
    assert "Refused 2 times" in said
    assert "it returned nan seconds" in said


def test_csv_has_every_run_and_every_probe() -> None:
    runs = list(csv.DictReader(StringIO(runs_csv(VIEW))))
    assert [float(row["measured_s"]) for row in runs] == [run.measured_s for run in VIEW.runs]
    assert float(runs[3]["error"]) == pytest.approx(0.3)
    probes = list(csv.DictReader(StringIO(curves_csv(VIEW))))
    assert len(probes) == 9
    assert {(row["kind"], row["dtype"]) for row in probes} == {(KIND, "float32"), (KIND, "bfloat16")}


def test_page_follows_the_address_and_writes_choices_into_it(board: Board) -> None:
    board.route.update(device="cpu:1", family="softmax", source="graph")
    page = CostsPage(board)
    page.enter()
    page.update(snapshot())
    assert (page.device.value, page.family.value, page.source.value) == ("cpu:1", "softmax", "graph")
    assert page.scatter.points.data["y"] == [0.5]
    assert "softmax on cpu:1" in page._products_heading.object
    page.source.value = "all"
    page.family.value = "matmul"
    assert (board.route.get("source"), board.route.get("family")) == ("", "")
    assert board.route.get("device") == "cpu:1"
    assert len(page.scatter.points.data["y"]) == 6
    assert "Runs took 1.38 times as long" in page._products_heading.object
    page.curves_as_table.value = page.runs_as_table.value = True
    assert (len(page.products_table.rows), len(page.bandwidth_table.rows)) == (5, 2)
    assert page.runs_table.rows[0]["cell"] == "In [7]"
    assert not page.scatter.view.visible
    assert [row["what"]["text"] for row in page.changes.rows] == ["corrected", "measured"]


def test_page_without_pool_measurement_or_runs_says_what_to_do(board: Board) -> None:
    page = CostsPage(board)
    page.update(board.hub.poll())
    assert "djinn-lab pool start" in page._missing.object
    assert not page._live.visible
    page.update(snapshot(None))
    assert "Asking the pool." in page._missing.object
    page.update(snapshot(CostView(devices=(DeviceCosts("cpu:0"),))))
    assert page._live.visible
    assert page._no_curves.visible
    assert page._no_runs.visible
    assert not page._runs_part.visible
