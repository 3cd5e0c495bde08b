"""What goes into the engine: what people, workers and the clock say, each with its own time in seconds.

What concerns one core only is that core's own event. What the cores say to each other is no event here: it
follows from these."""

from __future__ import annotations

import msgspec

from djinn_lab import jobs, memory
from djinn_lab.jobs.decision import QueuePolicy
from djinn_lab.jobs.fairness import ShareState


class PoolOpened(msgspec.Struct, frozen=True, tag=True):
    """The first event of an engine's life: by which policies it decides, and what accounts have used and may
    use. ``version``: of the program that runs the pool, for those who replay its journal; empty for
    unknown."""

    at_s: float
    queue_policy: str | QueuePolicy
    shares: ShareState
    memory_policy: memory.MemoryPolicy
    version: str = ""


class SegmentArrived(msgspec.Struct, frozen=True, tag=True):
    """A client's segment. Of ``segment`` the engine fills in what session memory says: ``memory``,
    ``move_s`` and ``parts_s``. ``peak_bytes``: what the segment alone holds at its fullest, at ``node``, an
    ``op``; ``kept_bytes``: what it leaves behind, None for unknown; ``parts_bytes``: what the parts of a gang
    hold beside its session."""

    at_s: float
    segment: jobs.SegmentSubmitted
    peak_bytes: int
    node: int | None = None
    op: str | None = None
    kept_bytes: int | None = None
    parts_bytes: int = 0


class SegmentStopped(msgspec.Struct, frozen=True, tag=True):
    """A worker stopped the segment between two ops, after ``ops_done``, and what these made stays with the
    session. ``remaining_bytes``: what the rest of it holds at its fullest, None for as much as before.
    ``devices``: that it can use at once when it goes on; ``rooms``: of its parts, where it was a gang.
    ``undone``: as in :class:`djinn_lab.jobs.SegmentPreempted`."""

    at_s: float
    job: str
    segment: int
    ops_done: int
    remaining_bytes: int | None = None
    devices: int = 1
    rooms: tuple[str, ...] = ()
    undone: bool = False


class DeviceAdded(msgspec.Struct, frozen=True, tag=True):
    """A worker became ready, for the first time or again; as in :class:`djinn_lab.memory.DeviceAdded` and
    :class:`djinn_lab.jobs.DeviceAdded`."""

    at_s: float
    device: str
    memory_bytes: int
    host_bytes: int = 0
    disk_bytes: int = 0
    link_bytes_per_s: float | None = None
    slots: int = 1
    numa_node: int | None = None


class WorkerDied(msgspec.Struct, frozen=True, tag=True):
    """The device's process ended, and what was in its memory is gone. :class:`djinn_lab.jobs.DeviceLost`
    follows, once gangs that had a part there have let go of it."""

    at_s: float
    device: str


class RoomAsked(msgspec.Struct, frozen=True, tag=True):
    """A part of a gang wants to run on ``device``, in a room of its own: what it made stays there until the
    room is closed, and is brought along to another device. Answered like
    :class:`djinn_lab.memory.SegmentPlaced`. ``rank``, ``segment``: of its cell."""

    at_s: float
    room: str
    user: str
    device: str
    segment: int
    peak_bytes: int
    rank: int


class RoomWithdrawn(msgspec.Struct, frozen=True, tag=True):
    """It wants to run no more for now; what it made stays."""

    at_s: float
    room: str


class RoomClosed(msgspec.Struct, frozen=True, tag=True):
    """The part needs nothing any more. Unknown rooms are ignored."""

    at_s: float
    room: str


class SessionDetached(msgspec.Struct, frozen=True, tag=True):
    """The client went away without closing: its jobs are cancelled, its values stay."""

    at_s: float
    session: str


class SessionClosed(msgspec.Struct, frozen=True, tag=True):
    """The user is done: all that the session has is freed."""

    at_s: float
    session: str


class ClockTicked(msgspec.Struct, frozen=True, tag=True):
    """Several times a second, and when :meth:`~djinn_lab.engine.engine.Engine.due_s` says so."""

    at_s: float


OfQueue = (
    jobs.SegmentRefused
    | jobs.SegmentProgressed
    | jobs.SegmentFinished
    | jobs.MemberLeft
    | jobs.JobFinished
    | jobs.CheckpointAnnounced
    | jobs.DataPublished
    | jobs.ElsewhereChanged
    | jobs.CancelRequested
    | jobs.PreemptRequested
    | jobs.DeviceCordoned
    | jobs.DeviceDescribed
    | jobs.DeviceLost
    | jobs.PolicyChanged
    | jobs.SharesChanged
    | jobs.ReservationMade
    | jobs.ReservationEnded
)
OfMemory = (
    memory.SessionOpened
    | memory.SessionResumed
    | memory.PhaseSignalled
    | memory.MemoryReported
    | memory.FirstValuesRestored
    | memory.TransferDone
    | memory.TransferFailed
)
Event = (
    PoolOpened
    | SegmentArrived
    | SegmentStopped
    | DeviceAdded
    | WorkerDied
    | RoomAsked
    | RoomWithdrawn
    | RoomClosed
    | SessionDetached
    | SessionClosed
    | ClockTicked
    | OfQueue
    | OfMemory
)
