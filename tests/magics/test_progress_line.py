"""What the line of progress says of a cell, from updates made by hand."""

from __future__ import annotations

from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from djinn_lab.client.upload_progress import UploadState
from djinn_lab.magics import dashboard_process, progress
from djinn_lab.magics.progress import WaitLine, describe, describe_upload, since, with_unsent
from djinn_lab.protocol.messages import JobUpdate

CELL = "In [3]"
RUNNING = JobUpdate("a" * 32, "RUNNING", device="cpu:0", ops_done=500, ops_total=2000)
QUEUED = JobUpdate("a" * 32, "QUEUED", "2nd in the queue of cpu:0.", position=2, estimate_s=12.0)


def test_progress_of_a_whole_cell_has_a_bar() -> None:
    assert describe(CELL, RUNNING, 3.0) == ("In [3] runs on cpu:0: 500 of 2,000 ops (3.0 s)", 0.25)


def test_progress_says_what_is_left_where_that_is_known() -> None:
    line, _ = describe(CELL, replace(RUNNING, left_s=6.0), 3.0)
    assert line == "In [3] runs on cpu:0: 500 of 2,000 ops, about 6.0 s left (3.0 s)"
    line, _ = describe(CELL, replace(RUNNING, left_s=0.6), 3.0)
    assert line == "In [3] runs on cpu:0: 500 of 2,000 ops, less than 1 s left (3.0 s)"


def test_time_left_counts_down_between_the_pools_words() -> None:
    assert since(replace(RUNNING, left_s=6.0), 2.0).left_s == 4.0
    assert since(replace(RUNNING, left_s=6.0), 7.0).left_s is None
    assert since(QUEUED, 7.0) == QUEUED


def test_progress_counts_what_is_recorded_and_not_sent_yet() -> None:
    update = with_unsent(replace(RUNNING, left_s=6.0), 5000)
    assert (update.ops_done, update.ops_total, update.left_s) == (500, 5000, 18.0)
    assert with_unsent(replace(RUNNING, ops_done=2000, left_s=0.0), 5000).left_s is None
    assert with_unsent(RUNNING, 2000) == RUNNING
    assert with_unsent(QUEUED, 5000) == QUEUED


def test_progress_of_a_cell_in_parts_has_no_bar_that_could_go_back() -> None:
    line, fraction = describe(CELL, replace(RUNNING, left_s=6.0), 3.0, in_parts=True)
    assert line == "In [3] runs on cpu:0: 500 of 2,000 ops so far (3.0 s)"
    assert fraction is None


def test_upload_says_bytes_rate_and_what_is_left() -> None:
    state = UploadState(sent=25 * 2**20, total=100 * 2**20, bytes_per_s=5 * 2**20, left_s=15.0)
    assert describe_upload("cell 3", state, 5.0) == (
        "cell 3 uploads 25.0 MiB of 100.0 MiB at 5.0 MiB/s, about 15.0 s left (5.0 s)",
        0.25,
    )
    begun = UploadState(sent=0, total=100 * 2**20, bytes_per_s=0.0, left_s=None)
    assert describe_upload("cell 3", begun, 1.0)[0] == "cell 3 uploads 0 B of 100.0 MiB (1.0 s)"


def test_waiting_cell_says_how_long_and_why() -> None:
    line, _ = describe(CELL, replace(QUEUED, estimate_error_s=2.0), 1.0)
    assert line == "In [3] waits, about 12.0 s to go (give or take 2.0 s): 2nd in the queue of cpu:0. (1.0 s)"
    assert describe(CELL, None, 1.0)[0] == "In [3] is on its way to the pool (1.0 s)"


def test_preempted_cell_says_how_far_it_came() -> None:
    line, fraction = describe(CELL, replace(RUNNING, state="PREEMPTED", reason="For bob's job."), 9.0)
    assert line == "In [3] was preempted after 500 of 2,000 ops: For bob's job. (9.0 s)"
    assert fraction == 0.25


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what lines of progress say, the newest last."""
    said: list[str] = []

    def show(line: Any, display_id: bool = False) -> Any:
        said.append(line._repr_mimebundle_()["text/plain"])
        return SimpleNamespace(update=show)

    monkeypatch.setattr(progress, "display", show)
    return said


def test_wait_line_counts_from_a_moment_on(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 0.5, 1.5, 1.6, 4.0, 6.0))
    monkeypatch.setattr(progress, "perf_counter", lambda: next(times))
    line = WaitLine("The dashboard starts", 120.0)
    for _ in range(4):
        line.tick()
    line.finish("The dashboard runs")
    assert shown == [
        "The dashboard starts (1.5 s of at most 2 min 0 s)",
        "The dashboard starts (4.0 s of at most 2 min 0 s)",
        "The dashboard runs (6.0 s)",
    ]


def test_dashboard_that_starts_slowly_shows_progress(
    shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = chain((False, False, False), repeat(True))
    clock = iter(range(0, 100, 2))
    monkeypatch.setattr(progress, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(dashboard_process, "_answers", lambda: next(answers))
    monkeypatch.setattr(dashboard_process, "with_code", lambda url: url)
    opened = dashboard_process.DashboardProcess()
    monkeypatch.setattr(opened, "_start", lambda: SimpleNamespace(poll=lambda: None))
    assert opened.open() == dashboard_process.URL
    assert shown[0] == "The dashboard starts (2.0 s of at most 2 min 0 s)"
    assert shown[-1].startswith("The dashboard runs")
