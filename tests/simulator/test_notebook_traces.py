"""Notebooks as a closed loop: what a session submits next depends on when its last cell ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from djinn_lab.simulator.queue import Failures, Parking, QueueRun, QueueSettings, equal_nodes, simulate_queue
from djinn_lab.simulator.traces.catalog import open_trace

MINUTE_S = 60.0
HEADING = "session,start_min,duration_min,gpus,vram_gb"
FREE = QueueSettings(estimates="exact", parking=Parking())


def cells(folder: Path, *rows: str) -> Path:
    path = folder / "cells.csv"
    path.write_text("\n".join((HEADING, *rows)) + "\n")
    return path


def submissions(run: QueueRun) -> dict[str, list[float]]:
    """Minutes of submission by account, in the order of ending."""
    found: dict[str, list[float]] = {}
    for row in run.jobs:
        found.setdefault(row.account, []).append(row.submitted_s / MINUTE_S)
    return found


def test_a_session_that_never_waits_submits_when_the_trace_did(tmp_path: Path) -> None:
    trace = open_trace(str(cells(tmp_path, "ann,10,5,2,0", "ann,16,3,0,0", "ann,30,5,1,0", "bob,0,4,8,0")))
    assert trace.left_out == 1
    run = simulate_queue(trace, equal_nodes(2, 8), "fifo", FREE)
    assert submissions(run) == {"session bob": [0.0], "session ann": [10.0, 30.0]}
    assert run.figures.wait_max_s == 0.0


def test_a_delayed_session_thinks_as_long_as_in_the_trace_and_submits_later(tmp_path: Path) -> None:
    trace = open_trace(str(cells(tmp_path, "bob,0,20,8,0", "ann,10,5,8,0", "ann,30,5,8,0")))
    run = simulate_queue(trace, equal_nodes(1, 8), "fifo", FREE)
    assert submissions(run) == {"session bob": [0.0], "session ann": [10.0, 40.0]}
    assert run.figures.wait_max_s == run.figures.start_wait_p99_s == 10 * MINUTE_S


def test_state_is_restored_before_a_cell_and_parked_while_its_devices_are_held(tmp_path: Path) -> None:
    trace = open_trace(str(cells(tmp_path, "ann,0,1,8,10", "bob,0,1,8,10")))
    second_s = 10 * 2**30
    run = simulate_queue(
        trace, equal_nodes(1, 8), "fifo", QueueSettings(parking=Parking(link_bytes_per_s=second_s))
    )
    first, second = sorted(run.jobs, key=lambda row: row.ended_s)
    assert first.ended_s == 61.0
    assert second.started_s == 62.0
    assert second.ended_s == 62.0 + 61.0


def test_a_node_that_fails_loses_no_cell_that_has_ended(tmp_path: Path) -> None:
    rows = [f"s{number},{number},5,8,4000" for number in range(40)]
    settings = QueueSettings(parking=Parking(link_bytes_per_s=2**33), failures=Failures(1200.0, 60.0, seed=3))
    run = simulate_queue(open_trace(str(cells(tmp_path, *rows))), equal_nodes(4, 8), "default", settings)
    assert run.figures.jobs == 40
    assert run.figures.failures > 0


def test_reserved_notebooks_hold_their_devices_for_their_lives(tmp_path: Path) -> None:
    path = tmp_path / "sessions.csv"
    path.write_text("session,start_min,stop_min,gpus\nann,0,100,8\nbob,10,20,8\ncid,5,6,0\n")
    run = simulate_queue(open_trace(str(path)), equal_nodes(1, 8), "fifo", FREE)
    assert [(row.account, row.started_s / MINUTE_S) for row in run.jobs] == [
        ("session ann", 0.0),
        ("session bob", 100.0),
    ]


@pytest.mark.parametrize("row", ["ann,later,5,1,0", "ann,0,-1,1,0", "ann,0,1,one,0", "ann,0,1"])
def test_a_broken_line_is_counted_with_its_number(tmp_path: Path, row: str) -> None:
    trace = open_trace(str(cells(tmp_path, "bob,0,1,1,0", row)))
    assert [line.number for line in trace.broken] == [3]
    assert len(list(trace.jobs)) == 1
