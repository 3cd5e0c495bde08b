"""What the pool knows about a job beside its place in the queue, and how the API shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from djinn_lab.jobs import Job, JobReturned, JobState, Notify, Terms
from djinn_lab.jobs.conditions import DependencyResults
from djinn_lab.jobs.resources import ResourceForecast, ResourceUse
from djinn_lab.jobs.run_times import RunTime
from djinn_lab.memory.footprint import Footprint
from djinn_lab.pool.gangs.plans import GangPlan
from djinn_lab.protocol.messages import ErrorInfo, SubmitSegment
from djinn_lab.protocol.rest.jobs import JobCut, JobView
from djinn_lab.protocol.worker import (
    NodeTimes,
    Resume,
    RunPreempted,
    SegmentDone,
    WorkerMemory,
    pack_times,
)
from djinn_lab.srg.liveness import FirstUses
from djinn_lab.srg.merging import STREAMED

CUTS_STORED_MAX = 32
"""Of an unfinished job: its row is written anew with every segment, and must not grow with their number."""

PACE_AFTER_S = 2.0


@dataclass(slots=True)
class RunningSegment:
    """Hold the segment in flight. ``blobs``: pinned digests; times in seconds of the pool's clock.
    ``due_s``: after ``received_s`` where an earlier segment ran then. ``key``:
    what equal programs have in common, and whether one was here before (``plan_cached``). ``restoring_s``:
    waited for session memory before it first started. ``stops``: None until it was preempted. ``gang``: how
    it would run on several devices. ``resends``, ``tolerance``: as in
    :class:`~djinn_lab.protocol.messages.SubmitSegment`."""

    segment: int
    program: bytes
    blobs: list[str]
    received_s: float
    due_s: float
    footprint: Footprint
    started_s: float | None = None
    restoring_s: float = 0.0
    progress_due_s: float = 0.0
    node_devices: tuple[str, ...] = ()
    """Which device ran each node, once a gang ran it on several."""
    key: bytes | None = None
    plan_cached: bool = False
    stops: SegmentPreemptions | None = None
    gang: GangPlan | None = None
    resends: bool = False
    tolerance: float = 0.0
    structure: bytes = b""
    """Equal for programs that differ in their sizes only."""
    reads: FirstUses | None = None
    """Of the sources, by place; None where there are no ops."""
    predicted: RunTime | None = None
    need_bytes: int = 0
    """Of the session on its device, at its fullest, as the graph says."""
    serial: int = 0
    """Of its present run, among those of its session."""
    sent_s: float | None = None
    """When it was last sent to a worker that has not answered yet."""
    reached: int | None = None
    """The op that it was at last seen before, of a run that is watched since its worker was lost once."""
    lost_s: float | None = None
    """When the run began that was lost with its worker; None once it was sent again."""
    replayed_s: float = 0.0
    """Of its present run, to make lost values again."""
    recovery_s: float = 0.0
    """To recover from lost workers, with the runs that were lost."""
    recovery: str = ""
    """What was recovered, for its user."""
    deferred: int = 0
    """How many rows that no cell waits for were queued with its program's, where that is one of them."""

    def ran_s(self, now_s: float) -> float:
        """Return how long it has run, without the time between its runs and what was lost."""
        if self.started_s is None:
            return 0.0
        between_s = 0.0 if self.stops is None else self.stops.preempted_until(now_s)
        return max(0.0, now_s - self.started_s - between_s - self.recovery_s)

    def stages(self, seconds: Mapping[str, float], now_s: float) -> dict[str, float]:
        """Split its time in the pool into stages, in seconds. What the worker does not account for is
        ``dispatch``, or ``run`` when it accounted for nothing. ``preempted``: between the runs of a preempted
        segment. ``recovering``: from lost workers, with the runs that were lost."""
        if self.started_s is None:
            return {"queued": max(0.0, now_s - self.due_s)}
        rest_s = max(0.0, self.ran_s(now_s) - sum(seconds.values()))
        waited_s = self.started_s - self.due_s
        restoring_s = min(waited_s, self.restoring_s)
        restoring = {"restoring": restoring_s} if restoring_s else {}
        preempted = {} if self.stops is None else {"preempted": self.stops.preempted_until(now_s)}
        recovering = {"recovering": self.recovery_s} if self.recovery_s else {}
        rest = {"dispatch" if seconds else "run": rest_s}
        return {"queued": waited_s - restoring_s, **restoring, **recovering, **preempted, **seconds, **rest}

    def left_s(self, job: Job, now_s: float) -> float | None:
        """Return the seconds that it is expected to run yet, None where nothing tells. The pace that was
        measured counts for more the longer it has run, and alone after :data:`PACE_AFTER_S`."""
        ran_s, done = self.ran_s(now_s), job.ops_done / max(1, job.ops_total)
        if not done:
            return None if job.predicted_s is None or ran_s >= job.predicted_s else job.predicted_s - ran_s
        measured_s = ran_s / done
        trust = 1.0 if job.predicted_s is None else min(1.0, ran_s / PACE_AFTER_S)
        return (1 - done) * (trust * measured_s + (1 - trust) * (job.predicted_s or 0.0))


class JobResume(msgspec.Struct, frozen=True):
    """What a next pool needs to continue a job, beside its view. ``answered``: the last segment that was, -1
    for none. ``stops``: of the segment in flight, which was preempted. The rest: as in
    :class:`djinn_lab.jobs.Job` and :class:`JobRecord`."""

    answered: int
    account: str
    ops_before: int
    ran_s: float
    preemptions: int
    terms: Terms
    deadline_at_s: float | None
    dependency_results: DependencyResults
    in_flight: bool
    stops: SegmentPreemptions | None
    program: str | None

    @classmethod
    def of(cls, job: Job, record: JobRecord) -> JobResume:
        """Describe an unfinished job."""
        flight = record.flight
        waiting = job.state is JobState.WAITING
        return cls(
            answered=job.segment if waiting else job.segment - 1,
            account=job.account,
            ops_before=job.ops_before + (job.ops_total if waiting else 0),
            ran_s=job.ran_s,
            preemptions=job.preemptions,
            terms=job.terms,
            deadline_at_s=job.deadline_at_s,
            dependency_results=job.dependency_results,
            in_flight=not waiting,
            stops=None if flight is None else flight.stops,
            program=record.program,
        )


@dataclass(slots=True)
class JobRecord:
    """``ops_before``: ops of answered segments, done and in all. ``gang``: what became of its wish for
    several devices, in its last segment. ``placed``: as in :class:`JobView`."""

    job: str
    session: str
    user: str
    cell: str
    priority: str
    submitted_at: float
    code: str = ""
    state: str = "SUBMITTED"
    reason: str = ""
    device: str | None = None
    position: int | None = None
    estimate_s: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    cuts: list[JobCut] = field(default_factory=list)
    segments: int = 0
    error: ErrorInfo | None = None
    peak_bytes: int = 0
    predicted_s: float | None = None
    predicted_spread: float | None = None
    measured_s: float | None = None
    ran_s: float = 0.0
    running_since: float | None = None
    ops_before: int = 0
    ops_done: int = 0
    ops_total: int = 0
    gang: str = ""
    placed: str = ""
    checkpoints: tuple[str, ...] = ()
    program: str | None = None
    """What equal cells have in common, None once that was learnt from."""
    predicted: ResourceForecast | None = None
    watts: float | None = None
    used_j: float | None = 0.0
    """None once it ran on a device whose watts are unknown."""
    use: ResourceUse = field(default_factory=ResourceUse)
    flight: RunningSegment | None = None
    stopped: tuple[int, SegmentPreemptions] | None = None
    """A segment that an earlier run of the pool preempted, until it comes again."""

    @classmethod
    def of(cls, submit: SubmitSegment, session: str, user: str, at_s: float) -> JobRecord:
        return cls(submit.job, session, user, submit.cell, submit.priority, at_s, code=submit.code)

    @classmethod
    def returned(cls, view: JobView, code: str, resume: JobResume) -> JobRecord:
        """Make the record of a job of an earlier run of the pool, as it was before the segment in flight."""
        record = cls(view.job, view.session, view.user, view.cell, view.priority, view.submitted_at, code)
        record.started_at, record.ran_s = view.started_at, resume.ran_s
        record.stages = dict(view.stages)
        record.cuts = [cut for cut in view.cuts if cut.segment <= resume.answered]
        record.segments = resume.answered + 1
        record.peak_bytes, record.gang, record.placed = view.peak_bytes, view.gang, view.placed
        record.predicted_s, record.measured_s = view.predicted_s, view.measured_s
        record.ops_before = record.ops_done = record.ops_total = resume.ops_before
        record.checkpoints, record.used_j = view.checkpoints, view.used_j or 0.0
        record.program, record.predicted = resume.program, view.predicted
        if resume.in_flight and resume.stops is not None:
            resume.stops.since_s = None
            record.stopped = resume.answered + 1, resume.stops
        return record

    def take_stopped(self, segment: int) -> SegmentPreemptions | None:
        """Return how far an earlier run of the pool came with this segment."""
        stopped, self.stopped = self.stopped, None
        return stopped[1] if stopped is not None and stopped[0] == segment else None

    def note(self, notice: Notify, job: Job | None) -> None:
        """Take over what the queue decided."""
        self.state = notice.state.value
        self.reason = notice.reason
        self.position = notice.position
        self.estimate_s = notice.estimate_s
        self.device = notice.device or self.device
        if job is not None:
            self.submitted_at = job.submitted_at_s
            self.started_at = job.started_at_s
            self.finished_at = job.ended_at_s
            self.ran_s, self.running_since = job.ran_s, job.running_since_s
            self.placed = job.placed_why or self.placed

    def progressed(self, executed: int) -> None:
        """Count the ops that the current segment has done, on top of those of earlier segments."""
        self.ops_done = self.ops_before + executed

    def add_energy(self, watts: float | None, seconds: float) -> None:
        """Add the energy of a device that the job held."""
        known = watts is not None and self.used_j is not None
        self.used_j = (self.used_j or 0.0) + (watts or 0.0) * seconds if known else None

    def add_stages(self, stages: dict[str, float]) -> None:
        for name, seconds in stages.items():
            self.stages[name] = self.stages.get(name, 0.0) + seconds

    def add_segment(self, submit: SubmitSegment) -> None:
        self.segments += 1
        if submit.cut != STREAMED:
            self.cuts.append(JobCut(submit.segment, submit.cut, submit.cut_line))

    def view(self, now_s: float | None = None, cuts_max: int | None = None) -> JobView:
        """``now_s``: with the stages of the segment in flight until then. ``cuts_max``: the last so many cuts
        only."""
        stages = Counter(self.stages)
        if now_s is not None and self.flight is not None:
            stages.update(self.flight.stages({}, now_s))
        return JobView(
            job=self.job,
            session=self.session,
            user=self.user,
            cell=self.cell,
            priority=self.priority,
            state=self.state,
            reason=f"{self.reason} {self.gang}"
            if self.gang and self.finished_at is not None
            else self.reason,
            device=self.device,
            position=self.position,
            estimate_s=self.estimate_s,
            submitted_at=self.submitted_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            segments=self.segments,
            ops_done=self.ops_done,
            ops_total=self.ops_total,
            stages=dict(stages),
            cuts=tuple(self.cuts if cuts_max is None else self.cuts[-cuts_max:]),
            error=self.error,
            peak_bytes=self.peak_bytes,
            predicted_s=self.predicted_s,
            predicted_spread=self.predicted_spread,
            measured_s=self.measured_s,
            gang=self.gang,
            placed=self.placed,
            checkpoints=self.checkpoints,
            predicted=self.predicted,
            watts=self.watts,
            used_j=self.used_j or None,
            ran_s=self.ran_s,
            running_since=self.running_since,
        )

    def row(self, pool: str, job: Job | None) -> dict[str, object]:
        """Make the job's row for the database, with all cuts once it has ended. ``job``: in the queue."""
        view = self.view(cuts_max=CUTS_STORED_MAX if self.finished_at is None else None)
        return {
            "job": self.job,
            "pool": pool,
            "session": self.session,
            "user": self.user,
            "state": self.state,
            "submitted_at": self.submitted_at,
            "view": msgspec.json.encode(view).decode(),
            "code": self.code,
            "resume": ""
            if job is None or job.finished
            else msgspec.json.encode(JobResume.of(job, self)).decode(),
        }


@dataclass(slots=True)
class SegmentPreemptions:
    """Sum up a segment's preemptions, so that it resumes and ends as one run. ``executed``, ``rng_state``,
    ``if_given_up``: at the last one, as in :class:`~djinn_lab.protocol.worker.RunPreempted`. Seconds are
    summed over its runs; those of nodes count from the first run's beginning, without the time between runs,
    which is ``preempted_s``. ``since_s``: when it stopped, None while it runs. ``lost``: how what it had made
    was lost."""

    executed: int = 0
    rng_state: bytes | None = None
    if_given_up: list[int] = field(default_factory=list)
    node_times: bytes = b""
    load_s: float = 0.0
    run_s: float = 0.0
    peak_bytes: int = 0
    out_bytes: int = 0
    in_bytes: int = 0
    ahead_bytes: int = 0
    preempted_s: float = 0.0
    since_s: float | None = None
    lost: str = ""

    def add(self, message: RunPreempted, now_s: float) -> None:
        self.executed = message.executed
        self.rng_state = message.rng_state
        self.if_given_up = message.if_given_up
        self.node_times += self._moved(message)
        self.load_s += message.load_s
        self.run_s += message.run_s
        self.peak_bytes = max(self.peak_bytes, message.memory.peak_bytes)
        self.out_bytes += message.out_bytes
        self.in_bytes += message.in_bytes
        self.ahead_bytes += message.ahead_bytes
        self.since_s = now_s

    def resume(self, now_s: float) -> Resume:
        """Begin the next run, and return the op for the worker to resume at."""
        self.preempted_s = self.preempted_until(now_s)
        self.since_s = None
        return Resume(self.executed, self.rng_state)

    def preempted_until(self, now_s: float) -> float:
        """Sum the seconds between its runs."""
        return self.preempted_s + (0.0 if self.since_s is None else now_s - self.since_s)

    def whole(self, done: SegmentDone) -> SegmentDone:
        """Turn the answer of the last run into that of the whole segment."""
        return replace(
            done,
            node_times=self.node_times + self._moved(done),
            load_s=self.load_s + done.load_s,
            run_s=self.run_s + done.run_s,
            memory=self.fullest(done.memory),
            out_bytes=self.out_bytes + done.out_bytes,
            in_bytes=self.in_bytes + done.in_bytes,
            ahead_bytes=self.ahead_bytes + done.ahead_bytes,
        )

    def _moved(self, times: NodeTimes) -> bytes:
        """Count a run's times from the first run's beginning."""
        return pack_times(
            (self.run_s + seconds for seconds in times.node_start_s),
            (self.run_s + seconds for seconds in times.node_end_s),
        )

    def fullest(self, memory: WorkerMemory) -> WorkerMemory:
        """Put the peak of all runs into a memory report."""
        return replace(memory, peak_bytes=max(self.peak_bytes, memory.peak_bytes))


def ended_job(view: JobView, now_s: float) -> JobReturned:
    """Return the event that lets the queue know a job again that ended."""
    return JobReturned(
        now_s,
        *(view.job, view.session, view.user, max(-1, view.segments - 1), view.priority),
        submitted_at_s=view.submitted_at,
        checkpoints=view.checkpoints,
        state=JobState(view.state),
        ended_at_s=view.finished_at or now_s,
    )
