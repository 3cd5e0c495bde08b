"""What the history of cells says of one, and the chart of use beside it."""

from __future__ import annotations

import pytest

from djinn_lab.dashboard.jobs.page import history_row
from djinn_lab.dashboard.queueing.fairness_chart import SHOWN_S_MIN, FairnessChart
from djinn_lab.dashboard.queueing.history import RecentUse
from djinn_lab.dashboard.widgets.theme import LIGHT
from djinn_lab.protocol.rest.jobs import JobView


@pytest.mark.parametrize(("now", "text"), [(100.2, "< 1 s"), (107.9, "7.0 s"), (175.0, "1 min 15 s")])
def test_a_cell_that_waits_says_how_long_it_has_so_far(now: float, text: str) -> None:
    row = history_row(JobView("a", state="QUEUED", submitted_at=100.0), now, {})
    assert row["waited"]["text"] == text


def test_a_cell_that_ran_says_how_long_it_waited_and_one_that_runs_nothing_yet() -> None:
    stages = {"queued": 2.0, "restoring": 0.5, "run": 9.0}
    done = JobView("a", state="DONE", submitted_at=100.0, started_at=102.5, finished_at=111.5, stages=stages)
    assert history_row(done, 200.0, {})["waited"]["text"] == "2.5 s"
    runs = JobView("a", state="RUNNING", submitted_at=100.0, started_at=102.5)
    assert history_row(runs, 200.0, {})["waited"] is None


def test_the_chart_of_use_spans_a_minute_from_the_first_look_on() -> None:
    chart = FairnessChart(LIGHT)
    for ends_at in (1000.0, 1001.0, 1100.0):
        chart.update([RecentUse(at, 0, {"ann": 1.0}, 1.0) for at in (1000.0, ends_at)])
        spans_s = (chart.use_figure.x_range.end - chart.use_figure.x_range.start) / 1e3
        assert spans_s == max(SHOWN_S_MIN, ends_at - 1000.0)
        assert chart.use_figure.x_range.end == ends_at * 1e3
