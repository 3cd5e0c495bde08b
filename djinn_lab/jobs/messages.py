"""What goes into the queue: events, each with its own time in seconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from djinn_lab.jobs.awaited import CheckpointAnnounced, DataPublished, Elsewhere, ElsewhereChanged
from djinn_lab.jobs.decision.policy import QueuePolicy
from djinn_lab.jobs.fairness import Limits, ShareState
from djinn_lab.jobs.terms import NO_TERMS, Terms

MemoryNeed = Literal["free", "ask", "held", "line", "granted"]
"""``free``: runs without asking session memory. ``ask``: once it is bound,
:class:`~djinn_lab.jobs.commands.PlaceSegment` asks. ``held``: was asked, and waits. ``line``: its state is
there, and room comes with its turn. ``granted``: may run on the device that its session is bound to."""


class DeviceAdded(msgspec.Struct, frozen=True, tag=True):
    """A worker became ready, for the first time or again. ``memory_bytes`` and ``link_bytes_per_s``: what it
    offers, for shares of it; 0: not shared by. ``numa_node``: where the device is, None where nobody
    knows. ``slots``: jobs that it runs at once."""

    at_s: float
    device: str
    memory_bytes: int = 0
    link_bytes_per_s: float = 0.0
    numa_node: int | None = None
    slots: int = 1


class DeviceLost(msgspec.Struct, frozen=True, tag=True):
    """A worker died. ``message`` says how. ``undone``: jobs whose segment ran there and is to run again,
    since its session is as it was before."""

    at_s: float
    device: str
    message: str
    undone: tuple[str, ...] = ()


class SegmentSubmitted(msgspec.Struct, frozen=True, tag=True):
    """``wish``: where the user wants it to run, as :mod:`djinn_lab.jobs.targets` has it. ``predicted_s``:
    expected run time, None when unknown. With ``memory`` held: why, for how long about, and as in
    :class:`MemoryHeld`. ``account``: the
    leaf of the share tree that pays, the user's name if empty. ``terms`` count with the first segment.
    ``devices``: that this segment can use at once, at most as many as its terms ask for; fewer:
    ``devices_why``. ``move_s``: what bringing the session's state to another device would take, None when it
    cannot be brought; ``parts_s``: likewise of what the parts of a gang will hold beside it. ``met``: of what
    it comes after, data that was published before; ``elsewhere``: batch notebooks. ``notebook``: the batch
    notebook that the session belongs to, empty for none."""

    at_s: float
    job: str
    segment: int
    session: str
    user: str
    priority: str
    ops_total: int
    final: bool
    wish: str | None = None
    predicted_s: float | None = None
    memory: MemoryNeed = "free"
    memory_reason: str = ""
    memory_wait_s: float | None = None
    memory_room: bool = False
    memory_stuck: bool = False
    memory_closing: bool = False
    account: str = ""
    terms: Terms = NO_TERMS
    move_s: float | None = None
    devices: int = 1
    devices_why: str = ""
    met: tuple[str, ...] = ()
    parts_s: float = 0.0
    elsewhere: tuple[Elsewhere, ...] = ()
    notebook: str = ""


class SegmentRefused(msgspec.Struct, frozen=True, tag=True):
    """A segment that was not let in; ``message`` says why. The job may go on unless it was ``final``."""

    at_s: float
    job: str
    segment: int
    session: str
    user: str
    priority: str
    ops_total: int
    final: bool
    message: str


class MemoryHeld(msgspec.Struct, frozen=True, tag=True):
    """The job's segment waits for its session's state, or for room, on its device; sent again when the reason
    changes. ``in_line``: only until its turn is near. ``room``: for others to leave, not for a copy.
    ``stuck``: nothing is under way that brings it any, so that no place is kept for it meanwhile;
    ``closing``: until sessions close.
    ``device``: as in :class:`MemoryGranted`."""

    at_s: float
    job: str
    reason: str
    wait_s: float | None = None
    in_line: bool = False
    room: bool = False
    stuck: bool = False
    closing: bool = False
    device: str | None = None


class MemoryGranted(msgspec.Struct, frozen=True, tag=True):
    """The session's state is on its device, with room for the job's segment. ``device``: for which memory was
    asked; what it says of one that the session has left since, or of a job that is over, counts for nothing.
    None: the present one."""

    at_s: float
    job: str
    device: str | None = None


class MemoryRefused(msgspec.Struct, frozen=True, tag=True):
    """The job's segment that waited for memory will never get it. The job may go on unless that was the
    last."""

    at_s: float
    job: str
    message: str


class SegmentProgressed(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    job: str
    segment: int
    ops_done: int


class SegmentFinished(msgspec.Struct, frozen=True, tag=True):
    """The worker's answer. ``outcome``: ``done``, ``failed`` or ``cancelled``. ``memory_byte_s`` and
    ``transfer_bytes``: what it held over its run time, and what was copied for it to and from the device,
    for its account. ``goes_on``: its client sends the failed segment again, or finishes the job, so that it
    does not end here even if the segment was the final one."""

    at_s: float
    job: str
    segment: int
    outcome: str
    ops_done: int
    message: str = ""
    memory_byte_s: float = 0.0
    transfer_bytes: float = 0.0
    goes_on: bool = False


class MemberLeft(msgspec.Struct, frozen=True, tag=True):
    """A running gang has no more use for this one of its devices, which is not the one that its session is
    bound to."""

    at_s: float
    job: str
    segment: int
    device: str


class JobFinished(msgspec.Struct, frozen=True, tag=True):
    """The client says that the cell is over. ``outcome``: ``done``, ``failed`` or ``cancelled``."""

    at_s: float
    job: str
    outcome: str
    message: str = ""


class CancelRequested(msgspec.Struct, frozen=True, tag=True):
    """``message`` says by whom or why."""

    at_s: float
    job: str
    message: str


class PreemptRequested(msgspec.Struct, frozen=True, tag=True):
    """Somebody asks that the running job moves aside, behind all that wait now. ``message`` says who."""

    at_s: float
    job: str
    message: str


class SegmentPreempted(msgspec.Struct, frozen=True, tag=True):
    """The worker stopped the segment after ``ops_done`` ops, and what these made stays with the session.
    ``move_s``: what bringing all of it to another device would take, None when it cannot be brought.
    ``devices``: that it can use at once when it goes on, several if it was stopped as a gang; ``parts_s``: as
    in :class:`SegmentSubmitted`. ``undone``: what it did since it last started counts for nothing."""

    at_s: float
    job: str
    segment: int
    ops_done: int
    move_s: float | None = None
    devices: int = 1
    parts_s: float = 0.0
    undone: bool = False


class MoveRefused(msgspec.Struct, frozen=True, tag=True):
    """Session memory cannot bring the job's session to the device that the queue chose; it stays on
    ``device``."""

    at_s: float
    job: str
    device: str
    reason: str


class RoomElsewhere(msgspec.Struct, frozen=True, tag=True):
    """Session memory has room for the job's session on ``device`` and none is coming where it is, or fewer
    compete for room there."""

    at_s: float
    job: str
    device: str


class DeviceCordoned(msgspec.Struct, frozen=True, tag=True):
    """``cordoned``: nothing new starts on the device, and ``drain``: what runs there moves aside, to run
    elsewhere. Not ``cordoned``: it serves again."""

    at_s: float
    device: str
    cordoned: bool
    drain: bool = False


class DeviceDescribed(msgspec.Struct, frozen=True, tag=True):
    """What operators say about a device, in place of what they said before. ``labels``: ``key=value``, for
    cells that ask for them; ``taints``: only cells that tolerate all of them start there; ``price``: of a
    device-hour, in any currency; ``watts``: what it draws when busy, None for unknown."""

    at_s: float
    device: str
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    price: float = 0.0
    watts: float | None = None


class QueueOpened(msgspec.Struct, frozen=True, tag=True):
    """The first event of a queue's life: by which policy it decides (its name in
    :data:`djinn_lab.jobs.decision.POLICIES`, or itself), and what its accounts have used and may use."""

    at_s: float
    policy: str | QueuePolicy
    shares: ShareState


class PolicyChanged(msgspec.Struct, frozen=True, tag=True):
    """``policy``: its name in :data:`djinn_lab.jobs.decision.POLICIES`, or itself."""

    at_s: float
    policy: str | QueuePolicy


class SharesChanged(msgspec.Struct, frozen=True, tag=True):
    """New targets for an account of any level (``""``: the whole pool). What is None stays."""

    at_s: float
    account: str
    weight: float | None = None
    limits: Limits | None = None
    min_runtime_s: float | None = None


class ReservationMade(msgspec.Struct, frozen=True, tag=True):
    """From ``begins_s`` to ``ends_s`` these devices are for these accounts, and those below them, only;
    nothing of others starts there that is not expected to be done by then. One of the same name is
    replaced."""

    at_s: float
    name: str
    devices: frozenset[str]
    begins_s: float
    ends_s: float
    accounts: frozenset[str]


class ReservationEnded(msgspec.Struct, frozen=True, tag=True):
    """The devices are for everybody again."""

    at_s: float
    name: str


class ClockTicked(msgspec.Struct, frozen=True, tag=True):
    """Something may be due: see :meth:`djinn_lab.jobs.queue.JobQueue.due_s`."""

    at_s: float


class SessionDetached(msgspec.Struct, frozen=True, tag=True):
    """The client vanished: its jobs are cancelled, its place stays."""

    at_s: float
    session: str


class SessionClosed(msgspec.Struct, frozen=True, tag=True):
    """The user is done: its jobs are cancelled and its device forgotten."""

    at_s: float
    session: str


Event = (
    DeviceAdded
    | DeviceLost
    | SegmentSubmitted
    | SegmentRefused
    | MemoryHeld
    | MemoryGranted
    | MemoryRefused
    | SegmentProgressed
    | SegmentFinished
    | MemberLeft
    | JobFinished
    | CheckpointAnnounced
    | DataPublished
    | ElsewhereChanged
    | CancelRequested
    | PreemptRequested
    | SegmentPreempted
    | MoveRefused
    | RoomElsewhere
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
