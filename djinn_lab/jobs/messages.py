"""Events of the queue, each with its own time in seconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from djinn_lab.events import ClockTicked, DeviceAdded, MemoryRelease, SessionClosed, SessionDetached
from djinn_lab.jobs.conditions import DependencyResults
from djinn_lab.jobs.decision.rules.policy import QueuePolicy
from djinn_lab.jobs.fairness import Limits, ShareState
from djinn_lab.jobs.placement.first_device import DeviceFit
from djinn_lab.jobs.states import JobState
from djinn_lab.jobs.terms import NO_TERMS, Terms
from djinn_lab.srg.structure import GraphPhase

MemoryNeed = Literal["free", "ask", "deferred", "queued", "granted"]
"""``free``: runs without asking session memory. ``ask``: :class:`~djinn_lab.jobs.commands.PlaceSegment`
asks once the job is bound. ``deferred``: was asked, and waits. ``queued``: the session's state is there, and
the memory grant comes with its turn. ``granted``: may run on the device that its session is bound to."""


class DeviceLost(msgspec.Struct, frozen=True, tag=True):
    """A worker died. ``message`` says how. ``sessions``: those whose worker it was, where the device lives on
    with others; None: the device is lost for all."""

    at_s: float
    device: str
    message: str
    sessions: tuple[str, ...] | None = None


class DeviceExpected(msgspec.Struct, frozen=True, tag=True):
    """The device is not there, and may come with a node of its own: jobs may ask for it. Sent before the
    device is first added, or after its loss."""

    at_s: float
    device: str


class DeviceHeard(msgspec.Struct, frozen=True, tag=True):
    """The device's worker stopped answering (``heard`` is False), or answers again. ``leaving``: sessions
    that are bound to no device from now on, since nothing of theirs is in its memory."""

    at_s: float
    device: str
    heard: bool
    leaving: tuple[str, ...] = ()


class ExternalDependency(msgspec.Struct, frozen=True):
    """A batch notebook that a cell may depend on; the queue does not run it. ``waits_for``: cells that
    have to end before the notebook can."""

    job: str
    name: str
    state: str
    over: bool = False
    checkpoints: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()


class SegmentSubmitted(msgspec.Struct, frozen=True, tag=True):
    """A segment was submitted. ``target``: where the user wants the segment to run, as
    :mod:`djinn_lab.jobs.targets` has it. ``predicted_s``: expected run time, None when unknown; nine of ten
    such segments end within ``predicted_spread`` times as long. ``memory_reason``, ``memory_wait_s`` and the
    other ``memory_`` fields: as in :class:`MemoryDeferred`. ``account``: the leaf of the share tree that
    pays, the user's name if empty. ``terms`` count with the first segment. ``devices``: that this segment can
    use at once, at most as many as its terms ask for; ``devices_why``: why they are fewer. ``move_s``:
    seconds to move the session's state to another device, None when it cannot be moved; ``other_host_s``: so
    many more where that is on another host. ``parts_s``: seconds to move what the parts of a gang will hold
    beside it. ``met``: data conditions of its dependencies that
    were published before. ``external``: batch notebooks that it depends on. ``notebook``: the batch notebook
    that the session belongs to, empty for none. ``fits``: for a session that begins, the devices. ``phase``:
    of the segment's graph. ``batch``: equal for segments of several sessions that may run as one batch, empty
    for none. ``process``: the worker process of its session, where a brief segment may run between two ops of
    a longer one with the same name; empty for a segment that takes no part in that."""

    at_s: float
    job: str
    segment: int
    session: str
    user: str
    priority: str
    ops_total: int
    final: bool
    target: str | None = None
    predicted_s: float | None = None
    memory: MemoryNeed = "free"
    memory_reason: str = ""
    memory_wait_s: float | None = None
    memory_release: MemoryRelease = MemoryRelease.COPIES
    account: str = ""
    terms: Terms = NO_TERMS
    move_s: float | None = None
    other_host_s: float = 0.0
    devices: int = 1
    devices_why: str = ""
    met: tuple[str, ...] = ()
    parts_s: float = 0.0
    external: tuple[ExternalDependency, ...] = ()
    notebook: str = ""
    predicted_spread: float = 1.0
    fits: tuple[DeviceFit, ...] = ()
    phase: GraphPhase = ""
    batch: str = ""
    process: str = ""


class SegmentRefused(msgspec.Struct, frozen=True, tag=True):
    """A segment was rejected; ``message`` says why. The job may continue unless the segment was ``final``."""

    at_s: float
    job: str
    segment: int
    session: str
    user: str
    priority: str
    ops_total: int
    final: bool
    message: str


class MemoryDeferred(msgspec.Struct, frozen=True, tag=True):
    """The job's segment waits for its session's state, or for a memory grant, on its device; sent again
    when the reason changes. ``queued``: only until its turn is near. ``device``: as in
    :class:`MemoryGranted`. No capacity is reserved for a job whose ``release`` is stuck."""

    at_s: float
    job: str
    reason: str
    wait_s: float | None = None
    queued: bool = False
    release: MemoryRelease = MemoryRelease.COPIES
    device: str | None = None


class MemoryGranted(msgspec.Struct, frozen=True, tag=True):
    """The session's state is on its device, with memory for the job's segment. ``device``: for which
    memory was asked, None: the present one. A grant for a device that the session has left since, or for
    an ended job, is ignored."""

    at_s: float
    job: str
    device: str | None = None


class MemoryRefused(msgspec.Struct, frozen=True, tag=True):
    """The job's segment that waited for memory will never get it. The job may continue unless that segment
    was the last."""

    at_s: float
    job: str
    message: str


class SegmentProgressed(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    job: str
    segment: int
    ops_done: int


class SegmentFinished(msgspec.Struct, frozen=True, tag=True):
    """A worker's answer. ``outcome``: ``done``, ``failed`` or ``cancelled``. ``memory_byte_s`` and
    ``transfer_bytes``: what the segment held over its run time, and what was copied for it to and from the
    device, for its account. ``continues``: the client sends the failed segment again, or finishes the job,
    so that the job does not end here even if the segment was the final one. ``replayed_s``: of its run time,
    to make again what its session had lost with a worker. ``device_s``: for how long the worker was at it,
    None when unknown; that is what an interleaved segment pays."""

    at_s: float
    job: str
    segment: int
    outcome: str
    ops_done: int
    message: str = ""
    memory_byte_s: float = 0.0
    transfer_bytes: float = 0.0
    continues: bool = False
    replayed_s: float = 0.0
    device_s: float | None = None


class MemberLeft(msgspec.Struct, frozen=True, tag=True):
    """A running gang has no more use for this member device, which is not the one that its session is
    bound to."""

    at_s: float
    job: str
    segment: int
    device: str


class JobFinished(msgspec.Struct, frozen=True, tag=True):
    """The client reports the end of the cell. ``outcome``: ``done``, ``failed`` or ``cancelled``."""

    at_s: float
    job: str
    outcome: str
    message: str = ""


class JobReturned(msgspec.Struct, frozen=True, tag=True):
    """A job of an earlier run of this pool, which was killed: its client sends the next segment, or sends it
    again. ``segment``: the last one that was answered, -1 for none, with ``ops_before`` ops up to
    there. ``state``: how the job ended, where it did and others depend on it. The rest: as in
    :class:`~djinn_lab.jobs.job.Job`."""

    at_s: float
    job: str
    session: str
    user: str
    segment: int
    priority: str = "NORMAL"
    account: str = ""
    ops_before: int = 0
    submitted_at_s: float = 0.0
    started_at_s: float | None = None
    ran_s: float = 0.0
    preemptions: int = 0
    terms: Terms = NO_TERMS
    deadline_at_s: float | None = None
    dependency_results: DependencyResults = DependencyResults()
    checkpoints: tuple[str, ...] = ()
    state: JobState = JobState.WAITING
    ended_at_s: float | None = None


class CheckpointAnnounced(msgspec.Struct, frozen=True, tag=True):
    """The job, which continues, has reached the checkpoint ``name``."""

    at_s: float
    job: str
    name: str


class DataPublished(msgspec.Struct, frozen=True, tag=True):
    """Data was published. ``account``: the leaf of the share tree of the user that published data called
    ``name``."""

    at_s: float
    account: str
    name: str


class ExternalDependencyChanged(msgspec.Struct, frozen=True, tag=True):
    """The state or the checkpoints changed of a batch notebook that cells may depend on."""

    at_s: float
    external: ExternalDependency


class CancelRequested(msgspec.Struct, frozen=True, tag=True):
    """A job is to be cancelled. ``message`` says by which user or why."""

    at_s: float
    job: str
    message: str


class PreemptRequested(msgspec.Struct, frozen=True, tag=True):
    """A user asks to preempt the running job, behind all that are pending now. ``message`` says which
    user."""

    at_s: float
    job: str
    message: str


class SegmentPreempted(msgspec.Struct, frozen=True, tag=True):
    """The worker stopped the segment after ``ops_done`` ops; their results stay with the session.
    ``move_s``: seconds to move all of the session to another device, None when it cannot be moved;
    ``other_host_s``: as in :class:`SegmentSubmitted`.
    ``devices``: that the job can use at once when it resumes, several if it was stopped as a gang.
    ``parts_s``: as in :class:`SegmentSubmitted`. ``undone``: the work since the last start does not count.
    ``replayed_s``: as in :class:`SegmentFinished`."""

    at_s: float
    job: str
    segment: int
    ops_done: int
    move_s: float | None = None
    other_host_s: float = 0.0
    devices: int = 1
    parts_s: float = 0.0
    undone: bool = False
    replayed_s: float = 0.0


class MoveRefused(msgspec.Struct, frozen=True, tag=True):
    """Session memory cannot move the job's session to the device that the queue chose; the session stays
    on ``device``."""

    at_s: float
    job: str
    device: str
    reason: str


class MoveProposed(msgspec.Struct, frozen=True, tag=True):
    """Session memory proposes to move the job's session to ``device``: memory is free there and none is
    coming where the session is, or fewer jobs compete for it there."""

    at_s: float
    job: str
    device: str


class DeviceCordoned(msgspec.Struct, frozen=True, tag=True):
    """A device was cordoned or uncordoned. ``cordoned``: nothing new starts on the device; with ``drain``,
    its running jobs are preempted, to resume on other devices. Not ``cordoned``: the device serves again."""

    at_s: float
    device: str
    cordoned: bool
    drain: bool = False


class DeviceDescribed(msgspec.Struct, frozen=True, tag=True):
    """An operator's description of a device, in place of the former one. ``labels``: ``key=value``, for
    cells that ask for them; ``taints``: only cells that tolerate all of them start there; ``price``: of a
    device-hour, in any currency; ``watts``: what the device draws when busy, None for unknown."""

    at_s: float
    device: str
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    price: float = 0.0
    watts: float | None = None


class QueueOpened(msgspec.Struct, frozen=True, tag=True):
    """The first event of a queue's life: the policy by which it decides (its name in
    :data:`djinn_lab.jobs.decision.POLICIES`, or itself), and the usage and limits of its accounts."""

    at_s: float
    policy: str | QueuePolicy
    shares: ShareState


class PolicyChanged(msgspec.Struct, frozen=True, tag=True):
    """The policy was changed. ``policy``: its name in :data:`djinn_lab.jobs.decision.POLICIES`, or itself."""

    at_s: float
    policy: str | QueuePolicy


class SharesChanged(msgspec.Struct, frozen=True, tag=True):
    """New targets for an account of any level (``""``: the whole pool). A field that is None stays."""

    at_s: float
    account: str
    weight: float | None = None
    limits: Limits | None = None
    min_runtime_s: float | None = None


class ReservationMade(msgspec.Struct, frozen=True, tag=True):
    """From ``begins_s`` to ``ends_s`` these devices are for these accounts, and those below them, only. A
    job of other accounts starts there only if it is expected to end by then. A reservation of the same
    name is replaced."""

    at_s: float
    name: str
    devices: frozenset[str]
    begins_s: float
    ends_s: float
    accounts: frozenset[str]


class ReservationEnded(msgspec.Struct, frozen=True, tag=True):
    """The devices are for all accounts again."""

    at_s: float
    name: str


Event = (
    DeviceAdded
    | DeviceLost
    | DeviceExpected
    | DeviceHeard
    | SegmentSubmitted
    | SegmentRefused
    | MemoryDeferred
    | MemoryGranted
    | MemoryRefused
    | SegmentProgressed
    | SegmentFinished
    | MemberLeft
    | JobFinished
    | JobReturned
    | CheckpointAnnounced
    | DataPublished
    | ExternalDependencyChanged
    | CancelRequested
    | PreemptRequested
    | SegmentPreempted
    | MoveRefused
    | MoveProposed
    | DeviceCordoned
    | DeviceDescribed
    | QueueOpened
    | PolicyChanged
    | SharesChanged
    | ReservationMade
    | ReservationEnded
    | ClockTicked
    | SessionDetached
    | SessionClosed
)
