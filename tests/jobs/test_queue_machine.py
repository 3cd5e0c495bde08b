"""Any order of events, from good and bad clients: the queue keeps its invariants, and a bad event changes
nothing."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from djinn_lab.jobs import (
    TRANSITIONS,
    CancelRequested,
    CancelSegment,
    Command,
    DeviceAdded,
    DeviceCordoned,
    DeviceDescribed,
    DeviceHeard,
    DeviceLost,
    DeviceQueueOrdered,
    EndSegment,
    Event,
    IllegalEvent,
    JobFinished,
    JobReturned,
    JobState,
    MemberLeft,
    MemoryDeferred,
    MemoryGranted,
    MemoryRefused,
    Notify,
    PlaceSegment,
    PreemptRequested,
    PreemptSegment,
    Priority,
    SegmentFinished,
    SegmentPreempted,
    SegmentProgressed,
    SegmentRefused,
    SegmentSubmitted,
    SessionClosed,
    SessionDetached,
    StartSegment,
    Terms,
)
from djinn_lab.jobs.machine.queue import JobQueue
from djinn_lab.jobs.messages import MemoryNeed

DEVICES = st.sampled_from(["cpu:0", "cpu:1", "cpu:2"])
JOBS = st.sampled_from([f"job{n}" for n in range(8)])
SESSIONS = st.sampled_from(["s0", "s1", "s2", "s3"])
OUTCOMES = st.sampled_from(["done", "failed", "cancelled", "bad"])
PRIORITIES = st.sampled_from([*Priority, "URGENT"])
SMALL = st.integers(-1, 4)
MEMORY = st.sampled_from(["free", "ask", "deferred", "queued", "granted"])
REACHABLE = {(before, after) for (before, _), after in TRANSITIONS.items()}


class QueueMachine(RuleBasedStateMachine):
    """Any order of events, beside a model: every admitted segment is answered exactly once. ``riding``: by
    rider, its device and its leader."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = JobQueue()
        self.replayed = JobQueue()
        self.now_s = 0.0
        self.unanswered: dict[str, int] = {}
        self.on_device: dict[str, str] = {}
        self.riding: dict[str, tuple[str, str]] = {}

    @rule(device=DEVICES)
    def add_device(self, device: str) -> None:
        self.feed(DeviceAdded(self.tick(), device))

    @rule(
        device=DEVICES,
        labels=st.lists(st.sampled_from(["team=a", "team=b", "gpu=x"]), max_size=2),
        taints=st.lists(st.sampled_from(["vision", "nightly"]), max_size=1),
    )
    def describe(self, device: str, labels: list[str], taints: list[str]) -> None:
        self.feed(DeviceDescribed(self.tick(), device, tuple(labels), tuple(taints)))

    @rule(device=DEVICES, cordoned=st.booleans(), drain=st.booleans())
    def cordon(self, device: str, cordoned: bool, drain: bool) -> None:
        self.feed(DeviceCordoned(self.tick(), device, cordoned, drain))

    @rule(device=DEVICES, heard=st.booleans(), leaving=st.lists(SESSIONS, max_size=2, unique=True))
    def hear(self, device: str, heard: bool, leaving: list[str]) -> None:
        running = {job.session for job in self.queue.running_jobs()}
        here = [name for name in leaving if self.queue.device_of(name) == device and name not in running]
        self.feed(DeviceHeard(self.tick(), device, heard, tuple(here)))

    @rule(device=DEVICES)
    def lose_device(self, device: str) -> None:
        job = self.queue.job(self.on_device.get(device, ""))
        if job is not None and device in job.members:
            del self.on_device[device]  # its gang runs on with its other devices
        self.lose(device, [f"s{number}" for number in range(4)])
        if self.feed(DeviceLost(self.tick(), device, "killed")) is not None:
            assert device not in self.on_device

    @rule(device=DEVICES, sessions=st.sets(SESSIONS))
    def lose_worker(self, device: str, sessions: set[str]) -> None:
        job = self.queue.job(self.on_device.get(device, ""))
        if job is not None and job.session in sessions and device in job.members:
            del self.on_device[device]
        self.lose(device, sessions)
        lost = DeviceLost(self.tick(), device, "killed", sessions=tuple(sorted(sessions)))
        if self.feed(lost) is not None:
            survivor = self.queue.job(self.on_device.get(device, ""))
            assert survivor is None or survivor.session not in sessions or survivor.losses  # it runs again

    def lose(self, device: str, sessions: Collection[str]) -> None:
        """The sessions' segments on the device are gone, its riders' first."""
        riders = [rider for rider, (where, _) in self.riding.items() if where == device]
        for name in (*riders, self.on_device.get(device, "")):
            job = self.queue.job(name)
            if job is not None and job.session in sessions:
                self.leave(name)

    @rule(
        job=JOBS,
        segment=SMALL,
        session=SESSIONS,
        priority=PRIORITIES,
        ops=SMALL,
        final=st.booleans(),
        wanted=st.none()
        | DEVICES
        | st.sampled_from(["team=a", "gpu=x,team=b", "cpu:0,cpu:1", "cpu:1,team=a"]),
        tolerates=st.sampled_from([(), ("vision",), ("vision", "nightly")]),
        move_s=st.none() | st.just(0.5),
        memory=MEMORY,
        after=st.lists(JOBS, max_size=2),
        after_any=st.booleans(),
        gang=st.integers(1, 4),
        gang_min=st.integers(1, 4),
        devices=st.integers(1, 4),
        batch=st.sampled_from(["", "b"]),
    )
    def submit(
        self,
        job: str,
        segment: int,
        session: str,
        priority: str,
        ops: int,
        final: bool,
        wanted: str | None,
        tolerates: tuple[str, ...],
        move_s: float | None,
        memory: MemoryNeed,
        after: list[str],
        after_any: bool,
        gang: int,
        gang_min: int,
        devices: int,
        batch: str,
    ) -> None:
        known = self.queue.job(job)
        at_s = self.tick()
        event = SegmentSubmitted(
            at_s,
            job,
            segment,
            session,
            session,
            priority,
            ops,
            final,
            wanted,
            memory=memory,
            memory_reason="Full.",
            terms=Terms(
                max(gang, gang_min), gang_min, after=tuple(after), after_any=after_any, tolerates=tolerates
            ),
            devices=devices,
            move_s=move_s,
            phase="decode" if batch else "",
            batch=batch,
        )
        if known is not None and ops >= 0:
            right = msgspec.structs.replace(event, segment=known.segment + 1, session=known.session)
            event = right if segment >= 0 else event
        self.feed(event)

    @rule(job=JOBS, session=SESSIONS, final=st.booleans())
    def refuse(self, job: str, session: str, final: bool) -> None:
        known = self.queue.job(job)
        segment = 0 if known is None else known.segment + 1
        self.feed(SegmentRefused(self.tick(), job, segment, session, session, "NORMAL", 1, final, "no"))

    @rule(job=JOBS, reason=st.sampled_from(["Memory.", "Copy."]), queued=st.booleans())
    def hold(self, job: str, reason: str, queued: bool) -> None:
        waits = self.waits_for_memory(job)
        assert (self.feed(MemoryDeferred(self.tick(), job, reason, None, queued)) is not None) == waits
        if waits:
            known = self.queue.job(job)
            assert known is not None
            pending = known.state in (JobState.QUEUED, JobState.PREEMPTED)
            assert pending if queued else known.state is JobState.RESTORING
            assert queued or self.queue.explain(job) == reason

    @rule(job=JOBS)
    def grant(self, job: str) -> None:
        waits = self.waits_for_memory(job)
        assert (self.feed(MemoryGranted(self.tick(), job)) is not None) == waits
        if waits:
            known = self.queue.job(job)
            assert known is not None
            assert known.state in (JobState.QUEUED, JobState.PREEMPTED, JobState.RUNNING)

    @rule(job=JOBS)
    def refuse_memory(self, job: str) -> None:
        waits = self.waits_for_memory(job)
        assert (self.feed(MemoryRefused(self.tick(), job, "never")) is not None) == waits

    def waits_for_memory(self, job: str) -> bool:
        known = self.queue.job(job)
        if known is None:
            return False
        asked = known.state is JobState.PREEMPTED and known.memory == "ask"
        queued_for_memory = known.state in (JobState.QUEUED, JobState.PREEMPTED) and known.memory == "queued"
        return known.state is JobState.RESTORING or asked or queued_for_memory

    @rule(device=DEVICES, ops=SMALL)
    def progress(self, device: str, ops: int) -> None:
        running = self.queue.job(self.on_device.get(device, ""))
        if running is not None:
            self.feed(SegmentProgressed(self.tick(), running.job, running.segment, ops))

    @rule(job=JOBS, outcome=OUTCOMES, ops=st.integers(0, 2))
    def finish_segment(self, job: str, outcome: str, ops: int) -> None:
        known = self.queue.job(job)
        if known is None or not self.runs(job):
            return
        before = self.on_device.copy(), self.riding.copy()
        self.leave(job)
        done = min(ops, known.ops_total)
        segment = self.unanswered.pop(job)
        if self.feed(SegmentFinished(self.tick(), job, segment, outcome, done)) is None:
            assert outcome == "bad"
            self.on_device, self.riding = before
            self.unanswered[job] = segment

    def runs(self, job: str) -> bool:
        return job in self.on_device.values() or job in self.riding

    def leave(self, job: str) -> None:
        """The job is off its devices. The first of its riders, if any, holds its device now."""
        self.riding.pop(job, None)
        riders = [rider for rider, (_, leader) in self.riding.items() if leader == job]
        for device in [device for device, running in self.on_device.items() if running == job]:
            del self.on_device[device]
        if riders:
            device, _ = self.riding.pop(riders[0])
            self.on_device[device] = riders[0]
            self.riding |= dict.fromkeys(riders[1:], (device, riders[0]))

    @rule(device=DEVICES)
    def give_back(self, device: str) -> None:
        job = self.queue.job(self.on_device.get(device, ""))
        if job is None:
            return
        gives = device in job.members
        if gives:
            del self.on_device[device]
        assert (self.feed(MemberLeft(self.tick(), job.job, job.segment, device)) is not None) == gives

    @rule(job=JOBS)
    def begin_preemption(self, job: str) -> None:
        known = self.queue.job(job)
        runs = known is not None and self.runs(job)
        assert (self.feed(PreemptRequested(self.tick(), job, "by a test")) is not None) == runs

    @rule(name=JOBS, ops=st.integers(0, 4), devices=st.integers(1, 4))
    def stop_between_two_ops(self, name: str, ops: int, devices: int) -> None:
        """Preempt a segment, whether it was asked to stop or not. A gang leaves all its devices."""
        job = self.queue.job(name)
        if job is None or not self.runs(name):
            return
        done = max(job.ops_done, min(ops, job.ops_total))
        uses = min(devices, job.devices)
        self.leave(job.job)
        stops = SegmentPreempted(self.tick(), job.job, job.segment, done, devices=uses)
        assert self.feed(stops) is not None
        stopped = self.queue.job(job.job)
        assert stopped is not None
        if job.cancelling:
            assert stopped.state is JobState.CANCELLED
        else:
            assert stopped.preemptions == job.preemptions + 1
            assert stopped.ops_done == done
            assert stopped.devices == uses

    @rule(job=JOBS, segment=SMALL)
    def finish_what_does_not_run(self, job: str, segment: int) -> None:
        if not self.runs(job):
            assert self.feed(SegmentFinished(self.tick(), job, segment, "done", 0)) is None

    @rule(job=JOBS, session=SESSIONS, segment=st.integers(-2, 2), ended=st.booleans())
    def return_job(self, job: str, session: str, segment: int, ended: bool) -> None:
        known = self.queue.job(job)
        state = JobState.DONE if ended else JobState.WAITING
        event = JobReturned(self.tick(), job, session, "ann", segment, state=state)
        event = msgspec.structs.replace(event, ended_at_s=event.at_s if ended else None)
        accepted = self.feed(event) is not None
        assert accepted == (known is None and segment >= -1)

    @rule(job=JOBS, outcome=OUTCOMES)
    def finish_job(self, job: str, outcome: str) -> None:
        self.feed(JobFinished(self.tick(), job, outcome))

    @rule(job=JOBS)
    def cancel(self, job: str) -> None:
        self.feed(CancelRequested(self.tick(), job, "by a test"))

    @rule(session=SESSIONS)
    def detach(self, session: str) -> None:
        self.feed(SessionDetached(self.tick(), session))

    @rule(session=SESSIONS)
    def close(self, session: str) -> None:
        self.feed(SessionClosed(self.tick(), session))
        assert self.queue.device_of(session) is None

    @invariant()
    def valid(self) -> None:
        self.queue.validate()

    @invariant()
    def devices_do_what_the_queue_thinks(self) -> None:
        running = {view.device: view.running for view in self.queue.snapshot().devices if view.running}
        assert running == self.on_device
        riders = {
            job.job: (job.assigned_device, job.leader) for job in self.queue.running_jobs() if job.leader
        }
        assert riders == self.riding

    @invariant()
    def every_job_can_be_explained(self) -> None:
        for job in self.queue.snapshot().jobs:
            assert self.queue.explain(job.job).endswith((".", "answered."))
            assert self.queue.story(job.job)

    def tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def feed(self, event: Event) -> list[Command] | None:
        """Give the queue an event. None when it was illegal, and then nothing has changed."""
        before = self.queue.snapshot()
        try:
            commands = self.queue.handle(event)
        except IllegalEvent:
            assert self.queue.snapshot() == before
            return None
        assert self.replayed.handle(event) == commands
        self.check_moves({job.job: job.state for job in before.jobs})
        if isinstance(event, SegmentSubmitted):
            self.unanswered[event.job] = event.segment
        for command in commands:
            self.obey(command)
        return commands

    def obey(self, command: Command) -> None:
        match command:
            case PlaceSegment():
                assert self.queue.device_of(command.session) == command.device
                assert self.waits_for_memory(command.job)
            case StartSegment():
                known = self.queue.job(command.job)
                assert known is not None
                assert not known.waits_for
                assert self.unanswered[command.job] == command.segment
                if command.leader:
                    assert not command.members
                    self.riding[command.job] = (command.device, command.leader)
                    return
                assert list(command.riders) == [
                    rider for rider, (_, leader) in self.riding.items() if leader == command.job
                ]
                held = (command.device, *command.members)
                least = min(known.terms.gang_min, known.devices)
                assert least <= len(held) <= min(known.terms.gang, known.devices)
                assert not set(held) & set(self.on_device)
                assert len(set(held)) == len(held)
                self.on_device |= dict.fromkeys(held, command.job)
            case CancelSegment():
                assert self.runs_on(command.job, command.device)
            case PreemptSegment():
                assert self.runs_on(command.job, command.device)
                assert self.unanswered[command.job] == command.segment
            case DeviceQueueOrdered():
                snapshot = self.queue.snapshot()
                line = next(view.queue for view in snapshot.devices if view.device == command.device)
                assert [job for job in command.jobs if job in line] == list(line)
            case EndSegment():
                assert self.unanswered.pop(command.job) == command.segment
                self.leave(command.job)
            case Notify():
                job = self.queue.job(command.job)
                assert job is not None
                assert command.state is job.state
                assert (command.position is not None) == (job.state in (JobState.QUEUED, JobState.PREEMPTED))

    def runs_on(self, job: str, device: str) -> bool:
        return self.on_device[device] == job or self.riding.get(job, ("", ""))[0] == device

    def check_moves(self, before: dict[str, JobState]) -> None:
        """Assert that every change of state is a path through the transition table."""
        for name, old in before.items():
            job = self.queue.job(name)
            assert job is not None
            assert job.state is old or job.state in _reachable(old)


def _reachable(state: JobState) -> set[JobState]:
    found: set[JobState] = set()
    frontier = {state}
    while frontier:
        frontier = {after for before, after in REACHABLE if before in frontier} - found
        found |= frontier
    return found


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestQueue = QueueMachine.TestCase
