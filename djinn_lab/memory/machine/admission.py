"""Which new sessions are admitted? Past what the devices and the tiers below hold together, no order of
moving helps: even with the future known, sessions would wake tens of seconds late. So *new* sessions are
deferred there, with the reason. Admitted sessions are never deferred for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from djinn_lab.memory.machine.records import Device, PlacedSegment, SessionRecord
from djinn_lab.memory.machine.suggestions import Defer
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.states import Connection
from djinn_lab.units import SHORT_ID_CHARS, format_bytes

LEARNED_FROM = 5
"""Sizes that must have been seen before new sessions are taken to reach them."""
GROWN_CELLS = 3
"""Cells after which a session's growth counts."""
SETTLED_CELLS = 32
"""A session that ran this many cells is as large as it is, not as large as others became."""
REMEMBERED = 64
SMALL_BYTES = 2**20
"""Sessions that begin with less are alike."""


class AdmissionHistory:
    """Learns from past sessions how large sessions of a given initial size become, and how often one
    closes.

    Growth is learned per initial size, and per user first. A session whose first cell keeps a scalar says
    nothing about a session that begins with weights."""

    def __init__(self) -> None:
        self._sizes: deque[int] = deque(maxlen=REMEMBERED)
        self._closed_s: deque[float] = deque(maxlen=REMEMBERED)
        self._open: dict[str, _Growth] = {}
        self._final: deque[_Growth] = deque(maxlen=REMEMBERED)
        self._known: dict[tuple[str, int], float] = {}

    def cell_ended(self, session: SessionRecord) -> None:
        """Record how much larger the session is than after its first cell."""
        if session.first_bytes == 0:
            session.first_bytes = session.total_bytes
        elif session.cells >= GROWN_CELLS:
            seen = _Growth.of(session)
            if self._open.get(session.session) != seen:
                self._open[session.session] = seen
                self._known.clear()

    def grown_bytes(self, user: str, first_bytes: int) -> int:
        """The predicted size of a session whose first cell left so many bytes: the median growth factor
        of sessions of about the same initial size. 0 while fewer than LEARNED_FROM were seen."""
        size_class = _size_class(first_bytes)
        factor = self._known.get((user, size_class))
        if factor is None:
            factor = self._known[user, size_class] = self._growth(user, size_class)
        return int(factor * max(first_bytes, SMALL_BYTES)) if factor else 0

    def _growth(self, user: str, size_class: int) -> float:
        """The median factor of closed sessions; while these are too few, open sessions count too, taken
        to be halfway."""
        alike = [seen for seen in self._final if abs(seen.size_class - size_class) <= 1]
        halfway = [
            seen._replace(factor=max(seen.factor, 2 * seen.factor - 1))
            for seen in self._open.values()
            if abs(seen.size_class - size_class) <= 1
        ]
        for found in (alike, alike + halfway):
            for mine in ([seen for seen in found if seen.user == user], found):
                if len(mine) >= LEARNED_FROM:
                    return sorted(seen.factor for seen in mine)[len(mine) // 2]
        return 0.0

    def closed(self, session: SessionRecord, now_s: float) -> None:
        """Record the size of a closed session."""
        self._open.pop(session.session, None)
        self._known.clear()
        if session.first_bytes > 0:
            self._final.append(_Growth.of(session))
        if session.largest_bytes > 0:
            self._sizes.append(session.largest_bytes)
            self._closed_s.append(now_s)

    def usual_bytes(self) -> int:
        """The median of the sizes that sessions reached; 0 while too few were seen."""
        if len(self._sizes) < LEARNED_FROM:
            return 0
        return sorted(self._sizes)[len(self._sizes) // 2]

    def closing_every_s(self, now_s: float) -> float | None:
        """Seconds between two closings, None when too few were seen."""
        if len(self._closed_s) < 2:
            return None
        return max(now_s - self._closed_s[0], 1e-3) / len(self._closed_s)


class _Growth(NamedTuple):
    """``factor``: the largest size over the size after the first cell, or over what counts as small."""

    user: str
    size_class: int
    factor: float

    @classmethod
    def of(cls, session: SessionRecord) -> _Growth:
        factor = session.largest_bytes / max(session.first_bytes, SMALL_BYTES)
        return cls(session.user, _size_class(session.first_bytes), factor)


def _size_class(first_bytes: int) -> int:
    """The size in powers of four, from what counts as small."""
    return (max(first_bytes, SMALL_BYTES) // SMALL_BYTES).bit_length() // 2


def is_new(session: SessionRecord) -> bool:
    """Return whether the session holds nothing, and may come to stay."""
    return session.total_bytes == 0 and session.rebuild_bytes == 0 and not session.temporary


def guess_bytes(segment: PlacedSegment, user: str, history: AdmissionHistory) -> int:
    """The size that a new session is predicted to reach."""
    if segment.kept_bytes is None:
        return max(segment.peak_bytes, history.usual_bytes())
    return max(segment.kept_bytes, history.grown_bytes(user, segment.kept_bytes))


def abandoned(device: Device) -> list[str]:
    """Sessions that hold state and have no client: their users may close them."""
    return sorted(
        session.session
        for session in device.sessions.values()
        if session.connection is Connection.DETACHED and session.total_bytes > 0
    )


def wait_for_close(device: Device) -> str:
    """The end of a reason: the segment waits for a session to close, and which sessions without a client
    may be closed."""
    elsewhere, found = "" if device.alone else ", or for memory on another device", abandoned(device)
    if not found:
        return f"it waits for one to close{elsewhere}"
    many = "one has" if len(found) == 1 else f"{len(found)} have"
    name = found[0][:SHORT_ID_CHARS]
    return f"it waits for one to close{elsewhere}; {many} no client: djinn-lab close {name}"


def can_exchange(device: Device, sizes: Iterable[int]) -> bool:
    """Return whether sessions of these sizes fit on the device and the tiers below, with one free slot of the
    largest movable size: two sessions can change places only through a free slot. First fit, decreasing
    sizes."""
    falling = sorted(sizes, reverse=True)
    largest = next((nbytes for nbytes in falling if nbytes <= device.host_bytes), 0)
    free = [device.memory_bytes - device.shared_bytes, device.host_bytes, device.disk_bytes]
    if sum(falling) <= free[0]:
        return True
    for nbytes in sorted([*falling, largest], reverse=True):
        tier = next((tier for tier, free_bytes in enumerate(free) if nbytes <= free_bytes), None)
        if tier is None:
            return False
        free[tier] -= nbytes
    return True


def would_fit(
    device: Device,
    session: SessionRecord,
    peak_bytes: int,
    kept_bytes: int | None,
    share: float | None,
    history: AdmissionHistory,
) -> bool:
    """Return whether a session of another device would fit on this one, with its state and a segment, and
    could be exchanged with others."""
    keeps = max(session.total_bytes, peak_bytes if kept_bytes is None else kept_bytes)
    needed = max(keeps, session.total_bytes + peak_bytes)
    expected, committed = _commitments(device, history)
    limit_bytes = int((share or 1.0) * device.capacity_bytes)
    staying_bytes = sum(nbytes for nbytes in expected if nbytes > device.host_bytes)  # larger than the tier
    if needed > device.memory_bytes - device.shared_bytes - staying_bytes or committed + needed > limit_bytes:
        return False
    return not device.host_bytes or can_exchange(device, [*expected, keeps])


def _commitments(device: Device, history: AdmissionHistory) -> tuple[list[int], int]:
    """Return what each session of the device will hold between two cells, and the sum to which the device is
    committed. Sessions that hold and run nothing are not counted."""
    running = {segment.session for segment in device.granted.values()}
    sessions = [
        one
        for one in device.sessions.values()
        if one.total_bytes or one.rebuild_bytes or one.session in running
    ]
    expected = [_expected_bytes(session, history) for session in sessions]
    granted = [_granted_bytes(session) if session.session in running else 0 for session in sessions]
    return expected, device.shared_bytes + sum(map(max, expected, granted))


def _expected_bytes(session: SessionRecord, history: AdmissionHistory) -> int:
    """Return the bytes that the session holds, or will hold between two cells."""
    nbytes = session.total_bytes + session.rebuild_bytes
    if nbytes == 0:
        return max((one.kept_bytes or 0 for one in session.segments.values() if one.granted), default=0)
    if session.cells >= SETTLED_CELLS:
        return nbytes
    first_bytes = session.first_bytes
    grown = history.grown_bytes(session.user, first_bytes) if first_bytes else session.guess_bytes
    return max(nbytes, grown)


def _granted_bytes(session: SessionRecord) -> int:
    granted = [one.base_bytes + one.peak_bytes for one in session.segments.values() if one.granted]
    return max(granted, default=0)


class AdmissionGate:
    """Decides for one moment which new sessions are admitted, in the order of arrival: behind a deferred
    session all are deferred."""

    def __init__(self, device: Device, policy: MemoryPolicy, history: AdmissionHistory, now_s: float) -> None:
        self._device = device
        self._share = policy.admission_share
        self._history = history
        self._now_s = now_s
        self._abandoned: int | None = None
        self._ahead = 0
        self._committed = 0
        self._expected: list[int] = []
        self._counted: int | None = None

    def defer(self, segment: PlacedSegment) -> Defer | None:
        """Why this new session must wait, and for how long; None: it is admitted."""
        if self._share is None:
            return None
        if self._abandoned is None:  # a plan without a new session does not count them
            self._abandoned = len(abandoned(self._device))
        kind = f"admission {self._ahead + 1}, {self._abandoned}"
        if self._ahead and segment.kind == kind:
            self._ahead += 1
            return Defer(segment, kind, segment.reason, segment.estimate_s, admission=True, stuck=True)
        if self._counted != len(self._device.granted):  # in a plan nothing else changes what is committed
            self._count()
        reason = self._objection(segment)
        if not self._ahead and not reason:
            return None
        self._ahead += 1
        every_s = self._history.closing_every_s(self._now_s)
        estimate_s = None if every_s is None else every_s * self._ahead
        reason = f"memory is full: {reason or 'others wait before it'}; {wait_for_close(self._device)}"
        return Defer(segment, kind, reason, estimate_s, admission=True, stuck=True)

    def _ends_exchange(self, keeps: int) -> bool:
        """Return whether sessions can be exchanged only as long as this one is not admitted."""
        expected, device = self._expected, self._device
        return not can_exchange(device, [*expected, keeps]) and can_exchange(device, expected)

    def _count(self) -> None:
        self._counted = len(self._device.granted)
        self._expected, self._committed = _commitments(self._device, self._history)

    def _objection(self, segment: PlacedSegment) -> str:
        """Why the session is not admitted, empty for no objection. There is none against a session that
        would be alone."""
        device, committed = self._device, self._committed
        wanted = guess_bytes(segment, device.sessions[segment.session].user, self._history)
        if committed == device.shared_bytes:
            return ""
        limit_bytes = int((self._share or 1.0) * device.capacity_bytes)
        where = f"on {device.device}{' and the host' if device.host_bytes else ''}"
        inside = sum(nbytes > 0 for nbytes in self._expected)
        held = f"{inside} sessions hold or expect {format_bytes(committed)} of"
        needs = f"and this one needs {format_bytes(wanted)}"
        if committed + wanted > limit_bytes:
            return f"{held} the {format_bytes(limit_bytes)} that may be given away {where}, {needs}"
        keeps = wanted if segment.kept_bytes is not None else 0
        if device.host_bytes and self._ends_exchange(keeps):
            capacity = format_bytes(device.capacity_bytes)
            return f"{held} {capacity} {where}, {needs}, which leaves no memory to exchange sessions"
        return ""
