"""Queue and session memory together: no job waits at an idle device for memory that is granted to jobs
ineligible there."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from early_pool import EarlyPool
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_lab.jobs import (
    CancelRequested,
    DeviceCordoned,
    IllegalEvent,
    Priority,
    ReservationEnded,
    ReservationMade,
    SharesChanged,
)
from djinn_lab.jobs.fairness import Limits
from djinn_lab.simulator.pool import SimulatedPool

LATER_S = 1000.0
SOON_S = 2.0
"""Copies take a hundredth of a second here; a deferred memory request is tried again after a quarter."""


def crowded(memory_mib: int) -> SimulatedPool:
    """Two devices; ann has eight long cells, each of a session of its own."""
    pool = SimulatedPool(2, memory_mib)
    for number in range(8):
        pool.open(f"ann{number}")
    pool.open("bob")
    return pool


def hand_in(pool: SimulatedPool) -> None:
    for number in range(8):
        pool.submit(f"a{number}", f"ann{number}", account="ann", seconds=50.0, mib=40)


@pytest.mark.parametrize("memory_mib", [1000, 100])
def test_reserved_device_serves_its_accounts_before_ineligible_pending_jobs(memory_mib: int) -> None:
    pool = crowded(memory_mib)
    pool.send(ReservationMade(0.0, "course", frozenset({"cpu:0"}), 0.0, LATER_S, frozenset({"bob"})))
    hand_in(pool)
    pool.run(1.0)
    ineligible = [
        job.job for job, _, reason in pool.queue.waiting() if "cpu:0 is reserved for bob (course)" in reason
    ]
    assert ineligible
    assert all(pool.queue.job(job).assigned_device == "cpu:0" for job in ineligible)
    pool.submit("lesson", "bob", priority=Priority.SCAVENGER, mib=40)
    pool.run(1.0 + SOON_S)
    assert pool.started_s["lesson"] < 1.0 + SOON_S
    pool.run(LATER_S)
    assert len(pool.ended_s) == 9


@pytest.mark.parametrize("memory_mib", [1000, 100])
def test_jobs_preempted_for_a_reservation_do_not_block_its_accounts(memory_mib: int) -> None:
    pool = crowded(memory_mib)
    hand_in(pool)
    pool.run(1.0)
    pool.send(ReservationMade(1.0, "course", frozenset({"cpu:0"}), 1.0, LATER_S, frozenset({"bob"})))
    pool.submit("lesson", "bob", priority=Priority.SCAVENGER, mib=40)
    pool.run(1.0 + SOON_S)
    assert pool.started_s["lesson"] < 1.0 + SOON_S


@pytest.mark.parametrize("memory_mib", [1000, 100])
def test_jobs_at_their_account_limit_do_not_block_an_idle_device(memory_mib: int) -> None:
    pool = crowded(memory_mib)
    pool.send(SharesChanged(0.0, "ann", limits=Limits(devices_max=1)))
    hand_in(pool)
    pool.run(1.0)
    reasons = [reason for job, place, reason in pool.queue.waiting() if place is not None]
    assert reasons
    assert all(reason.endswith("; account ann may have 1 device at once.") for reason in reasons)
    pool.submit("late", "bob", priority=Priority.SCAVENGER, mib=40)
    pool.run(1.0 + SOON_S)
    assert pool.started_s["late"] < 1.0 + SOON_S
    pool.run(LATER_S)
    assert len(pool.ended_s) == 9


USERS = ("ann", "bob", "carl")
DEVICES = ("cpu:0", "cpu:1")
SUBMITS = st.tuples(
    st.just("submit"),
    st.integers(0, 11),
    st.sampled_from(list(Priority)),
    st.sampled_from([0.3, 2.0, 10.0]),
    st.sampled_from([1, 20, 60]),
    st.sampled_from([None, None, None, *DEVICES]),
)
STEPS = st.lists(
    st.one_of(
        SUBMITS,
        SUBMITS,
        st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 5.0])),
        st.tuples(st.just("limit"), st.sampled_from(USERS), st.sampled_from([None, 1.0])),
        st.tuples(st.just("reserve"), st.sampled_from(USERS), st.sampled_from(DEVICES)),
        st.tuples(st.just("end reservation")),
        st.tuples(st.just("cordon"), st.sampled_from(DEVICES), st.booleans()),
        st.tuples(st.just("lose"), st.sampled_from(DEVICES)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("fail"), st.integers(0, 11)),
    ),
    min_size=10,
    max_size=60,
)


TIERS = st.tuples(
    st.sampled_from([130, 160, 260]),
    st.sampled_from([0, 30, 60, 150, 10_000]),
    st.sampled_from([0, 100, 10_000]),
    st.sampled_from([None, 100, 1000]),
)
"""MiB of the device, the host and the disk; MiB/s of the link. The largest session with its largest cell fits
each device."""
COPIES_OF_A_SESSION = 4
"""Copies of a session between two events of cells: stored, evicted, restored and demoted."""


class Watched:
    """A pool that is checked for idle devices twice a second while steps run on it."""

    def __init__(
        self, memory_mib: int, *tiers: int | None, kind: type[SimulatedPool] = SimulatedPool
    ) -> None:
        self.pool = kind(len(DEVICES), memory_mib, *tiers)  # type: ignore[arg-type]
        self.sessions = {f"{user}{number}": user for user in USERS for number in range(4)}
        for session in self.sessions:
            self.pool.open(session)
        self.idle_since_s: dict[str, float] = {}
        self.cells = 0

    def run(self, seconds: float) -> None:
        pool, until_s = self.pool, self.pool.now_s + seconds
        while pool.now_s < until_s:
            pool.run(min(until_s, pool.now_s + 0.5))
            since = self.idle_since_s
            self.idle_since_s = {job: since.get(job, pool.now_s) for job in pool.held_from_idle_devices}
            assert all(pool.now_s - since_s <= SOON_S for since_s in self.idle_since_s.values())

    def step_unwatched(self, kind: str, *what: Any) -> None:
        """Do a step without checks, as a user or operator does; illegal orders are refused."""
        if kind == "wait":
            self.pool.run(self.pool.now_s + what[0])
            return
        with suppress(IllegalEvent):
            self.step(kind, *what)

    def step(self, kind: str, *what: Any) -> None:
        pool, now_s = self.pool, self.pool.now_s
        match kind:
            case "submit":
                which, priority, seconds, mib, target = what
                session = list(self.sessions)[which]
                pool.submit(
                    f"job{self.cells + 1}",
                    session,
                    account=self.sessions[session],
                    priority=priority,
                    seconds=seconds,
                    mib=mib,
                    target=target,
                )
                self.cells += 1
            case "wait":
                self.run(what[0])
            case "limit":
                pool.send(SharesChanged(now_s, what[0], limits=Limits(devices_max=what[1])))
            case "reserve" if not pool.queue.reservations:
                kept = frozenset({what[1]})
                pool.send(ReservationMade(now_s, "course", kept, now_s, now_s + 30.0, frozenset({what[0]})))
            case "end reservation" if pool.queue.reservations:
                pool.send(ReservationEnded(now_s, "course"))
            case "cordon":
                pool.send(DeviceCordoned(now_s, *what))
            case "lose":
                pool.lose(what[0], back_after_s=0.5)
            case "fail" if isinstance(pool, EarlyPool):
                pool.failing.add(list(self.sessions)[what[0]])
            case "cancel":
                job = pool.queue.job(f"job{what[0]}")
                if job is not None and not job.finished:
                    pool.send(CancelRequested(now_s, job.job, "its owner"))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([100, 200, 1000]), STEPS)
def test_no_device_idles_long_while_a_job_is_eligible_there(
    memory_mib: int, steps: list[tuple[Any, ...]]
) -> None:
    watched = Watched(memory_mib)
    for step in steps:
        watched.step(*step)
    for device in DEVICES:
        watched.step("cordon", device, False)
    while len(watched.pool.ended_s) < watched.cells:
        watched.run(5.0)
        assert watched.pool.now_s < LATER_S * 2, "it does not come to an end"


@pytest.mark.parametrize("kind", [SimulatedPool, EarlyPool])
@settings(max_examples=80, deadline=None)
@given(TIERS, STEPS)
def test_little_memory_all_cells_end_with_few_copies_and_no_stall(
    kind: type[SimulatedPool], tiers: tuple[int, int, int, int | None], steps: list[tuple[Any, ...]]
) -> None:
    """A job that waits for a session to close resumes when sessions without cells close."""
    watched = Watched(*tiers, kind=kind)
    pool = watched.pool
    for step in steps:
        watched.step_unwatched(*step)
    for device in DEVICES:
        watched.step_unwatched("cordon", device, False)
    sessions = list(watched.sessions)
    while len(pool.ended_s) < watched.cells:
        before = len(pool.ended_s)
        pool.run(pool.now_s + 100.0)
        if len(pool.ended_s) == before:
            idle = [session for session in sessions if not pool.queue.has_unfinished(session)]
            assert idle, [pool.queue.explain(job.job) for job in pool.queue.snapshot().jobs]
            sessions.remove(idle[0])
            pool.close(idle[0])
    pool.engine.validate()
    assert pool.stalls == []
    assert pool.copies_most <= COPIES_OF_A_SESSION * len(watched.sessions)
