"""What the pages say of one cell: its prediction beside its run, its events."""

from __future__ import annotations

import pytest

from djinn_lab.cli.jobs import _forecast_text
from djinn_lab.dashboard.jobs.details import job_details_html
from djinn_lab.jobs.resources import ResourceForecast
from djinn_lab.protocol.rest.jobs import JobView


def in_parts(runs: int) -> JobView:
    """A cell of three parts, the last of which was predicted to take 400 us."""
    whole = ResourceForecast(0.948 if runs else 0.5, 2**20, runs)
    return JobView(
        "a", state="DONE", segments=3, predicted_s=0.0004, measured_s=0.9596, predicted=whole, ops_done=9
    )


def test_whole_cell_is_predicted_beside_its_whole_run() -> None:
    page = job_details_html(in_parts(runs=4))
    assert "948.0 ms, measured 959.6 ms" in page
    assert "400 us" not in page
    assert _forecast_text(in_parts(runs=4)).startswith("948.0 ms")


def test_cell_of_which_only_parts_were_predicted_has_no_prediction_beside_its_run() -> None:
    """Its graph was known up to its first cut."""
    page = job_details_html(in_parts(runs=0))
    assert "not as a whole: it was sent in 3 parts; measured 959.6 ms" in page
    assert "400 us" not in page
    assert "500.0 ms" not in page
    assert _forecast_text(in_parts(runs=0)) == ""


@pytest.mark.parametrize("known", [None, ResourceForecast(0.4, 2**20), ResourceForecast(None, 2**20)])
def test_cell_of_one_part_is_predicted_by_that_part(known: ResourceForecast | None) -> None:
    one = JobView("a", state="DONE", segments=1, predicted_s=0.4, measured_s=0.5, predicted=known)
    assert "400.0 ms, measured 500.0 ms" in job_details_html(one)
