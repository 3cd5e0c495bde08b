"""What the Jobs page says of a cell's energy."""

from __future__ import annotations

import pytest

from djinn_lab.dashboard.jobs.details import job_details_html
from djinn_lab.jobs.resources import ResourceForecast
from djinn_lab.protocol.rest.jobs import JobView

LIKELY = ResourceForecast(12.0, 2**20, runs=3)


def test_energy_is_predicted_while_a_cell_runs_and_estimated_once_ended() -> None:
    runs = job_details_html(JobView("a", state="RUNNING", predicted=LIKELY, watts=700.0, used_j=99.0))
    assert "12.0 s on devices (about 8.4 kJ, at the 700 W that operators say its device draws)" in runs
    assert "It used" not in runs
    ended = job_details_html(JobView("a", state="DONE", predicted=LIKELY, watts=700.0, used_j=9100.0))
    assert "It used about 9.1 kJ (not measured" in ended


@pytest.mark.parametrize("state", ["RUNNING", "DONE"])
def test_energy_is_not_shown_without_a_declared_device_power(state: str) -> None:
    page = job_details_html(JobView("a", state=state, predicted=LIKELY))
    assert "Energy" not in page
    assert "operators say" not in page
