"""A job as a frozen value, a view of a device with its queue, and a snapshot of both."""

from __future__ import annotations

import msgspec

from djinn_lab.events import MemoryRelease
from djinn_lab.jobs.conditions import DependencyResults, DependencyState
from djinn_lab.jobs.messages import MemoryNeed
from djinn_lab.jobs.placement.first_device import DeviceFit
from djinn_lab.jobs.request import left_s
from djinn_lab.jobs.states import FINISHED, JobState
from djinn_lab.jobs.terms import NO_TERMS, Terms
from djinn_lab.srg.structure import GraphPhase


class Job(msgspec.Struct, frozen=True):
    """One job of the queue, as a frozen value. ``number``: arrival of the job; ``arrival``: arrival of its
    current segment. Both count from 0. ``account``: the leaf of the share tree that pays.

    ``segment`` is the current segment, or the last one while WAITING. ``assigned_device``: the device that
    the job runs on, is queued for, or waits for memory of. Times are those of the events, in seconds."""

    job: str
    session: str
    user: str
    account: str
    priority: str
    number: int
    arrival: int
    state: JobState
    segment: int
    final: bool
    ops_total: int
    submitted_at_s: float
    segment_at_s: float
    ops_done: int = 0
    ops_before: int = 0
    """Ops of the job's earlier segments. ``ops_done`` and ``ops_total`` are those of the current one."""
    target: str | None = None
    assigned_device: str | None = None
    predicted_s: float | None = None
    started_at_s: float | None = None
    ended_at_s: float | None = None
    cancelling: bool = False
    message: str = ""
    memory: MemoryNeed = "free"
    memory_reason: str = ""
    memory_wait_s: float | None = None
    memory_release: MemoryRelease = MemoryRelease.COPIES
    terms: Terms = NO_TERMS
    deadline_at_s: float | None = None
    waits_for: tuple[str, ...] = ()
    """Open conditions of its dependencies: see :mod:`djinn_lab.jobs.conditions`."""
    dependency_results: DependencyResults = DependencyResults()
    """Results of the conditions that are no longer open."""
    checkpoints: tuple[str, ...] = ()
    """Announced checkpoints, in this order."""
    turn: int = 0
    """Queue order by arrival; a preemption on request puts the job behind all pending ones."""
    preempting: bool = False
    """Asked to stop for a preemption, and still running."""
    yields: bool = False
    """The preemption was requested by a person, so all other jobs go first."""
    preemptions: int = 0
    preempted_at_s: float | None = None
    losses: int = 0
    """How often its segment's worker was lost under it."""
    move_s: float | None = None
    """Seconds to move the session's state to another device, None when it cannot be moved."""
    other_host_s: float = 0.0
    """Seconds more where that is on another host."""
    parts_s: float = 0.0
    """Seconds to move what the parts of a gang hold beside the session."""
    settled: bool = False
    """Was moved, or could not be: the job stays on its device until it has run there."""
    running_since_s: float | None = None
    devices: int = 1
    """Devices that the segment can use at once."""
    devices_why: str = ""
    """Why these are fewer than the terms ask for."""
    members: tuple[str, ...] = ()
    """Devices that a running gang holds beside ``assigned_device``."""
    ran_s: float = 0.0
    """Run time before ``running_since_s``, over all segments."""
    ran_before_s: float = 0.0
    """The part of that in earlier segments."""
    predicted_spread: float = 1.0
    """Nine of ten such segments end within so many times their prediction."""
    fits: tuple[DeviceFit, ...] = ()
    """How its cell fits the devices, where its session has none yet."""
    placed_why: str = ""
    """How its profile changed the choice of the device at which its session began."""
    phase: GraphPhase = ""
    """Of its segment's graph."""
    batch: str = ""
    """Segments of equal batches may run as one, empty for none."""
    leader: str = ""
    """The job in whose slot a running rider runs, with others in one batch."""
    batch_members: int = 1
    """Jobs with which its segment last started, itself included."""
    process: str = ""
    """Where its segment may be interleaved with others, as in
    :class:`~djinn_lab.jobs.messages.SegmentSubmitted`."""
    interleaved: bool = False
    """Its running segment has no slot: it runs between two ops of the job that has it."""

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @property
    def waiting(self) -> DependencyState:
        """State of its dependencies."""
        return DependencyState(self.waits_for, self.dependency_results)

    @property
    def holds(self) -> tuple[str, ...]:
        """Devices that the job runs on, the one that its session is bound to first."""
        running = self.state is JobState.RUNNING and self.assigned_device is not None
        return (self.assigned_device, *self.members) if running and self.assigned_device is not None else ()

    @property
    def shared_process(self) -> str:
        """The process in which its segment may be interleaved, empty where it may not: of a gang, or after
        its worker was lost."""
        return self.process if self.gang == 1 and not self.losses else ""

    @property
    def gang(self) -> int:
        """Devices that the segment wants at once."""
        return min(self.terms.gang, self.devices)

    @property
    def gang_min(self) -> int:
        """Fewest devices that the segment starts with."""
        return min(self.terms.gang_min, self.devices)

    @property
    def remaining_s(self) -> float | None:
        """Predicted seconds of run time left in this segment, None when unknown. Past that, as
        :func:`~djinn_lab.jobs.request.left_s` has it, or less by the pace of its ops."""
        if self.predicted_s is None:
            return None
        done, ran_s = self.ops_done / max(1, self.ops_total), self.ran_s - self.ran_before_s
        by_ops_s = self.predicted_s * (1 - done)
        if ran_s <= self.predicted_s:
            return by_ops_s
        by_pace_s = ran_s * (1 - done) / done if done else ran_s
        return max(by_ops_s, min(left_s(self.predicted_s, ran_s), by_pace_s))


class DeviceQueueView(msgspec.Struct, frozen=True):
    """``running``: the first of the jobs that the device runs. ``queue``: its pending jobs, the next one
    first. ``sessions``: those bound to the device. ``own_labels``: the part of ``labels`` that operators
    did not give."""

    device: str
    alive: bool
    cordoned: bool
    running: str | None
    queue: tuple[str, ...]
    sessions: tuple[str, ...]
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    price: float = 0.0
    own_labels: tuple[str, ...] = ()
    watts: float | None = None


class UnavailableDevices(msgspec.Struct, frozen=True):
    """Devices that start nothing: those whose worker is down, those that are cordoned, and those whose worker
    does not answer."""

    lost: tuple[str, ...]
    cordoned: tuple[str, ...]
    silent: tuple[str, ...] = ()


class QueueSnapshot(msgspec.Struct, frozen=True):
    """Everything at one moment. ``jobs``: the unfinished ones, by arrival."""

    devices: tuple[DeviceQueueView, ...]
    jobs: tuple[Job, ...]
