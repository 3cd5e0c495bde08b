"""The engine's events, from users, workers and the clock, each with its own time in seconds.

An event that concerns one core only is that core's own event. What one core sends the other is no event:
it follows from the events here."""

from __future__ import annotations

import msgspec

from djinn_lab import jobs, memory
from djinn_lab.events import (
    ClockTicked,
    DeviceAdded,
    HeartbeatChanged,
    SessionClosed,
    SessionDetached,
    WorkerDied,
)
from djinn_lab.jobs.decision import QueuePolicy
from djinn_lab.jobs.fairness import ShareState


class PoolOpened(msgspec.Struct, frozen=True, tag=True):
    """Begin an engine's life: the policies by which it decides, and the usage and limits of accounts.
    ``version``: of the program that runs the pool, for a replay of its journal; empty for unknown."""

    at_s: float
    queue_policy: str | QueuePolicy
    shares: ShareState
    memory_policy: memory.MemoryPolicy
    version: str = ""


class SegmentArrived(msgspec.Struct, frozen=True, tag=True):
    """A client submitted a segment. The engine fills in ``memory``, ``move_s``, ``other_host_s`` and
    ``parts_s`` of ``segment``, from session memory. ``peak_bytes``: the most that the segment holds by
    itself, reached at ``node``, an ``op``. ``kept_bytes``: what it leaves behind, None for unknown.
    ``parts_bytes``: what the parts of a gang hold beside its session. ``floor_bytes`` and the rest: as in
    :class:`djinn_lab.memory.SegmentPlaced`."""

    at_s: float
    segment: jobs.SegmentSubmitted
    peak_bytes: int
    node: int | None = None
    op: str | None = None
    kept_bytes: int | None = None
    parts_bytes: int = 0
    floor_bytes: int | None = None
    floor_node: int | None = None
    floor_op: str | None = None


class SegmentStopped(msgspec.Struct, frozen=True, tag=True):
    """A worker preempted the segment between two ops, after ``ops_done``; the values of these ops stay
    with the session. ``remaining_bytes``: the most that the rest of the segment holds, None for as much
    as before. ``devices``: how many the segment can use at once when it resumes. ``parts``: their names,
    if it was a gang. ``undone``, ``replayed_s``: as in :class:`djinn_lab.jobs.SegmentPreempted`."""

    at_s: float
    job: str
    segment: int
    ops_done: int
    remaining_bytes: int | None = None
    devices: int = 1
    parts: tuple[str, ...] = ()
    undone: bool = False
    replayed_s: float = 0.0


class PartMemoryRequested(msgspec.Struct, frozen=True, tag=True):
    """A part of a gang wants to run on ``device``, with a memory account of its own, ``part``. The part's
    values stay there until the account is released, and move along to another device. Answered like
    :class:`djinn_lab.memory.SegmentPlaced`. ``rank``, ``segment``: of its cell."""

    at_s: float
    part: str
    user: str
    device: str
    segment: int
    peak_bytes: int
    rank: int


class PartMemoryWithdrawn(msgspec.Struct, frozen=True, tag=True):
    """The part does not want to run for now; its values stay."""

    at_s: float
    part: str


class PartMemoryReleased(msgspec.Struct, frozen=True, tag=True):
    """The part needs no memory any more. Unknown accounts are ignored."""

    at_s: float
    part: str


OfQueue = (
    jobs.SegmentRefused
    | jobs.SegmentProgressed
    | jobs.SegmentFinished
    | jobs.MemberLeft
    | jobs.JobFinished
    | jobs.JobReturned
    | jobs.CheckpointAnnounced
    | jobs.DataPublished
    | jobs.ExternalDependencyChanged
    | jobs.CancelRequested
    | jobs.PreemptRequested
    | jobs.DeviceCordoned
    | jobs.DeviceDescribed
    | jobs.DeviceLost
    | jobs.DeviceExpected
    | jobs.PolicyChanged
    | jobs.SharesChanged
    | jobs.ReservationMade
    | jobs.ReservationEnded
)
OfMemory = (
    memory.SessionOpened
    | memory.SessionReturned
    | memory.SessionResumed
    | memory.PhaseSignalled
    | memory.CopyWanted
    | memory.MemoryReported
    | memory.FirstValuesRestored
    | memory.HostLinkMeasured
    | memory.TransferDone
    | memory.TransferFailed
)
Event = (
    PoolOpened
    | SegmentArrived
    | SegmentStopped
    | DeviceAdded
    | WorkerDied
    | HeartbeatChanged
    | PartMemoryRequested
    | PartMemoryWithdrawn
    | PartMemoryReleased
    | SessionDetached
    | SessionClosed
    | ClockTicked
    | OfQueue
    | OfMemory
)
