"""The events of session memory, each with its own time in seconds, and its commands.

Every copy is a *transfer*: the command that begins it carries a number, and exactly one result event
(:class:`TransferDone` or :class:`TransferFailed`) names it again. A transfer ends without a result only
when its session is freed or its device dies."""

from __future__ import annotations

from typing import Literal

import msgspec

from djinn_lab.events import (
    ClockTicked,
    DeviceAdded,
    HeartbeatChanged,
    MemoryRelease,
    SessionClosed,
    SessionDetached,
    WorkerDied,
)
from djinn_lab.units import capitalised

TransferKind = Literal["store", "evict", "restore", "demote", "forget"]
"""``store``: device to host, what has no valid host copy yet. ``evict``: drop the device's copy of a
session that is stored whole. ``restore``: host or disk to device, every byte checked. ``demote``: host to
disk. ``forget``: drop the host's copy of a session that is on the device."""


class SessionOpened(msgspec.Struct, frozen=True, tag=True):
    """A session was opened. ``temporary``: the session is a part of another session's cell and lasts for that
    cell only. It is admitted already, and teaches nothing about sessions."""

    at_s: float
    session: str
    user: str
    temporary: bool = False


class SessionReturned(msgspec.Struct, frozen=True, tag=True):
    """A session of an earlier run of this pool, which was killed. ``copy_bytes``: of its last whole copy, the
    part of ``disk_bytes`` on the disk, that a process of ``device`` made; 0: it has none.
    ``rebuild_bytes``: of values that its next segment makes again first, with ``peak_bytes`` beside them at
    most. ``connected``: its client is expected to be back at once, else the session is detached."""

    at_s: float
    session: str
    user: str
    connected: bool = True
    device: str = ""
    copy_bytes: int = 0
    disk_bytes: int = 0
    rebuild_bytes: int = 0
    peak_bytes: int = 0


class SessionResumed(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    session: str


class SessionBound(msgspec.Struct, frozen=True, tag=True):
    """Assign the session to a device. State on another device is moved when a segment of
    the session waits, or :class:`RejectMove` says why not. No segment of the session may be granted."""

    at_s: float
    session: str
    device: str


class SegmentProposed(msgspec.Struct, frozen=True, tag=True):
    """Ask whether a segment can ever run, of a session that is not bound yet. Answered by AdmitSegment or
    RejectSegment. ``peak_bytes``: the most that the segment holds by itself, see
    :func:`djinn_lab.memory.footprint.predict_peak_bytes`. ``node``: the op at that moment, ``op`` its
    name. The rest: as in :class:`SegmentPlaced`."""

    at_s: float
    job: str
    segment: int
    session: str
    peak_bytes: int
    node: int | None = None
    op: str | None = None
    floor_bytes: int | None = None
    floor_node: int | None = None
    floor_op: str | None = None


class SegmentPlaced(msgspec.Struct, frozen=True, tag=True):
    """A segment wants to run on the device of its session, whose phase becomes COMPUTE. Answered, at once
    or later, by exactly one GrantSegment or RejectSegment, with DeferSegment before where it waits.
    ``rank``: of its priority, 0 first; equal ranks in order of arrival. ``kept_bytes``: what it leaves
    behind, except for shared weights; None: unknown. ``floor_bytes``: the least with which it can run, where
    other values are offloaded meanwhile, for ``floor_node``, a ``floor_op``; None: unknown. ``batch``: equal
    for segments that may run together, so that one has memory as soon as another has; empty for none. The
    granted bytes are reserved until the :class:`MemoryReported` that names the job, or
    :class:`SegmentWithdrawn`."""

    at_s: float
    job: str
    segment: int
    session: str
    peak_bytes: int
    rank: int = 0
    node: int | None = None
    op: str | None = None
    kept_bytes: int | None = None
    floor_bytes: int | None = None
    floor_node: int | None = None
    floor_op: str | None = None
    batch: str = ""


class SegmentWithdrawn(msgspec.Struct, frozen=True, tag=True):
    """A placed segment, deferred or granted, will not run after all. Unknown ones are ignored."""

    at_s: float
    job: str


class QueueOrdered(msgspec.Struct, frozen=True, tag=True):
    """The next jobs of a device, in queue order. They are served in this order, before all others."""

    at_s: float
    device: str
    jobs: tuple[str, ...]


class MemoryReported(msgspec.Struct, frozen=True, tag=True):
    """A worker's own count. ``used_bytes``: everything live on the device; ``session_bytes``: each
    session's own part; ``shared_bytes``: weights that several sessions share, counted once and in no
    session. ``kv_bytes``: the part of a session that is key-value caches. ``unstored_bytes``: the part that
    the host has no valid copy of; absent sessions have none. ``ready_bytes``: the part of that in completed
    pieces, worth storing while the session runs. ``weight_bytes``: the part of ``shared_bytes`` that a
    session looks at. ``offloaded_bytes``: of a session on the device, and not among its bytes: values that
    gave way to others of it, and lie on the host. ``host_bytes`` and ``disk_bytes``: used on those tiers.
    ``on_disk_bytes``: the part of a session, on the device or off it, whose copy is on the disk. ``job``:
    whose segment just ended on the device. ``partial``: the numbers of sessions are only those that changed
    since the report before, 0 for gone."""

    at_s: float
    device: str
    used_bytes: int
    peak_bytes: int
    session_bytes: dict[str, int]
    shared_bytes: int = 0
    kv_bytes: dict[str, int] = {}
    unstored_bytes: dict[str, int] = {}
    ready_bytes: dict[str, int] = {}
    weight_bytes: dict[str, int] = {}
    offloaded_bytes: dict[str, int] = {}
    host_bytes: int = 0
    disk_bytes: int = 0
    on_disk_bytes: dict[str, int] = {}
    job: str | None = None
    partial: bool = False


class CellEnded(msgspec.Struct, frozen=True, tag=True):
    """The session's cell is over; with no other one under way the session is IO_WAIT from here."""

    at_s: float
    session: str


class PhaseSignalled(msgspec.Struct, frozen=True, tag=True):
    """A client signalled a phase. ``phase``: COMPUTE, IO_WAIT or SOON (the user types). ``expected_s``: until
    the session wants to compute again. ``rebuild_s``: what rebuilding its state would take, where its client
    can."""

    at_s: float
    session: str
    phase: str
    expected_s: float | None = None
    rebuild_s: float | None = None


class CopyWanted(msgspec.Struct, frozen=True, tag=True):
    """Copy the session to the host: to make its values again would take long, were its device lost.
    ``holds``: its next segment waits for the copy, else it may write over what is being copied. Nothing
    happens where the session is not on its device, or the host has no capacity."""

    at_s: float
    session: str
    holds: bool


class TransferDone(msgspec.Struct, frozen=True, tag=True):
    """A transfer succeeded. ``copied_bytes``: over the link (or to and from the disk), which is less than the
    session's where pieces were there already. ``copy_s``: while copying; ``queued_s``: before that.
    ``checked_pieces``: hashes compared. ``whole``: after a store, whether nothing of the session is unstored
    now (a session that runs on is not). The worker's memory after it comes as a MemoryReported of its own,
    before this."""

    at_s: float
    transfer: int
    session: str
    device: str
    kind: TransferKind
    copied_bytes: int = 0
    copy_s: float = 0.0
    queued_s: float = 0.0
    checked_pieces: int = 0
    whole: bool = True


class FirstValuesRestored(msgspec.Struct, frozen=True, tag=True):
    """Of a restore that was ordered for ``job``: what the first op of its segment reads is on the device, and
    the segment may start. The copy of the rest continues, and ends in a result as any other. The worker's
    memory comes as a MemoryReported of its own, before this."""

    at_s: float
    transfer: int
    session: str
    device: str
    job: str


class TransferFailed(msgspec.Struct, frozen=True, tag=True):
    """Nothing changed, except for ``mismatch``: a restore found bytes that are not those that were stored, so
    the session's values are lost. A segment that was granted before the end of its restore has been stopped
    and undone, and must be placed again. ``reason``: for people. ``full``: the tier without free capacity
    (``device``, ``host`` or ``disk``)."""

    at_s: float
    transfer: int
    session: str
    device: str
    kind: TransferKind
    reason: str
    full: str | None = None
    mismatch: bool = False


class HostLinkMeasured(msgspec.Struct, frozen=True, tag=True):
    """How fast bytes came to a host from others lately, with writing them down there."""

    at_s: float
    host: str
    bytes_per_s: float


Event = (
    DeviceAdded
    | WorkerDied
    | HeartbeatChanged
    | SessionOpened
    | SessionReturned
    | SessionDetached
    | SessionResumed
    | SessionClosed
    | SessionBound
    | SegmentProposed
    | SegmentPlaced
    | SegmentWithdrawn
    | QueueOrdered
    | MemoryReported
    | CellEnded
    | PhaseSignalled
    | CopyWanted
    | FirstValuesRestored
    | HostLinkMeasured
    | TransferDone
    | TransferFailed
    | ClockTicked
)


class AdmitSegment(msgspec.Struct, frozen=True, tag=True):
    job: str
    segment: int


class RejectSegment(msgspec.Struct, frozen=True, tag=True):
    """The segment never fits; ``message`` has the numbers and ``advice`` what to do."""

    job: str
    segment: int
    message: str
    advice: str
    node: int | None
    op: str | None

    @property
    def sentence(self) -> str:
        return f"{capitalised(self.message)}."


class GrantSegment(msgspec.Struct, frozen=True, tag=True):
    """The session's state is on the device and capacity is reserved for the segment. ``waited_s``: since
    placed."""

    job: str
    segment: int
    waited_s: float = 0.0


class DeferSegment(msgspec.Struct, frozen=True, tag=True):
    """The segment waits; ``reason`` has the numbers, for its user. Sent again when that
    changes. ``estimate_s``: of the wait, None when unknown. ``queued``: its state is there, and
    capacity is reserved only near the front of the device's queue."""

    job: str
    segment: int
    reason: str
    estimate_s: float | None = None
    release: MemoryRelease = MemoryRelease.COPIES
    queued: bool = False

    @property
    def sentence(self) -> str:
        return f"{capitalised(self.reason)}."


class StoreSession(msgspec.Struct, frozen=True, tag=True):
    """Copy the session to the host. ``expedited``: a segment waits for it; it overtakes other transfers, as
    below."""

    transfer: int
    session: str
    device: str
    expedited: bool = False


class EvictSession(msgspec.Struct, frozen=True, tag=True):
    """Drop the device's copy of the session. ``discard``: even what is not stored (the recompute baseline);
    its owner rebuilds it."""

    transfer: int
    session: str
    device: str
    discard: bool = False


class RestoreSession(msgspec.Struct, frozen=True, tag=True):
    """Copy the session back to the device. ``job``: its segment starts before the end of the copy, so what it
    reads is copied first, and followed by :class:`FirstValuesRestored`. Empty for none."""

    transfer: int
    session: str
    device: str
    expedited: bool = False
    job: str = ""


class DemoteSession(msgspec.Struct, frozen=True, tag=True):
    transfer: int
    session: str
    device: str


class ForgetStored(msgspec.Struct, frozen=True, tag=True):
    transfer: int
    session: str
    device: str


TransferCommand = StoreSession | EvictSession | RestoreSession | DemoteSession | ForgetStored
"""The commands that begin a transfer."""


class ExpediteTransfer(msgspec.Struct, frozen=True, tag=True):
    """A segment waits for a transfer under way. ``job``: as in :class:`RestoreSession`."""

    transfer: int
    session: str
    device: str
    job: str = ""


class FreeSession(msgspec.Struct, frozen=True, tag=True):
    """Drop everything the session holds at the device: on it, on its host and disk tiers; end its
    transfers."""

    session: str
    device: str


class DropParked(msgspec.Struct, frozen=True, tag=True):
    """Another device has the session now: drop its copy on the host or disk at this one."""

    session: str
    device: str


class RejectMove(msgspec.Struct, frozen=True, tag=True):
    """The session of the waiting segment stays on ``device``, whatever its target was, and its segment is
    served there."""

    job: str
    session: str
    device: str
    reason: str


class ValuesLost(msgspec.Struct, frozen=True, tag=True):
    """``nbytes`` of the session's values are gone, and ``reason`` says how."""

    session: str
    device: str
    nbytes: int
    reason: str = ""


class AnswerPhase(msgspec.Struct, frozen=True, tag=True):
    """Answer a signal. ``answer``: ``accepted``, ``clipped`` (taken with a smaller wait), ``deferred`` (taken
    when the running cell ends) or ``rejected``, with the reason."""

    session: str
    answer: str
    message: str


Command = (
    AdmitSegment
    | RejectSegment
    | GrantSegment
    | DeferSegment
    | TransferCommand
    | ExpediteTransfer
    | FreeSession
    | DropParked
    | RejectMove
    | ValuesLost
    | AnswerPhase
)
