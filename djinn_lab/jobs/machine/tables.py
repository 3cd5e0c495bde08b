"""The state of the queue, and the few steps that all events are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from msgspec.structs import replace

from djinn_lab.events import IllegalEvent
from djinn_lab.jobs.commands import Command, EndSegment
from djinn_lab.jobs.job import Job, UnavailableDevices
from djinn_lab.jobs.messages import ExternalDependency
from djinn_lab.jobs.placement.nearness import NUMA, numa_of
from djinn_lab.jobs.states import CONTENDING, PENDING_STATES, TRANSITIONS, JobState, JobTransition

FINISHED_JOBS_MAX = 200
"""How many finished jobs are remembered, with their stories."""
OF_AN_EVENT = ("now_s", "out", "touched", "memory_answered", "used", "uncharged", "replayed_s", "device_s")
"""What the tables know of the event under way only."""
LABELLED_MAX = 2**16
"""Devices whose labels are cached: every decision reads all of them several times."""
OUTCOME_TRANSITIONS = {
    "done": JobTransition.FINISH,
    "failed": JobTransition.FAIL,
    "cancelled": JobTransition.CANCEL,
}


@dataclass(slots=True)
class QueueDevice:
    """A device as the queue knows it. ``alive``: its worker is up. ``heard``: it answers. ``expected``: it is
    not there, and may come with a further node. ``cordoned``: nothing new starts. ``running``: the jobs that
    the device runs, the first started first, at most ``slots`` of them besides the ``riders``, which run in
    one batch with another, or between its ops. ``numa_node``: where the device is, None when unknown;
    ``host``: on which machine, empty for the pool's. ``taints``: only jobs that tolerate all of them run
    there. ``price``: of a device-hour, in any currency. ``watts``: what the device draws when busy, as
    operators say, None when unknown."""

    device: str
    alive: bool = True
    heard: bool = True
    expected: bool = False
    cordoned: bool = False
    slots: int = 1
    running: list[str] = field(default_factory=list)
    riders: set[str] = field(default_factory=set)
    memory_bytes: int = 0
    link_bytes_per_s: float = 0.0
    numa_node: int | None = None
    host: str = ""
    given_labels: frozenset[str] = frozenset()
    taints: frozenset[str] = frozenset()
    price: float = 0.0
    watts: float | None = None

    @property
    def serves(self) -> bool:
        """Return whether jobs may start on the device."""
        return self.alive and self.heard and not self.cordoned

    @property
    def idle_slots(self) -> int:
        return self.slots - (len(self.running) - len(self.riders))

    def hour_price(self, energy_price_per_kwh: float) -> float:
        """Return the price of a device-hour, its energy included where that is known."""
        return self.price + (self.watts or 0.0) / 1000 * energy_price_per_kwh

    @property
    def labels(self) -> frozenset[str]:
        """Labels given by operators, and the device's own."""
        return _all_labels(self.device, self.numa_node, self.host, self.given_labels)

    @property
    def own_labels(self) -> frozenset[str]:
        """The device's kind, its host where the pool has several, and its NUMA node, unless operators gave it
        another NUMA label."""
        return _own_labels(self.device, self.numa_node, self.host, self.given_labels)

    def check_own(self, label: str) -> None:
        """Raise ValueError for a label that says other than the device's own of that key: a cell for either
        value would run on it. An operator may know better on which NUMA node it is."""
        key = label.partition("=")[0]
        own = next((one for one in self.own_labels if one.partition("=")[0] == key), label)
        if own != label and key != NUMA:
            raise ValueError(f"the label {label!r} beside its own, {own}; use another key")


@lru_cache(LABELLED_MAX)
def _own_labels(device: str, numa_node: int | None, host: str, given: frozenset[str]) -> frozenset[str]:
    own = {f"kind={device.partition(':')[0]}"}
    if host:
        own.add(f"host={host}")
    if numa_node is not None and numa_of(given) is None:
        own.add(f"{NUMA}={host}-{numa_node}" if host else f"{NUMA}={numa_node}")
    return frozenset(own)


@lru_cache(LABELLED_MAX)
def _all_labels(device: str, numa_node: int | None, host: str, given: frozenset[str]) -> frozenset[str]:
    return given | _own_labels(device, numa_node, host, given)


@dataclass(slots=True)
class QueueTables:
    """Jobs, sessions and devices of the queue. ``bound``: session to device. ``load``: by device, its
    sessions and the jobs that contend from it; no entry for 0. ``unplaced``: the SUBMITTED jobs that may get
    a device now. ``dependent``: jobs that wait for dependencies. ``limited``: jobs that run and
    have a limit of run time. ``jobs``: the unfinished. ``of_session``:
    unfinished jobs by session, in the order in which their segments arrived. ``external``: dependencies of
    jobs that are not the queue's own jobs. Of the event in hand: ``out``: its commands; ``touched``: jobs
    that it changed; ``memory_answered``: jobs that session memory answered for; ``used``: memory byte-seconds
    and transferred bytes of what just ended; ``uncharged``: jobs whose run was lost with its worker;
    ``replayed_s``: the part of a run that made lost values again, which is not charged; ``device_s``: for how
    long the worker was at it. ``touched_devices``:
    those that changed since decisions last followed them, but for what they run."""

    devices: dict[str, QueueDevice] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)
    load: dict[str, int] = field(default_factory=dict)
    unplaced: dict[str, None] = field(default_factory=dict)
    dependent: dict[str, None] = field(default_factory=dict)
    limited: dict[str, None] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    finished: dict[str, Job] = field(default_factory=dict)
    of_session: dict[str, list[str]] = field(default_factory=dict)
    of_state: dict[JobState, dict[str, None]] = field(default_factory=lambda: {s: {} for s in JobState})
    external: dict[str, ExternalDependency] = field(default_factory=dict)
    now_s: float = 0.0
    jobs_seen: int = 0
    segments_seen: int = 0
    preemptions: int = 0
    out: list[Command] = field(default_factory=list)
    touched: dict[str, None] = field(default_factory=dict)
    touched_devices: dict[str, None] = field(default_factory=dict)
    memory_answered: set[str] = field(default_factory=set)
    used: dict[str, tuple[float, float]] = field(default_factory=dict)
    uncharged: set[str] = field(default_factory=set)
    replayed_s: dict[str, float] = field(default_factory=dict)
    device_s: dict[str, float | None] = field(default_factory=dict)

    # -- looking -------------------------------------------------------------------------------------------

    def find(self, job: str) -> Job | None:
        """Return an unfinished or recently finished job, None when neither is known."""
        return self.jobs.get(job) or self.finished.get(job)

    def active(self, job: str, fault: str) -> Job:
        """Return an unfinished job. Raises IllegalEvent when the job is unknown or finished."""
        if job not in self.jobs:
            finished = self.finished.get(job)
            what = f"is already {finished.state}" if finished else "is unknown"
            raise IllegalEvent(f"job {job} {what}", fault)
        return self.jobs[job]

    def running_segment(self, job: str, segment: int) -> Job:
        known = self.active(job, "pool")
        if known.state is not JobState.RUNNING or known.segment != segment:
            raise IllegalEvent(f"segment {segment} of job {job} is not running ({known.state})", "pool")
        return known

    def begin_event(self, at_s: float) -> Callable[[], None]:
        """Forget the last event, and return what takes that back, for one that turns out to be illegal."""
        before = {name: getattr(self, name) for name in OF_AN_EVENT}
        self.now_s = at_s
        self.out, self.touched = [], {}
        self.memory_answered, self.used = set(), {}
        self.uncharged, self.replayed_s, self.device_s = set(), {}, {}

        def take_back() -> None:
            for name, value in before.items():
                setattr(self, name, value)

        return take_back

    def first_of_session(self, session: str) -> Job | None:
        """Return the session's first job; jobs that wait for their client are skipped."""
        mates = (self.jobs[name] for name in self.of_session.get(session, ()))
        return next((job for job in mates if job.state is not JobState.WAITING), None)

    def in_state(self, *states: JobState) -> Iterator[Job]:
        for state in states:
            for name in list(self.of_state[state]):
                yield self.jobs[name]

    def of_device(self, device: str) -> list[Job]:
        """Return the jobs that are pending on the device, or wait for memory there."""
        return [
            job for job in self.in_state(*PENDING_STATES, JobState.RESTORING) if job.assigned_device == device
        ]

    def unavailable_devices(self) -> UnavailableDevices:
        lost = sorted(
            name for name, device in self.devices.items() if not device.alive and not device.expected
        )
        cordoned = sorted(name for name, device in self.devices.items() if device.alive and device.cordoned)
        silent = sorted(name for name, device in self.devices.items() if device.alive and not device.heard)
        return UnavailableDevices(tuple(lost), tuple(cordoned), tuple(silent))

    # -- changing ------------------------------------------------------------------------------------------

    def bind(self, session: str, device: str) -> None:
        """Bind the session to the device that has its values. Its unplaced jobs may get this device."""
        self.unbind(session)
        self.bound[session] = device
        self._count(device, 1)
        for name in self.of_session.get(session, ()):
            if self.jobs[name].state is JobState.SUBMITTED:
                self.unplaced[name] = None

    def unbind(self, session: str) -> None:
        device = self.bound.pop(session, None)
        if device is not None:
            self._count(device, -1)

    def retry_unplaced(self) -> None:
        """Look at every job without a device again, since devices changed."""
        self.unplaced |= self.of_state[JobState.SUBMITTED]

    def put(self, job: Job) -> None:
        """Store the job's new value; a finished job leaves the unfinished ones."""
        old = self.jobs.get(job.job)
        if old is not None:
            del self.of_state[old.state][job.job]
            if old.state in CONTENDING and old.assigned_device is not None:
                self._count(old.assigned_device, -1)
        if job.state in CONTENDING and job.assigned_device is not None:
            self._count(job.assigned_device, 1)
        if job.state is JobState.SUBMITTED:
            self.unplaced[job.job] = None
        self.dependent.pop(job.job, None)
        if job.waits_for and not job.finished:
            self.dependent[job.job] = None
        self.limited.pop(job.job, None)
        if job.state is JobState.RUNNING and job.terms.timeout_s is not None:
            self.limited[job.job] = None
        self.touched[job.job] = None
        mates = self.of_session.setdefault(job.session, [])
        if old is None or old.arrival != job.arrival:
            if old is not None:
                mates.remove(job.job)
            mates.append(job.job)
        if not job.finished:
            self.jobs[job.job] = job
            self.of_state[job.state][job.job] = None
            return
        self.jobs.pop(job.job, None)
        mates.remove(job.job)
        if not mates:
            del self.of_session[job.session]
        self.finished[job.job] = job

    def forget(self) -> list[str]:
        """Drop the finished jobs beyond the number that is remembered, and return their names. Call it
        only after all consequences of their ends were handled."""
        forgotten = list(islice(self.finished, max(0, len(self.finished) - FINISHED_JOBS_MAX)))
        for name in forgotten:
            del self.finished[name]
        return forgotten

    def update(self, job: Job) -> None:
        """Change a job within its state, without a notification."""
        old = self.jobs[job.job]
        assert (old.state, old.assigned_device) == (job.state, job.assigned_device)
        self.jobs[job.job] = job

    def _count(self, device: str, by: int) -> None:
        count = self.load.get(device, 0) + by
        if count:
            self.load[device] = count
        else:
            del self.load[device]

    def settle(self, job: Job, outcome: str, at_s: float, message: str) -> None:
        """Apply the answer of the job's segment: wait for more, or end."""
        if outcome == "cancelled" or job.final:
            self.end(job, OUTCOME_TRANSITIONS[outcome], at_s, message)
        else:
            self.put(replace(moved(job, JobTransition.MORE), assigned_device=None, message=message))

    def end(self, job: Job, move: JobTransition, at_s: float, message: str) -> None:
        state = next_state(job, move)
        self.put(replace(job, state=state, assigned_device=None, ended_at_s=at_s, message=message))

    def answer_cancelled(self, job: Job, message: str) -> None:
        """Answer the segment as cancelled, since no worker will."""
        self.out.append(
            EndSegment(job.job, job.segment, "cancelled", job.ops_done, job.assigned_device, message)
        )


def moved(job: Job, move: JobTransition) -> Job:
    """Return ``job`` after one transition. Raises IllegalEvent for one that is not in the table."""
    return replace(job, state=next_state(job, move))


def next_state(job: Job | None, move: JobTransition) -> JobState:
    state = None if job is None else job.state
    if (state, move) not in TRANSITIONS:
        raise IllegalEvent(f"a job that is {state or 'new'} cannot {move}", "pool")
    return TRANSITIONS[state, move]


def started(job: Job, at_s: float) -> Job:
    """Return the job once it runs, alone on one device."""
    return replace(
        job,
        state=next_state(job, JobTransition.START),
        started_at_s=job.started_at_s if job.started_at_s is not None else at_s,
        running_since_s=at_s,
        settled=False,
        message="",
        members=(),
        batch_members=1,
    )
