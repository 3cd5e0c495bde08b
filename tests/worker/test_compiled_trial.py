"""When a program is compiled, kept so, and dropped."""

from __future__ import annotations

from djinn_lab.worker.compiled.trial import AGAIN_EVERY, ROUNDS, RUNS_BEFORE, UNUSED_MAX, Trial


def measured(plain_s: float, compiled_s: float) -> Trial:
    """Return a program's trial after its first measurements."""
    trial = Trial()
    for _ in range(RUNS_BEFORE):
        trial.ran("plain", plain_s)
    assert trial.is_due
    trial.compiling()
    trial.compiled(compile_s=10.0)
    assert trial.way() == "checked"
    trial.checked()
    run_on(trial, plain_s, compiled_s, 2 * ROUNDS)
    return trial


def run_on(trial: Trial, plain_s: float, compiled_s: float, runs: int) -> list[str]:
    ways = []
    for _ in range(runs):
        way = trial.way()
        ways.append(way)
        trial.ran(way, plain_s if way == "plain" else compiled_s)
    return ways


def test_ways_are_measured_in_turns() -> None:
    trial = Trial()
    trial.compiled(1.0)
    trial.checked()
    assert run_on(trial, 1.0, 0.5, 6) == ["compiled", "plain"] * 3


def test_faster_program_stays_compiled_and_says_when_that_pays() -> None:
    trial = measured(plain_s=0.03, compiled_s=0.02)
    assert trial.state == "compiled"
    assert trial.way() == "compiled"
    assert trial.runs_to_pay in (1000, 1001)


def test_program_that_is_not_faster_runs_op_by_op() -> None:
    for compiled_s in (0.03, 0.031, 0.0299):
        trial = measured(plain_s=0.03, compiled_s=compiled_s)
        assert trial.state == "dropped"
        assert trial.way() == "plain"


def test_compiled_program_that_becomes_slower_is_dropped() -> None:
    trial = measured(plain_s=0.03, compiled_s=0.02)
    ways = run_on(trial, 0.03, 0.05, 20 * AGAIN_EVERY)
    assert trial.state == "dropped"
    assert ways.count("compiled") < 2 * AGAIN_EVERY


def test_compiled_program_is_compared_from_time_to_time() -> None:
    trial = measured(plain_s=0.03, compiled_s=0.02)
    ways = run_on(trial, 0.03, 0.02, 4 * AGAIN_EVERY)
    assert ways.count("plain") == 4
    assert trial.state == "compiled"


def test_program_that_is_compiled_in_vain_is_dropped() -> None:
    trial = Trial()
    trial.compiled(1.0)
    for _ in range(UNUSED_MAX):
        assert trial.state == "checking"
        trial.unused("there was no memory for it")
    assert (trial.state, trial.why) == ("dropped", "there was no memory for it")
