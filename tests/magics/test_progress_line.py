"""What the line of progress says of a cell, from updates made by hand."""

from __future__ import annotations

from djinn_lab.magics.progress import describe
from djinn_lab.protocol.messages import JobUpdate

RUNNING = JobUpdate("a" * 32, "RUNNING", device="cpu:0", ops_done=500, ops_total=2000)


def test_progress_of_a_whole_cell_has_a_bar() -> None:
    assert describe(RUNNING, 3.0) == ("RUNNING, on cpu:0, 500/2000 ops (3.0 s)", 0.25)


def test_progress_of_a_cell_in_parts_has_no_bar_that_could_go_back() -> None:
    line, fraction = describe(RUNNING, 3.0, in_parts=True)
    assert line == "RUNNING, on cpu:0, 500/2000 ops so far (3.0 s)"
    assert fraction is None
