"""The records of devices, sessions, segments and transfers, and sums over them.

Only :mod:`djinn_lab.memory.machine.accounts` and its parts change these records; the rules read them."""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass, field

from djinn_lab.events import MemoryRelease
from djinn_lab.memory.machine.wake_prediction import Gap
from djinn_lab.memory.messages import TransferKind
from djinn_lab.memory.states import Connection, Phase, Place

LAST = 2**31
"""A place behind all others."""
FIRST = -1
"""A place before all others: of parts of a cell that runs."""


@dataclass(slots=True, eq=False)
class PlacedSegment:
    """A placed segment. ``turn``: its position in its device's queue, from the job queue.
    ``arrival`` of its job orders equal ranks, so that a cell keeps its position. ``base_bytes``: what its
    session held at the grant. ``passed_bytes``: of later new sessions that were admitted while it was
    deferred. ``kind``: the kind of reason that its user was last sent; no other is sent
    before ``notify_from_s``. ``counted``: counted among the segments that waited for other sessions to
    close. ``release``: as last sent to the queue. ``batch``: as in
    :class:`~djinn_lab.memory.messages.SegmentPlaced`."""

    job: str
    segment: int
    session: str
    device: str
    peak_bytes: int
    rank: int
    arrival: int
    since_s: float
    node: int | None = None
    op: str | None = None
    granted: bool = False
    base_bytes: int = 0
    passed_bytes: int = 0
    kind: str = ""
    notify_from_s: float = 0.0
    counted: bool = False
    reason: str = ""
    estimate_s: float | None = None
    release: MemoryRelease = MemoryRelease.COPIES
    kept_bytes: int | None = None
    queued_since_s: float | None = None
    lined_s: float = 0.0
    turn: int = LAST
    batch: str = ""

    @property
    def order(self) -> tuple[int, int, int]:
        return self.turn, self.rank, self.arrival


@dataclass(slots=True, eq=False)
class TransferRecord:
    """A copy under way. ``prefetch``: no segment waited for it when it began. ``job``: its segment may
    start before the end of the copy; ``usable``: what the first op reads is there. ``holds``: no segment of
    the session starts before its end."""

    number: int
    kind: TransferKind
    session: str
    device: str
    nbytes: int
    begun_s: float
    expedited: bool = False
    prefetch: bool = False
    discard: bool = False
    job: str = ""
    usable: bool = False
    holds: bool = False


@dataclass(slots=True, frozen=True)
class Inheritance:
    """Parked state that a dead process of a device left in the tiers below it, until the session is restored
    or closed."""

    device: str
    host_bytes: int
    disk_bytes: int


@dataclass(slots=True, eq=False)
class SessionRecord:
    """An open session. ``total_bytes``: its state, on any tier; ``first_bytes``: after its first cell.
    ``unstored_bytes``, ``ready_bytes``: as last reported, of a session on the device. ``cell``: a cell is
    under way. ``wish_s``: since when it wants to compute, None once it does. ``announced_s``,
    ``announced_at_s``: the last estimate and when it was given. ``prefetched``: restored unasked and not
    used since. ``settled_until_s``: state restored for a cell stays until that cell ran, at most until
    then. ``job``: of the last segment, and when its first segment was placed. ``weight_bytes``: shared
    weights that the session uses. ``offloaded_bytes``: of values that gave way to others of it on the device,
    and are not among its bytes. ``recoverable``: another process could restore its state. ``retry_s``:
    no transfer before, after one failed. ``failures``, ``failed_restores``: transfers, and restores, that
    failed in a row on its device. ``gap``, ``due_s``: the predicted gap and its end, as computed for
    ``due_bucket``. ``said_s``: when it last signalled COMPUTE. ``teaches``: the present gap will be
    learned from. ``target``: the device to which it moves, while its state still lies on ``device``.
    ``keeper``: the living device whose process holds the parked state; ``inherited``: where a dead one left
    it. ``temporary``: as in
    :class:`~djinn_lab.memory.messages.SessionOpened`. ``copied_at``, ``fetched_at``: ``changes`` of its
    device when it was last copied in advance, and prefetched. ``cleared_at``, ``cleared``: ``changes``
    when it was last stored to free capacity, and how often since. ``replays``: its next segment first makes
    lost values again, of ``rebuild_bytes``, with ``replay_peak_bytes`` beside them at most."""

    session: str
    user: str
    connection: Connection = Connection.CONNECTED
    phase: Phase = Phase.COMPUTE
    device: str | None = None
    target: str | None = None
    keeper: str | None = None
    inherited: Inheritance | None = None
    place: Place = "none"
    moving: TransferRecord | None = None
    total_bytes: int = 0
    largest_bytes: int = 0
    first_bytes: int = 0
    grown_bytes: int = 0
    grew_cells: int = 0
    kv_bytes: int = 0
    unstored_bytes: int = 0
    ready_bytes: int = 0
    weight_bytes: int = 0
    offloaded_bytes: int = 0
    recoverable: bool = False
    cell: bool = False
    job: str = ""
    job_arrival: int = 0
    cells: int = 0
    segments: dict[str, PlacedSegment] = field(default_factory=dict)
    opened_s: float = 0.0
    temporary: bool = False
    idle_since_s: float | None = None
    leased_until_s: float | None = None
    settled_until_s: float = 0.0
    announced_s: float | None = None
    announced_at_s: float = 0.0
    deferred: tuple[float, float | None] | None = None
    rebuild_s: float | None = None
    rebuild_bytes: int = 0
    replays: bool = False
    replay_peak_bytes: int = 0
    wish_s: float | None = None
    wish_hit: bool = True
    said_s: float = 0.0
    teaches: bool = True
    ready_s: float | None = None
    prefetched: bool = False
    copied_at: int = -1
    cleared_at: int = -1
    cleared: int = 0
    fetched_at: int = -1
    guess_bytes: int = 0
    failures: int = 0
    failed_restores: int = 0
    retry_s: float = 0.0
    last_wake_s: float | None = None
    last_floor_s: float | None = None
    gap: Gap | None = None
    due_s: float = 0.0
    due_bucket: int = -1

    @property
    def resident(self) -> bool:
        """Return whether its state can be used on the device now."""
        moving = self.moving.kind if self.moving else None
        return self.place in ("device", "none") and moving != "evict"

    @property
    def held(self) -> bool:
        """Return whether its segments wait for a copy of what they may write."""
        return self.moving is not None and self.moving.holds

    @property
    def away(self) -> bool:
        return self.place in ("host", "disk")

    @property
    def may_be_stored(self) -> bool:
        """Return whether some of its state on the device may be copied to the host in advance."""
        if self.place != "device":
            return False
        if self.segments:
            return self.ready_bytes > 0
        return self.total_bytes > 0 and (self.unstored_bytes > 0 or not self.recoverable)

    def open_to(self, job: str) -> bool:
        """Return whether the session is being restored, and what the first op of this job reads is there."""
        return self.moving is not None and self.moving.usable and self.moving.job == job

    def idle(self, now_s: float, wish_s: float) -> bool:
        """Return whether the session waits for its user or a tool: it signalled so, or no cell followed a
        COMPUTE signal within ``wish_s``."""
        if self.segments:
            return False
        return self.phase is Phase.IO_WAIT or (not self.cell and self.said_s < now_s - wish_s)

    @property
    def busy(self) -> bool:
        """Return whether a segment of the session is placed, deferred or granted."""
        return bool(self.segments)

    @property
    def earliest(self) -> tuple[int, int, int] | None:
        """The queue position of its first waiting segment; None where nothing waits, or a segment is
        granted."""
        if any(segment.granted for segment in self.segments.values()):
            return None
        return min((segment.order for segment in self.segments.values()), default=None)


@dataclass(slots=True)
class Index:
    """Sessions and segments of one device that a plan must look at though no event named them. So the
    cost of a plan does not grow with the number of open sessions. What time and transfers change is left
    to the plan. ``wishing``: absent, and wants to compute. ``settled``: restored for a cell that has not
    run. ``paused``: a transfer failed. ``leased``, ``away``: as of the session. ``unstored``: some state
    may be copied in advance. ``unpositioned``: segments that were not sent their position in the device's
    queue, or whose session moves."""

    wishing: dict[str, SessionRecord] = field(default_factory=dict)
    settled: dict[str, SessionRecord] = field(default_factory=dict)
    paused: dict[str, SessionRecord] = field(default_factory=dict)
    leased: dict[str, SessionRecord] = field(default_factory=dict)
    away: dict[str, SessionRecord] = field(default_factory=dict)
    unstored: dict[str, SessionRecord] = field(default_factory=dict)
    unpositioned: dict[str, PlacedSegment] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Return whether a plan has to look at none."""
        stays = not (self.unstored or self.away or self.leased)
        return stays and not (self.wishing or self.unpositioned or self.settled or self.paused)

    def put(self, session: SessionRecord) -> None:
        """Index a session, after it or one of its segments changed."""
        name, away = session.session, session.away
        for part, belongs in (
            (self.wishing, away and session.wish_s is not None and not session.segments),
            (self.settled, session.settled_until_s > 0.0),
            (self.paused, session.retry_s > 0.0),
            (self.leased, session.leased_until_s is not None),
            (self.away, away),
            (self.unstored, session.may_be_stored),
        ):
            if belongs:
                part[name] = session
            elif part:
                part.pop(name, None)
        for job, segment in session.segments.items():
            if not segment.granted and (segment.queued_since_s is None or session.target is not None):
                self.unpositioned[job] = segment
            else:
                self.unpositioned.pop(job, None)

    def drop(self, session: SessionRecord) -> None:
        """Remove a session that is not bound to this device any more."""
        for part in (self.wishing, self.settled, self.paused, self.leased, self.away, self.unstored):
            part.pop(session.session, None)
        for job in session.segments:
            self.unpositioned.pop(job, None)


@dataclass(slots=True, eq=False)
class Device:
    """One device. ``host``: on which machine, empty for the pool's. ``host_full``, ``disk_full``,
    ``device_full``: a transfer failed for lack of capacity there, the last at ``full_s``, and nothing was
    freed since. ``alone``: there is no other device. ``heard``: its worker answers. ``usual_peak_bytes``:
    of the last segments, a moving average. ``host_used_bytes``, ``disk_used_bytes``: by its process;
    ``inherited``: sessions whose state a former process left there. ``positions``: jobs that the queue
    named last, with their positions. ``changes``: events of users and cells on this device so far. Between
    two of them no session is written through twice or prefetched twice, and a copy made for an eviction is
    forgotten at most once, so that the number of transfers is bounded."""

    device: str
    memory_bytes: int
    host_bytes: int = 0
    disk_bytes: int = 0
    link_bytes_per_s: float | None = None
    measured_bytes_per_s: float | None = None
    host: str = ""
    used_bytes: int = 0
    peak_bytes: int = 0
    shared_bytes: int = 0
    host_used_bytes: int = 0
    disk_used_bytes: int = 0
    inherited: dict[str, SessionRecord] = field(default_factory=dict)
    session_bytes: dict[str, int] = field(default_factory=dict)
    kv_bytes: dict[str, int] = field(default_factory=dict)
    unstored_bytes: dict[str, int] = field(default_factory=dict)
    ready_bytes: dict[str, int] = field(default_factory=dict)
    weight_bytes: dict[str, int] = field(default_factory=dict)
    offloaded_bytes: dict[str, int] = field(default_factory=dict)
    on_disk_bytes: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    index: Index = field(default_factory=Index)
    granted: dict[str, PlacedSegment] = field(default_factory=dict)
    waiting: list[PlacedSegment] = field(default_factory=list)
    moving: dict[int, TransferRecord] = field(default_factory=dict)
    host_full: bool = False
    disk_full: bool = False
    device_full: bool = False
    full_s: float = 0.0
    alone: bool = True
    heard: bool = True
    slots: int = 1
    usual_peak_bytes: float = 0.0
    positions: dict[str, int] = field(default_factory=dict)
    changes: int = 0

    @property
    def tiers(self) -> bool:
        """Return whether there is a tier below the device."""
        return self.host_bytes > 0

    @property
    def capacity_bytes(self) -> int:
        return self.memory_bytes + self.host_bytes + self.disk_bytes

    @property
    def host_taken_bytes(self) -> int:
        """Host bytes of copies, and of what a former process of this device left."""
        left = (one.inherited.host_bytes for one in self.inherited.values() if one.inherited)
        return self.host_used_bytes + sum(left)

    @property
    def disk_taken_bytes(self) -> int:
        """As :attr:`host_taken_bytes`, on the disk."""
        left = (one.inherited.disk_bytes for one in self.inherited.values() if one.inherited)
        return self.disk_used_bytes + sum(left)

    @property
    def contended(self) -> bool:
        """Return whether a segment waits for capacity or its turn, other than for admission."""
        return any(not segment.release.of_other_sessions for segment in self.waiting)

    @property
    def short(self) -> bool:
        """Return whether a segment waits for capacity."""
        unpositioned = self.index.unpositioned.values()
        return any(
            not segment.release.of_other_sessions and segment.queued_since_s is None
            for segment in unpositioned
        )

    def waiting_since_s(self, early_s: float) -> float:
        """Since when the first segment waits for capacity or its turn; exact only before ``early_s``.
        ``inf`` for none."""
        first_s = math.inf
        for segment in self.waiting:
            if not segment.release.of_other_sessions:
                first_s = min(first_s, segment.since_s)
                if first_s <= early_s:
                    break
        return first_s

    def enqueue(self, segment: PlacedSegment) -> None:
        """Insert a waiting segment at its position."""
        insort(self.waiting, segment, key=lambda waiting: waiting.order)

    def add(self, session: SessionRecord) -> None:
        """Bind a session to this device."""
        self.sessions[session.session] = session
        self.index.put(session)

    def remove(self, session: SessionRecord) -> None:
        """Unbind a session from this device."""
        self.sessions.pop(session.session, None)
        self.index.drop(session)

    def restore_bytes(self, session: SessionRecord) -> int:
        """Bytes that a restore of the session takes: shared weights may be gone with the other sessions."""
        absent = session.weight_bytes if self.shared_bytes < session.weight_bytes else 0
        return session.total_bytes + absent

    def reserved_bytes(self) -> int:
        """Bytes granted to segments and not yet allocated. A segment that would need more than the device has
        offloads values of its session."""
        here = self.session_bytes
        return sum(
            max(0, self.granted_bytes(segment) - here.get(segment.session, 0))
            for segment in self.granted.values()
        )

    def granted_bytes(self, segment: PlacedSegment) -> int:
        """The most that the session of a granted segment may hold here meanwhile."""
        nbytes = segment.base_bytes + segment.peak_bytes
        return min(nbytes, self.memory_bytes) if self.tiers else nbytes

    def loading_bytes(self) -> int:
        """Bytes of restores under way that have not arrived yet."""
        if not self.moving:
            return 0
        here = self.session_bytes
        return sum(
            max(0, transfer.nbytes - here.get(transfer.session, 0))
            for transfer in self.moving.values()
            if transfer.kind == "restore"
        )

    def free_bytes(self) -> int:
        """Bytes that may be granted; negative when more is granted than there is."""
        free_bytes = self.memory_bytes - self.used_bytes - self.reserved_bytes() - self.loading_bytes()
        return min(0, free_bytes) if self.device_full else free_bytes

    def leaving_bytes(self) -> int:
        """Bytes that evictions under way will free."""
        return sum(
            self.session_bytes.get(transfer.session, 0)
            for transfer in self.moving.values()
            if transfer.kind == "evict"
        )

    def host_free_bytes(self) -> int:
        """Host bytes that no copy under way will take."""
        if self.host_full:
            return 0
        coming = sum(transfer.nbytes for transfer in self.moving.values() if transfer.kind == "store")
        return self.host_bytes - self.host_taken_bytes - coming

    def store_free_bytes(self) -> int:
        """Bytes that a store may take now. What the host has no memory for goes to the disk, which is counted
        on only where offloaded values may fill the host: no session can be demoted for those."""
        below = self.disk_free_bytes() if self.offloaded_bytes else 0
        return self.host_free_bytes() + below

    def disk_free_bytes(self) -> int:
        if self.disk_full:
            return 0
        coming = sum(transfer.nbytes for transfer in self.moving.values() if transfer.kind == "demote")
        return self.disk_bytes - self.disk_taken_bytes - coming

    def turn_of(self, session: SessionRecord, job: str) -> int:
        """The job's position in the device's queue."""
        return FIRST if session.temporary else self.positions.get(job, LAST)

    def copying(self, kind: TransferKind) -> int:
        """Count the transfers of this kind under way."""
        return sum(transfer.kind == kind for transfer in self.moving.values())

    def seconds_for(self, nbytes: int) -> float | None:
        """Least seconds to copy so many bytes, None while the link's rate is unknown."""
        rate = self.link_bytes_per_s or self.measured_bytes_per_s
        return nbytes / rate if rate else None
