"""Decode steps of several sessions that run as one batch: who starts along, who does not, what each pays, and
any order of events."""

from __future__ import annotations

import pytest
from driven_queue import DrivenQueue
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from djinn_lab.jobs import (
    CancelRequested,
    ChargeAccount,
    DeviceAdded,
    DeviceCordoned,
    DeviceLost,
    EndSegment,
    Event,
    JobState,
    PreemptRequested,
    PreemptSegment,
    ReservationMade,
    SegmentFinished,
    SegmentPreempted,
    SegmentSubmitted,
    SessionClosed,
    SharesChanged,
    StartSegment,
)
from djinn_lab.jobs.fairness import Limits
from djinn_lab.jobs.machine.queue import JobQueue

OPS = 4


def submitted(at_s: float, job: str, batch: str = "b", **fields: object) -> SegmentSubmitted:
    """A decode step of a session of its own, whose memory needs no grant."""
    given: dict[str, object] = {"phase": "decode", "batch": batch, "predicted_s": 1.0} | fields
    session = f"session of {job}"
    return SegmentSubmitted(at_s, job, 0, session, job, "NORMAL", OPS, True, **given)  # type: ignore[arg-type]


class Pool(DrivenQueue):
    """A queue whose device is busy, and what it has done."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.handle(submitted(0.0, "first", batch="", phase=""))

    def end(self, job: str, at_s: float, outcome: str = "done") -> list[StartSegment]:
        found = self.handle(SegmentFinished(at_s, job, 0, outcome, OPS))
        return [one for one in found if isinstance(one, StartSegment)]


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_waiting_steps_of_a_batch_start_with_the_first_of_them(pool: Pool) -> None:
    for job in ("a", "b", "c"):
        pool.handle(submitted(1.0, job))
    pool.handle(submitted(1.0, "other", batch="another"))
    started = pool.end("first", 2.0)
    assert [(one.job, one.leader, one.riders) for one in started] == [
        ("b", "a", ()),
        ("c", "a", ()),
        ("a", None, ("b", "c")),
    ]
    assert pool.running() == {"a", "b", "c"}
    assert "in one batch with 2 other sessions" in pool.queue.explain("b")
    assert "1st in the queue" in pool.queue.explain("other")


def test_device_is_free_only_when_the_last_member_has_ended(pool: Pool) -> None:
    for job in ("a", "b", "c", "d"):
        pool.handle(submitted(1.0, job, batch="" if job == "d" else "b"))
    assert len(pool.end("first", 2.0)) == 3
    assert pool.end("a", 3.0) == []
    assert pool.end("c", 4.0) == []
    assert [one.job for one in pool.end("b", 5.0)] == ["d"]


def test_members_pay_their_shares_of_the_device_time(pool: Pool) -> None:
    for job in ("a", "b", "c"):
        pool.handle(submitted(1.0, job))
    pool.end("first", 2.0)
    pool.end("a", 5.0)  # a third of 3 s
    pool.end("c", 7.0)  # and half of 2 s
    pool.end("b", 8.0)  # and 1 s alone
    assert pool.charged_s() == {"first": 2.0, "a": 1.0, "c": 2.0, "b": 3.0}


@pytest.mark.parametrize(
    "fields",
    [
        {"memory": "ask"},
        {"batch": ""},
        {"batch": "another"},
        {"phase": "prefill"},
    ],
)
def test_step_that_waits_for_more_than_the_device_does_not_ride(
    pool: Pool, fields: dict[str, object]
) -> None:
    pool.handle(submitted(1.0, "a"))
    pool.handle(submitted(1.0, "b", **fields))
    pool.end("first", 2.0)
    assert pool.running() == {"a"}


def test_step_of_an_account_at_its_limit_does_not_ride(pool: Pool) -> None:
    pool.handle(SharesChanged(0.5, "team", limits=Limits(devices_max=1)))
    for job in ("a", "b", "c"):
        pool.handle(submitted(1.0, job, account="" if job == "c" else f"team/{job}"))
    pool.end("first", 2.0)
    assert len(pool.running() & {"a", "b"}) == 1
    assert "c" in pool.running()


def test_step_of_an_account_outside_a_reservation_does_not_ride(pool: Pool) -> None:
    reserved = ReservationMade(0.5, "course", frozenset({"cpu:0"}), 1.5, 100.0, frozenset({"a"}))
    pool.handle(reserved)
    pool.handle(submitted(1.0, "a"))
    pool.handle(submitted(1.0, "b"))
    pool.end("first", 2.0)
    assert pool.running() == {"a"}


def test_lost_worker_puts_all_members_back_and_they_run_alone(pool: Pool) -> None:
    for job in ("a", "b"):
        pool.handle(submitted(1.0, job))
    pool.end("first", 2.0)
    pool.handle(DeviceLost(3.0, "cpu:0", "killed"))
    assert pool.running() == set()
    pool.handle(DeviceAdded(4.0, "cpu:0"))
    assert len(pool.running()) == 1
    assert pool.charged_s() == {"first": 2.0}


def test_preemption_for_another_job_stops_all_members(pool: Pool) -> None:
    for job in ("a", "b"):
        pool.handle(submitted(1.0, job, predicted_s=1e4))
    pool.end("first", 2.0)
    urgent = submitted(3.0, "urgent", batch="", phase="")
    found = pool.handle(type(urgent)(*(3.0, "urgent", 0, "u", "u", "CRITICAL", OPS, True)))
    assert {one.job for one in found if isinstance(one, PreemptSegment)} == {"a", "b"}
    pool.handle(SegmentPreempted(4.0, "a", 0, 1))
    assert "urgent" not in pool.running()
    pool.handle(SegmentPreempted(4.0, "b", 0, 1))
    assert pool.running() == {"urgent"}
    assert pool.end("urgent", 5.0)[0].riders == ()  # what resumes runs alone


JOBS = st.sampled_from([f"job{number}" for number in range(6)])


class RidersMachine(RuleBasedStateMachine):
    """Steps that nearly all may ride, on one device. The device is never charged for more than its time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.replayed = JobQueue(), JobQueue()
        self.now_s = 0.0
        self.number = 0
        self.names: dict[str, str] = {}
        self.unanswered: set[str] = set()
        self.charged_s = 0.0

    @initialize()
    def begin(self) -> None:
        self.feed(DeviceAdded(self.now_s, "cpu:0"))

    @rule(slot=JOBS, batch=st.sampled_from(["b", "b", "b", ""]), priority=st.sampled_from(["LOW", "NORMAL"]))
    def submit(self, slot: str, batch: str, priority: str) -> None:
        known = self.queue.job(self.names.get(slot, ""))
        if known is not None and not known.finished:
            return
        self.number += 1
        job = self.names[slot] = f"{slot}-{self.number}"
        phase = "decode" if batch else "prefill"
        event = SegmentSubmitted(
            self.tick(), job, 0, slot, slot, priority, OPS, True, phase=phase, batch=batch
        )  # type: ignore[arg-type]
        self.unanswered.add(job)
        self.feed(event)

    @rule(slot=JOBS, outcome=st.sampled_from(["done", "failed", "cancelled"]))
    def finish(self, slot: str, outcome: str) -> None:
        if job := self.running(slot):
            self.unanswered.discard(job)
            self.feed(SegmentFinished(self.tick(), job, 0, outcome, OPS))

    @rule(slot=JOBS)
    def stop(self, slot: str) -> None:
        if job := self.running(slot):
            known = self.queue.job(job)
            assert known is not None
            self.feed(SegmentPreempted(self.tick(), job, 0, known.ops_done))

    @rule(slot=JOBS)
    def cancel(self, slot: str) -> None:
        known = self.queue.job(self.names.get(slot, ""))
        if known is not None and not known.finished:
            self.feed(CancelRequested(self.tick(), known.job, "by a test"))

    @rule(slot=JOBS)
    def preempt(self, slot: str) -> None:
        if job := self.running(slot):
            self.feed(PreemptRequested(self.tick(), job, "by a test"))

    @rule(cordoned=st.booleans(), drain=st.booleans())
    def cordon(self, cordoned: bool, drain: bool) -> None:
        self.feed(DeviceCordoned(self.tick(), "cpu:0", cordoned, drain))

    @rule(sessions=st.none() | st.frozensets(JOBS))
    def lose(self, sessions: frozenset[str] | None) -> None:
        named = None if sessions is None else tuple(sorted(sessions))
        self.feed(DeviceLost(self.tick(), "cpu:0", "killed", named))
        if named is None:
            self.feed(DeviceAdded(self.tick(), "cpu:0"))

    @rule(slot=JOBS)
    def close(self, slot: str) -> None:
        self.feed(SessionClosed(self.tick(), slot))

    @invariant()
    def queue_is_valid(self) -> None:
        self.queue.validate()
        assert self.charged_s <= self.now_s + 1e-6
        leaders = [job for job in self.queue.running_jobs() if not job.leader]
        assert len(leaders) <= 1
        assert self.unanswered == {
            job.job for job in self.queue.snapshot().jobs if job.state is not JobState.WAITING
        }

    def running(self, slot: str) -> str:
        known = self.queue.job(self.names.get(slot, ""))
        return known.job if known is not None and known.state is JobState.RUNNING else ""

    def tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def feed(self, event: Event) -> None:
        commands = self.queue.handle(event)
        assert self.replayed.handle(event) == commands
        for command in commands:
            if isinstance(command, ChargeAccount):
                self.charged_s += command.ended_at_s - command.started_at_s
            elif isinstance(command, EndSegment):
                self.unanswered.remove(command.job)


RidersMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRiders = RidersMachine.TestCase
