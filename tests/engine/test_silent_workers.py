"""A worker that does not answer keeps what it has, and blocks no other device."""

from __future__ import annotations

import random

import pytest
from sampled import sampled

from djinn_lab import engine, jobs
from djinn_lab.simulator.pool import SimulatedPool

SILENT, OTHER = "cpu:0", "cpu:1"


@pytest.fixture
def pool() -> SimulatedPool:
    """Ann's 60 MiB are on cpu:0, and bob computes on cpu:1 for 100 seconds."""
    pool = SimulatedPool(2, 100, host_mib=200)
    for session, device, seconds in (("ann", SILENT, 1.0), ("bob", OTHER, 100.0)):
        pool.open(session)
        pool.submit(f"{session} 0", session, target=device, seconds=seconds, mib=60)
    pool.run(5.0)
    assert pool.outcomes == {"ann 0": "DONE"}
    return pool


def heard(pool: SimulatedPool, answers: bool) -> None:
    pool.send(engine.HeartbeatChanged(pool.now_s, SILENT, answers))
    pool.engine.validate()


def state(pool: SimulatedPool, job: str) -> jobs.JobState:
    known = pool.queue.job(job)
    assert known is not None
    return known.state


def test_a_cell_whose_state_a_silent_worker_has_preempts_no_cell_elsewhere(pool: SimulatedPool) -> None:
    heard(pool, False)
    pool.submit("ann 1", "ann", priority=jobs.Priority.CRITICAL, seconds=1.0, mib=60)
    pool.run(60.0)
    assert len(pool.history["bob 0"]) == 1
    assert state(pool, "bob 0") is jobs.JobState.RUNNING
    assert "the worker of cpu:0 does not answer" in pool.queue.explain("ann 1")
    assert not pool.stalls
    heard(pool, True)
    pool.run(70.0)
    assert pool.outcomes["ann 1"] == "DONE"
    assert pool.history["ann 1"][0].device == SILENT


def test_a_move_off_a_silent_worker_is_cancelled(pool: SimulatedPool) -> None:
    pool.submit("ann 1", "ann", target=OTHER, seconds=1.0, mib=10)
    heard(pool, False)
    assert state(pool, "ann 1") is jobs.JobState.FAILED
    known = pool.queue.job("ann 1")
    assert known is not None
    assert "cannot be moved there" in known.message
    assert "the worker of cpu:0 does not answer" in known.message


def test_new_and_parked_sessions_run_elsewhere_while_a_worker_is_silent() -> None:
    pool = SimulatedPool(2, 100, host_mib=200)
    for session in ("ann", "bob", "eve"):
        pool.open(session)
    pool.submit("ann 0", "ann", target=SILENT, seconds=1.0, mib=60)
    pool.run(3.0)
    pool.submit("bob 0", "bob", target=SILENT, seconds=1.0, mib=60)  # ann's state is parked for it
    pool.run(6.0)
    heard(pool, False)
    for session in ("ann", "eve"):
        pool.submit(f"{session} 1", session, seconds=1.0, mib=20)
    pool.run(20.0)
    assert [pool.outcomes.get(f"{session} 1") for session in ("ann", "eve")] == ["DONE", "DONE"]
    assert pool.history["ann 1"][0].device == pool.history["eve 1"][0].device == OTHER


def test_cells_that_wait_on_a_worker_leave_it_when_it_falls_silent() -> None:
    pool = SimulatedPool(2, 100)
    for session in ("ann", "bob", "eve"):
        pool.open(session)
        pool.submit(f"{session} 0", session, seconds=10.0, mib=60)
    heard(pool, False)
    pool.run(30.0)
    ran = {pool.history[f"{session} 0"][0].device for session in ("ann", "bob", "eve")}
    assert ran == {SILENT, OTHER}
    waited = [session for session in ("ann", "bob", "eve") if pool.started_s[f"{session} 0"] > 1.0]
    assert [pool.history[f"{session} 0"][0].device for session in waited] == [OTHER]


def test_a_silent_worker_that_dies_is_as_any_dead_worker(pool: SimulatedPool) -> None:
    heard(pool, False)
    pool.submit("ann 1", "ann", seconds=1.0, mib=60)
    pool.lose(SILENT, back_after_s=0.5)
    pool.run(200.0)
    assert pool.outcomes == {"ann 0": "DONE", "ann 1": "DONE", "bob 0": "DONE"}


@pytest.mark.parametrize("seed", range(sampled(20, 8)))
def test_workers_that_fall_silent_at_random_moments_stall_no_cell_for_good(seed: int) -> None:
    chance = random.Random(seed)
    pool = SimulatedPool(3, 100, host_mib=300, link_mib_per_s=200)
    answers = dict.fromkeys(pool.devices, True)
    for session in range(8):
        pool.open(f"s{session}")
    for number in range(60):
        job, session = f"job {number}", f"s{chance.randrange(8)}"
        urgent = chance.random() < 0.2
        priority = jobs.Priority.CRITICAL if urgent else jobs.Priority.NORMAL
        pool.submit(
            job, session, priority=priority, seconds=chance.uniform(0.1, 3), mib=chance.randint(5, 60)
        )
        pool.run(pool.now_s + chance.uniform(0.0, 2.0))
        if chance.random() < 0.3:
            device = chance.choice(sorted(answers))
            answers[device] = not answers[device]
            pool.send(engine.HeartbeatChanged(pool.now_s, device, answers[device]))
        pool.engine.accounts.validate()
    for device, answer in answers.items():
        if not answer:
            pool.send(engine.HeartbeatChanged(pool.now_s, device, True))
    pool.run(pool.now_s + 600.0)
    assert set(pool.outcomes.values()) == {"DONE"}
    assert len(pool.outcomes) == 60
