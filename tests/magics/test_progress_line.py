"""What the line of progress says of a cell, from updates made by hand."""

from __future__ import annotations

from msgspec.structs import replace

from djinn_lab.magics.progress import describe, since, with_unsent
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


def test_waiting_cell_says_how_long_and_why() -> None:
    line, _ = describe(CELL, replace(QUEUED, estimate_error_s=2.0), 1.0)
    assert line == "In [3] waits, about 12.0 s to go (give or take 2.0 s): 2nd in the queue of cpu:0. (1.0 s)"
    assert describe(CELL, None, 1.0)[0] == "In [3] is on its way to the pool (1.0 s)"


def test_preempted_cell_says_how_far_it_came() -> None:
    line, fraction = describe(CELL, replace(RUNNING, state="PREEMPTED", reason="For bob's job."), 9.0)
    assert line == "In [3] was preempted after 500 of 2,000 ops: For bob's job. (9.0 s)"
    assert fraction == 0.25
