"""What the pages say of one cell: its prediction beside its run, its events."""

from __future__ import annotations

import typing

import pytest

from djinn_lab.cli.jobs import _forecast_text
from djinn_lab.dashboard.jobs.details import job_details_html
from djinn_lab.dashboard.jobs.trace import WHAT, trace_rows
from djinn_lab.jobs.messages import Event, MemoryDeferred, SegmentFinished, SegmentPreempted, SegmentSubmitted
from djinn_lab.jobs.placement.first_device import DeviceFit
from djinn_lab.jobs.resources import ResourceForecast
from djinn_lab.jobs.terms import Terms
from djinn_lab.protocol.rest.jobs import JobView, job_events

SPREAD = 1.7930847342827114


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


EVENTS = (
    SegmentSubmitted(
        1.0,
        "a",
        0,
        "s",
        "ann",
        "NORMAL",
        1202,
        True,
        predicted_s=0.948,
        predicted_spread=SPREAD,
        terms=Terms(gang=2, deadline_s=90.0),
        fits=(DeviceFit("cuda:0", 0.25, 2.0),),
    ),
    MemoryDeferred(1.5, "a", "copies are under way.", wait_s=0.25),
    SegmentPreempted(2.0, "other", 0, 394),
    SegmentFinished(3.0, "a", 0, "done", 1202, memory_byte_s=409_186_800.0 * 2**10, transfer_bytes=2048.0),
)
STORY = job_events("a", EVENTS)


def test_decision_trace_has_words_units_and_short_numbers() -> None:
    submitted, deferred, finished = trace_rows(STORY)
    assert submitted["detail"] == (
        "priority NORMAL, ops 1,202, last segment, predicted run time 948.0 ms, options (gang of 2, deadline "
        "in 1 min 30 s), uncertain by a factor of 1.79, could begin on cuda:0 (memory filled 25%, predicted "
        "run time 2.0 s)"
    )
    assert deferred["detail"] == "reason copies are under way, expected in 250.0 ms"
    assert finished["detail"] == "outcome done, ops done 1,202, memory held 390.2 GiB·s, copied 2.0 KiB"
    assert [row["after"]["text"] for row in (deferred, finished)] == ["500.0 ms", "1.5 s"]  # type: ignore[index]


def test_every_event_has_words() -> None:
    known = {kind.__name__ for kind in typing.get_args(Event)}
    assert known - set(WHAT) == {"QueueOpened"}  # touches no job


def test_details_have_the_trace_of_that_job_only() -> None:
    page = job_details_html(JobView("a", state="DONE"), "", STORY)
    assert "segment ended: outcome done, ops done 1,202, memory held 390.2 GiB·s" in page
    assert "preempted" not in page
    assert "{" not in page
    assert "at_s" not in page


def test_details_say_why_a_job_has_no_events() -> None:
    assert "none known: the pool remembers those of its latest cells" in job_details_html(JobView("a"))


@pytest.mark.parametrize(("segments", "said"), [(1, "in 1 part while"), (3, "in 3 parts while")])
def test_details_count_the_parts_sent_ahead(segments: int, said: str) -> None:
    assert said in job_details_html(JobView("a" * 32, segments=segments))
