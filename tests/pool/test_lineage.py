"""What the pool keeps to make a session again: which runs, until when, and when it asks for a copy."""

from __future__ import annotations

import pytest
import torch
from programs import Script

from djinn_lab.pool.lineage import log as logs
from djinn_lab.pool.lineage.bounds import copy_wanted
from djinn_lab.pool.lineage.log import Copy, Run, SessionLog
from djinn_lab.pool.lineage.pruning import needed, unread
from djinn_lab.pool.lineage.sentences import LostWorker, recovered
from djinn_lab.srg.program import Program, encode_program

SQUARE = torch.ones(2, 2)


def run_of(serial: int, program: Program, run_s: float = 0.1) -> Run:
    return Run(serial, f"job{serial}", 0, encode_program(program), (), None, run_s=run_s)


def log_of(*programs: Program, run_s: float = 0.1) -> SessionLog:
    kept = SessionLog()
    for program in programs:
        kept.ran(run_of(kept.next_serial(), program, run_s))
    return kept


def flags(*programs: Program, released: tuple[int, ...] = ()) -> list[bool]:
    return needed(log_of(*programs).runs, released)


def test_a_cell_whose_results_were_released_is_not_replayed() -> None:
    script = Script()
    kept = script.op("aten.neg.default", script.load(SQUARE))
    first = script.program(keep=(kept,))
    dropped = script.op("aten.neg.default", kept)
    second = script.program(keep=(dropped,))
    script.op("aten.neg.default", kept)
    third = script.program(release=(dropped,))
    assert flags(first, second, third) == [True, False, False]
    assert flags(first, second) == [True, True]
    assert flags(first, second, released=(kept, dropped)) == [False, False]


def test_a_write_counts_for_every_view_of_its_memory() -> None:
    script = Script()
    base = script.load(SQUARE)
    script.op("aten.neg.default", base)
    made = script.program(keep=(base,))
    view = script.op("aten.t.default", base, view=True)
    seen = script.program(keep=(view,), release=(base,))
    script.write("aten.mul_.Tensor", view, scalars=(3.0,))
    written = script.program()
    assert flags(made, seen, written) == [True, True, True]
    assert flags(made, seen, written, released=(view,)) == [False, False, False]


def test_a_write_to_memory_that_is_older_than_the_log_always_counts() -> None:
    script = Script()
    older = script.load(SQUARE)
    script.program(keep=(older,))
    script.write("aten.mul_.Tensor", older, scalars=(3.0,))
    assert flags(script.program(release=(older,))) == [True]


def test_a_released_value_that_a_replay_reads_is_dropped_after_it() -> None:
    script = Script()
    read, unused = (script.load(SQUARE) for _ in range(2))
    script.program(keep=(read, unused))
    made = script.op("aten.neg.default", read)
    runs = log_of(script.program(keep=(made,))).runs
    assert unread(runs, [unused, read]) == [unused]
    assert unread(runs, [unused, read, made]) == [unused, read, made]
    assert unread([], [unused, read]) == [unused, read]


def test_a_copy_made_between_two_replayed_runs_does_not_forget_a_release() -> None:
    script = Script()
    kept = log_of(*(script.program(keep=(script.load(SQUARE),)) for _ in range(2)))
    kept.release([7])
    assert kept.lost()
    kept.replayed(kept.pending[0])
    kept.copied(Copy(kept.runs[0].serial, 100, 1))
    assert kept.release_all([8])[1] == [7, 8]
    kept.copied(Copy(kept.serials, 100, 1))
    assert kept.release_all([]) == (0, [])


def test_a_copy_cuts_what_it_has_and_nothing_else() -> None:
    script = Script()
    programs = [script.program(keep=(script.load(SQUARE),)) for _ in range(3)]
    kept = log_of(*programs)
    kept.copied(Copy(2, 100, 2))
    assert [run.job for run in kept.runs] == ["job3"]
    assert kept.lost()
    assert [run.job for run in kept.pending] == ["job3"]


def test_an_answer_behind_the_copy_that_has_it_is_not_replayed() -> None:
    kept = SessionLog()
    serial = kept.next_serial()
    kept.copied(Copy(serial, 100, 1))
    kept.ran(run_of(serial, Script().program()))
    assert kept.runs == []


def test_a_log_over_its_bound_is_void_until_the_next_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES_MAX", 10)
    script = Script()
    kept = log_of(script.program(keep=(script.load(SQUARE),)))
    assert "of programs ran since its last whole copy" in kept.void
    kept.copied(Copy(1, 100, 1))
    assert not kept.void
    assert kept.lost()


def test_a_gang_that_is_stopped_leaves_nothing_to_replay_until_a_copy_after_it() -> None:
    kept = SessionLog()
    kept.began_gang()
    kept.copied(Copy(kept.next_serial(), 100, 1))
    kept.ended_gang(None, kept.next_serial())
    assert not kept.lost()
    kept.copied(Copy(kept.next_serial(), 100, 1))
    assert kept.lost()


def test_a_stopped_replay_resumes_where_it_stopped_and_begins_anew_after_another_loss() -> None:
    script = Script()
    kept = log_of(script.program(keep=(script.load(SQUARE),)))
    assert kept.lost()
    kept.split(kept.pending[0], 3, b"state")
    assert [(run.begin, run.end, run.rng_state) for run in kept.pending] == [(3, None, b"state")]
    assert kept.lost()
    assert [(run.begin, run.end) for run in kept.pending] == [(0, 3), (3, None)]
    serials = [run.serial for run in kept.runs]
    assert serials == sorted(set(serials))


def test_a_copy_reported_before_the_answer_to_a_replayed_run_skips_no_other_run() -> None:
    script = Script()
    kept = log_of(*(script.program(keep=(script.load(SQUARE),)) for _ in range(2)))
    assert kept.lost()
    first, second = kept.pending
    kept.copied(Copy(first.serial, 100, 1))
    kept.replayed(first)
    assert kept.pending == [second]


def test_a_copy_reported_before_a_replayed_run_stopped_leaves_its_rest() -> None:
    script = Script()
    kept = log_of(*(script.program(keep=(script.load(SQUARE),)) for _ in range(2)))
    assert kept.lost()
    first, second = kept.pending
    kept.copied(Copy(first.serial, 100, 1))
    kept.split(first, 3, b"state")
    assert [(run.job, run.begin, run.rng_state) for run in kept.pending] == [
        (first.job, 3, b"state"),
        (second.job, 0, None),
    ]
    kept.copied(Copy(first.serial, 100, 1))
    assert len(kept.pending) == 2


@pytest.mark.parametrize(
    ("run_s", "copy_s", "wanted"),
    [(1.9, 0.01, None), (2.1, 0.01, "held"), (2.1, 1.0, "beside"), (3.0, 2.0, None), (41.0, 2.0, "held")],
)
def test_a_copy_is_wanted_when_a_replay_takes_longer_than_two_restores_and_a_pause(
    run_s: float, copy_s: float, wanted: str | None
) -> None:
    script = Script()
    kept = log_of(script.program(keep=(script.load(SQUARE),)), run_s=run_s)
    assert copy_wanted(kept, copy_s) == wanted
    assert copy_wanted(kept, copy_s) is None  # not again at once


def test_the_line_says_what_was_restored_and_what_was_replayed() -> None:
    lost = LostWorker("cpu:0", "cell 12", again=False, values=2, ops=41, recovery_s=0.8)
    assert recovered(lost, 3) == (
        "worker of cpu:0 lost in cell 12; 3 values restored from copies, 2 by replay of 41 ops, 800.0 ms"
    )
    assert recovered(LostWorker("cpu:0", "cell 1", again=True), 0) == (
        "worker of cpu:0 lost in cell 1; the cell ran again"
    )
