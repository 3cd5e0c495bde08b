"""What the report of a cell says of compiled regions, where parts of the cell differ."""

from __future__ import annotations

from djinn_lab.client.report import CellReport
from djinn_lab.protocol.messages import SegmentResult

COUNTING = "run op by op; compiled once it has run 3 times"
COMPILED = "11 ops in 1 region are compiled: 1.0 ms for 2.0 ms op by op"


def report_of(*said: str) -> CellReport:
    report = CellReport("cell")
    for segment, one in enumerate(said):
        report.add_result(SegmentResult("job", segment, "done", 1, "cpu:0", {}, 0.0, compiled=one))
    return report


def test_cell_whose_parts_are_alike_says_it_once() -> None:
    assert report_of("", "").compiled == ""
    assert report_of(COUNTING, COUNTING).compiled == COUNTING


def test_parts_that_are_compiled_come_first_wherever_they_are() -> None:
    short = "run op by op: none takes long enough"
    for said in ((short, COMPILED, short), (COMPILED, short, short)):
        assert report_of(*said).compiled == f"{COMPILED} (1 part); {short} (2 parts)"


def test_cell_of_many_parts_leaves_the_rest_as_a_number() -> None:
    said = [f"run op by op: reason {number}" for number in range(9)]
    assert report_of(*said).compiled.endswith("reason 3 (1 part); and something else of 5 parts")


def test_last_state_of_a_loop_comes_first_with_its_last_times() -> None:
    measured = "11 ops in 1 region are compiled and within 0.0e+00; being measured in turns with op by op"
    later = "11 ops in 1 region are compiled: 1.1 ms for 2.5 ms op by op"
    said = report_of(COUNTING, measured, measured, COMPILED, COMPILED, later).compiled
    assert said == f"{later} (3 parts); {measured} (2 parts); {COUNTING} (1 part)"
