"""Cells that start before their session is fully restored, through queue and session memory."""

from __future__ import annotations

import pytest
from early_pool import EarlyPool, progressed

from djinn_lab import jobs

RESTORE_S = 0.6
"""Of sixty MiB over the pool's link."""


def restoring(pool: EarlyPool) -> bool:
    account = pool.engine.accounts.session("ann")
    assert account is not None
    return account.moving == "restore"


def submit_early(pool: EarlyPool, seconds: float = 0.1) -> float:
    """Ann's next cell, and when it started."""
    pool.submit("early", "ann", seconds=seconds, mib=1)
    while "early" not in pool.started_s:
        pool.run(pool.now_s + 0.01)
    assert pool.early == ["early"]
    assert restoring(pool)
    return pool.now_s


@pytest.fixture
def pool() -> EarlyPool:
    pool = EarlyPool(1, 100, None, 0, 100)
    for name in ("ann", "bob"):
        pool.open(name)
    pool.submit("first", "ann", seconds=1.0, mib=60)
    pool.run(5.0)
    pool.submit("second", "bob", seconds=1.0, mib=60)
    pool.run(7.5)
    account = pool.engine.accounts.session("ann")
    assert account is not None
    assert account.tier == "host"
    return pool


def test_a_cell_starts_in_the_first_part_of_its_restore_and_ends_after_it(pool: EarlyPool) -> None:
    started_s = submit_early(pool)
    pool.run(started_s + 0.2)
    assert pool.queue.job("early") is not None
    assert "early" not in pool.ended_s, "it was answered before its session was back"
    pool.run(started_s + 2 * RESTORE_S)
    assert pool.outcomes["early"] == "DONE"
    pool.engine.validate()


def test_a_cell_whose_restore_fails_starts_again_with_nothing_done(pool: EarlyPool) -> None:
    pool.failing.add("ann")
    submit_early(pool, seconds=10.0)
    progressed(pool, "early", 3)
    pool.run(pool.now_s + RESTORE_S)
    pool.engine.validate()
    job = pool.queue.job("early")
    assert job is not None
    assert (job.ops_done, job.preemptions) == (0, 0)
    pool.run(pool.now_s + 30.0)
    assert pool.outcomes["early"] == "DONE"
    assert len(pool.history["early"]) == 2


def test_a_cell_whose_device_dies_before_its_session_is_back_starts_again(pool: EarlyPool) -> None:
    submit_early(pool, seconds=10.0)
    progressed(pool, "early", 3)
    pool.lose("cpu:0", back_after_s=1.0)
    job = pool.queue.job("early")
    assert job is not None
    assert job.state is jobs.JobState.SUBMITTED
    pool.engine.validate()
    pool.run(pool.now_s + 30.0)
    assert pool.outcomes["early"] == "DONE"


def test_a_cell_whose_device_dies_after_its_session_is_back_runs_again(pool: EarlyPool) -> None:
    submit_early(pool, seconds=10.0)
    pool.run(pool.now_s + RESTORE_S)
    assert not restoring(pool)
    pool.lose("cpu:0", back_after_s=1.0)
    assert "early" not in pool.outcomes
    pool.run(pool.now_s + 30.0)
    assert pool.outcomes["early"] == "DONE"


def test_a_cell_that_could_run_meanwhile_is_not_kept_waiting_for_a_copy(pool: EarlyPool) -> None:
    pool.submit("early", "ann", seconds=1.0, mib=1)
    pool.open("carl")
    pool.submit("there", "carl", seconds=2.0, mib=1)
    pool.run(pool.now_s + 20.0)
    assert pool.early == []
    assert pool.started_s["there"] < pool.started_s["early"]
    assert pool.outcomes["early"] == "DONE"


@pytest.mark.parametrize("how", ["preempt", "cancel", "close"])
def test_what_ends_a_cell_before_its_session_is_back_takes_effect_at_its_end(
    pool: EarlyPool, how: str
) -> None:
    submit_early(pool, seconds=10.0)
    match how:
        case "preempt":
            pool.send(jobs.PreemptRequested(pool.now_s, "early", "an operator"))
        case "cancel":
            pool.send(jobs.CancelRequested(pool.now_s, "early", "its owner"))
        case _:
            pool.close("ann")
    pool.run(pool.now_s + RESTORE_S)
    pool.engine.validate()
    pool.run(pool.now_s + 30.0)
    assert pool.outcomes["early"] == ("DONE" if how == "preempt" else "CANCELLED")
    assert not pool.runs
