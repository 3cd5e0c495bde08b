"""Brief segments that run between two ops of a longer one: which do, which preempt or wait instead, what each
pays, and any order of events."""

from __future__ import annotations

import pytest
from driven_queue import DrivenQueue
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from djinn_lab.jobs import (
    CancelRequested,
    ChargeAccount,
    ClockTicked,
    Command,
    DeviceAdded,
    DeviceCordoned,
    DeviceLost,
    EndSegment,
    Event,
    JobState,
    PreemptRequested,
    PreemptSegment,
    QueueOpened,
    ReservationMade,
    SegmentFinished,
    SegmentPreempted,
    SegmentSubmitted,
    SessionClosed,
    SharesChanged,
    StartSegment,
)
from djinn_lab.jobs.decision import BRIEF_S as INTERLEAVED_AFTER_S
from djinn_lab.jobs.decision import OVERDUE_S, DecisionSnapshot
from djinn_lab.jobs.decision.rules.interleaving import JOBS_MAX
from djinn_lab.jobs.fairness import Limits, ShareState
from djinn_lab.jobs.machine.queue import JobQueue

OPS = 4
BRIEF_S = 0.001


def submitted(
    at_s: float, job: str, predicted_s: float | None = BRIEF_S, **fields: object
) -> SegmentSubmitted:
    """The segment of a session of its own, of one user in one process, whose memory needs no grant."""
    given: dict[str, object] = {"process": "p", "predicted_s": predicted_s} | fields
    priority = given.pop("priority", "NORMAL")
    session = f"session of {job}"
    return SegmentSubmitted(at_s, job, 0, session, "ann", priority, OPS, True, **given)  # type: ignore[arg-type]


class Pool(DrivenQueue):
    """A queue whose only device runs ``long``, and what it has done."""

    def __init__(self, **fields: object) -> None:
        super().__init__()
        self.handle(submitted(0.0, "long", 3.0, **fields))

    def end(self, job: str, at_s: float, device_s: float | None = None) -> list[Command]:
        return self.handle(SegmentFinished(at_s, job, 0, "done", OPS, device_s=device_s))

    def started(self) -> list[tuple[str, bool]]:
        return [(one.job, one.interleaved) for one in self.commands if isinstance(one, StartSegment)]

    def preempted(self) -> list[str]:
        return [one.job for one in self.commands if isinstance(one, PreemptSegment)]


def test_brief_segments_run_between_the_ops_of_a_longer_one() -> None:
    pool = Pool()
    for job in ("a", "b", "c"):
        pool.handle(submitted(1.0, job))
    assert pool.started() == [("long", False), ("a", True), ("b", True), ("c", True)]
    assert pool.preempted() == []
    assert pool.queue.explain("a") == (
        "Runs between two ops of a longer job on cpu:0, once the op under way there has ended."
    )
    for job in ("b", "a", "c"):
        pool.end(job, 1.5)
    assert pool.running() == {"long"}


def test_brief_segment_waits_for_a_short_part_of_the_longer_ones_minimum_run_time() -> None:
    """A cell is sent in parts as it is recorded, and each part that begins has a minimum run time."""
    pool = Pool()
    pool.handle(submitted(0.001, "a"))
    assert pool.running() == {"long"}
    due_s = pool.queue.due_s()
    assert due_s == pytest.approx(INTERLEAVED_AFTER_S)
    pool.handle(ClockTicked(due_s))
    assert pool.running() == {"long", "a"}


def test_longer_one_that_gave_half_of_its_time_is_not_preempted_in_its_minimum_run_time() -> None:
    pool = Pool()
    pool.handle(submitted(0.03, "a"))
    pool.end("a", 0.09, device_s=0.06)
    pool.handle(submitted(0.09, "b"))
    assert pool.running() == {"long"}
    assert pool.preempted() == []
    pool.handle(ClockTicked(0.1))
    assert pool.preempted() == ["long"]


@pytest.mark.parametrize(
    "fields",
    [{"process": "another"}, {"process": ""}, {"predicted_s": 0.5}],
    ids=["of another process", "that takes no part", "that is not brief"],
)
def test_other_shorter_segment_preempts_the_longer_one(fields: dict[str, object]) -> None:
    pool = Pool()
    pool.handle(submitted(1.0, "a", **fields))  # type: ignore[arg-type]
    assert pool.running() == {"long"}
    assert pool.preempted() == ["long"]


def test_brief_segment_preempts_a_longer_one_that_takes_no_part() -> None:
    pool = Pool(process="")
    pool.handle(submitted(1.0, "a"))
    assert pool.preempted() == ["long"]


def test_brief_segment_waits_where_the_policy_would_not_preempt_for_it() -> None:
    pool = Pool(priority="HIGH")
    pool.handle(submitted(1.0, "a"))
    assert pool.running() == {"long"}
    assert pool.preempted() == []


def test_brief_segments_leave_a_device_to_a_longer_one_that_waits() -> None:
    pool = Pool()
    pool.handle(submitted(0.01, "next", 3.0))
    pool.handle(submitted(0.02, "a"))
    pool.handle(submitted(0.02, "b"))
    pool.end("long", 0.03)
    assert pool.started()[1:] == [("a", True), ("b", True), ("next", False)]


def test_longer_one_of_another_process_starts_after_the_brief_segments() -> None:
    pool = Pool()
    pool.handle(submitted(0.01, "next", 3.0, process="another"))
    pool.handle(submitted(0.02, "a"))
    pool.end("long", 0.03)
    assert pool.running() == {"a"}
    pool.end("a", 0.04)
    assert pool.running() == {"next"}


def test_each_pays_for_its_own_time_on_the_device() -> None:
    pool = Pool()
    pool.handle(submitted(1.0, "a"))
    pool.handle(submitted(1.0, "b"))
    pool.end("a", 1.5, device_s=0.25)
    pool.end("b", 1.5)  # for how long is not known
    pool.end("long", 3.0)
    assert pool.charged_s() == pytest.approx({"a": 0.25, "b": 0.5, "long": 2.25})


def test_longer_one_gives_half_of_its_time_at_most() -> None:
    pool = Pool()
    for job in ("a", "b"):
        pool.handle(submitted(1.0, job))
    pool.end("a", 1.9, device_s=0.5)
    pool.handle(submitted(1.9, "c"))
    assert pool.preempted() == []
    pool.end("b", 1.9, device_s=0.5)
    pool.handle(submitted(1.9, "d"))
    assert pool.preempted() == ["long"]


def test_only_so_many_are_interleaved_at_once() -> None:
    pool = Pool()
    for number in range(JOBS_MAX + 1):
        pool.handle(submitted(1.0, f"brief{number}"))
    assert len(pool.started()) == 1 + JOBS_MAX
    assert pool.preempted() == ["long"]


def test_interleaved_segment_that_does_not_end_is_preempted_and_runs_as_any_other() -> None:
    pool = Pool()
    pool.handle(submitted(1.0, "a"))
    assert pool.queue.due_s() == 1.0 + OVERDUE_S
    pool.handle(ClockTicked(1.0 + OVERDUE_S))
    assert pool.preempted() == ["a"]
    pool.handle(SegmentPreempted(2.1, "a", 0, 1))
    assert pool.started()[-1] == ("a", True)
    assert "a" not in pool.running()


def test_account_at_its_limit_of_devices_interleaves_nothing_more() -> None:
    pool = Pool()
    pool.handle(SharesChanged(0.5, "team", limits=Limits(devices_max=1)))
    pool.handle(submitted(1.0, "a", account="team/a"))
    pool.handle(submitted(1.0, "b", account="team/b"))
    assert len(pool.running() & {"a", "b"}) == 1


def test_lost_worker_puts_all_back_and_charges_nothing() -> None:
    pool = Pool()
    pool.handle(submitted(1.0, "a"))
    pool.handle(DeviceLost(2.0, "cpu:0", "killed"))
    assert pool.running() == set()
    pool.handle(DeviceAdded(3.0, "cpu:0"))
    assert len(pool.running()) == 1  # what was lost once runs alone
    assert pool.charged_s() == {}


def test_device_reserved_for_others_is_left_by_the_longer_one() -> None:
    pool = Pool()
    pool.handle(ReservationMade(0.5, "course", frozenset({"cpu:0"}), 1.5, 100.0, frozenset({"bob"})))
    pool.handle(submitted(2.0, "a", account="bob"))
    assert pool.preempted() == ["long"]


@pytest.mark.parametrize("policy", ["fifo", "conservative", "easy"])
def test_policy_without_preemption_interleaves_nothing_in_a_running_segment(policy: str) -> None:
    queue = JobQueue()
    queue.handle(QueueOpened(0.0, policy, ShareState()))
    queue.handle(DeviceAdded(0.0, "cpu:0"))
    queue.handle(submitted(0.0, "long", 3.0))
    queue.handle(submitted(1.0, "a"))
    assert [job.job for job in queue.running_jobs()] == ["long"]


def test_snapshot_decides_as_the_queue_does_beside_interleaved_segments() -> None:
    pool = Pool()
    pool.handle(SharesChanged(0.5, "team", limits=Limits(devices_max=1)))
    pool.handle(submitted(1.0, "a", account="team/a"))
    pool.handle(submitted(1.0, "b", account="team/b"))
    snapshot = pool.queue.decision(1.0)
    assert not snapshot.decide()
    alone = DecisionSnapshot(
        snapshot.cluster.__class__(
            snapshot.cluster.nodes, snapshot.cluster.waiting, snapshot.cluster.holdings
        ),
        snapshot.shares,
        snapshot.policy,
        1.0,
    )
    assert [one.job for one in alone.decide().interleaved] == ["b"]


JOBS = st.sampled_from([f"job{number}" for number in range(6)])


class InterleavingMachine(RuleBasedStateMachine):
    """Segments of which most are brief, on one device. The device is never charged for more than its time, no
    segment is lost, and a second queue does the same."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.replayed = JobQueue(), JobQueue()
        self.now_s = 0.0
        self.number = 0
        self.names: dict[str, str] = {}
        self.unanswered: set[str] = set()
        self.charged_s = 0.0
        self.measured_s = 0.0

    @initialize()
    def begin(self) -> None:
        self.feed(DeviceAdded(self.now_s, "cpu:0"))

    @rule(
        slot=JOBS,
        process=st.sampled_from(["p", "p", "p", "q", ""]),
        predicted_s=st.sampled_from([None, 0.001, 0.001, 0.02, 5.0, 1e4]),
        priority=st.sampled_from(["LOW", "NORMAL", "CRITICAL"]),
    )
    def submit(self, slot: str, process: str, predicted_s: float | None, priority: str) -> None:
        known = self.queue.job(self.names.get(slot, ""))
        if known is not None and not known.finished:
            return
        self.number += 1
        job = self.names[slot] = f"{slot}-{self.number}"
        event = SegmentSubmitted(
            *(self.tick(), job, 0, slot, slot, priority, OPS, True), predicted_s=predicted_s, process=process
        )
        self.unanswered.add(job)
        self.feed(event)

    @rule(slot=JOBS, outcome=st.sampled_from(["done", "failed", "cancelled"]), measured=st.booleans())
    def finish(self, slot: str, outcome: str, measured: bool) -> None:
        if job := self.running(slot):
            self.unanswered.discard(job)
            device_s = 0.01 if measured else None
            self.feed(SegmentFinished(self.tick(), job, 0, outcome, OPS, device_s=device_s))

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

    @rule()
    def wait(self) -> None:
        self.feed(ClockTicked(self.tick()))

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
        running = self.queue.running_jobs()
        holders = [job for job in running if not job.interleaved]
        interleaved = [job for job in running if job.interleaved]
        assert len(holders) <= 1
        assert len(interleaved) <= JOBS_MAX
        assert len({job.process for job in (*holders, *interleaved) if interleaved}) <= 1
        assert self.unanswered == {
            job.job for job in self.queue.snapshot().jobs if job.state is not JobState.WAITING
        }

    def running(self, slot: str) -> str:
        known = self.queue.job(self.names.get(slot, ""))
        return known.job if known is not None and known.state is JobState.RUNNING else ""

    def tick(self) -> float:
        self.now_s += 0.25
        return self.now_s

    def feed(self, event: Event) -> None:
        commands = self.queue.handle(event)
        assert self.replayed.handle(event) == commands
        for command in commands:
            if isinstance(command, ChargeAccount):
                assert command.ended_at_s >= command.started_at_s
            elif isinstance(command, EndSegment):
                self.unanswered.remove(command.job)


InterleavingMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestInterleaving = InterleavingMachine.TestCase
