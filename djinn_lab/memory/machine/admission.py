"""Decide which new sessions are admitted. Past what the devices and the tiers below hold together, no order
of moving helps: even with the future known, sessions would wake tens of seconds late. So *new* sessions are
deferred there, with the reason. Admitted sessions are never deferred for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from itertools import compress
from typing import NamedTuple

from djinn_lab.events import MemoryRelease
from djinn_lab.memory.machine.closing import advise_close, wait_for
from djinn_lab.memory.machine.records import Device, PlacedSegment, SessionRecord
from djinn_lab.memory.machine.sentences import running_text
from djinn_lab.memory.machine.suggestions import Defer
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.states import Connection
from djinn_lab.units import SHORT_ID_CHARS, counted, format_bytes, listed

LEARNED_FROM = 5
"""Sizes that must have been seen before new sessions are taken to reach them."""
GROWN_CELLS = 3
"""Cells after which a session's growth counts."""
SETTLED_CELLS = 32
"""A session that ran this many cells is as large as it is, not as large as others became ..."""
SETTLED_FACTOR = 2
"""... and so is one that did not grow for as long as it ran before, and GROWN_CELLS."""
GREW_BY = 1.05
"""Less is no growth."""
STANDS_STILL_S = 30.0
"""A session that ran nothing for so long, and GAPS_AWAITED times as long as its usual gaps, is as large as it
is until it runs again: a new one does not wait for a notebook that its user left."""
GAPS_AWAITED = 3
PASSING_SHARE = 0.02
"""Of what sessions may fill: so much in all may be admitted past the first deferred session, which is delayed
by no more than that."""
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
        if session.largest_bytes > GREW_BY * session.grown_bytes:
            session.grown_bytes, session.grew_cells = session.largest_bytes, session.cells
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
        """The median factor of closed sessions; while these are too few, open sessions count too. Those that
        still grow are taken to be halfway."""
        alike = [seen for seen in self._final if abs(seen.size_class - size_class) <= 1]
        halfway = [
            seen if seen.settled else seen._replace(factor=max(seen.factor, 2 * seen.factor - 1))
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
    """``factor``: the largest size over the size after the first cell, or over what counts as small.
    ``settled``: it will not grow, or has become smaller since."""

    user: str
    size_class: int
    factor: float
    settled: bool

    @classmethod
    def of(cls, session: SessionRecord) -> _Growth:
        factor = session.largest_bytes / max(session.first_bytes, SMALL_BYTES)
        settled = is_settled(session) or session.largest_bytes > GREW_BY * session.total_bytes
        return cls(session.user, _size_class(session.first_bytes), factor, settled)


def _size_class(first_bytes: int) -> int:
    """The size in powers of four, from what counts as small."""
    return (max(first_bytes, SMALL_BYTES) // SMALL_BYTES).bit_length() // 2


def is_new(session: SessionRecord) -> bool:
    """Return whether the session holds nothing, and may come to stay."""
    return session.total_bytes == 0 and session.rebuild_bytes == 0 and not session.temporary


def is_settled(session: SessionRecord) -> bool:
    """Return whether the session's own history says that it will not grow."""
    return session.cells >= min(SETTLED_CELLS, GROWN_CELLS + SETTLED_FACTOR * session.grew_cells)


def stands_still(session: SessionRecord, now_s: float) -> bool:
    """Return whether the session has no client, or has run nothing for so long that no growth of it is
    awaited."""
    if session.connection is Connection.DETACHED:
        return not session.segments
    if session.segments or session.idle_since_s is None:
        return False
    usual_s = session.gap.median_s if session.gap is not None and session.gap.known else 0.0
    return now_s - session.idle_since_s > STANDS_STILL_S + GAPS_AWAITED * usual_s


def guess_bytes(segment: PlacedSegment, user: str, history: AdmissionHistory) -> int:
    """The size that a new session is predicted to reach."""
    if segment.kept_bytes is None:
        return max(segment.peak_bytes, history.usual_bytes())
    return max(segment.kept_bytes, history.grown_bytes(user, segment.kept_bytes))


def can_exchange(device: Device, sizes: Iterable[int]) -> bool:
    """Return whether sessions of these sizes fit on the device and the tiers below, with one free slot of the
    largest movable size: two sessions can change places only through a free slot. First fit, decreasing
    sizes."""
    falling = sorted(sizes, reverse=True)
    largest = next((nbytes for nbytes in falling if nbytes <= device.host_bytes), 0)
    if sum(falling) <= device.memory_bytes - device.shared_bytes:
        return True
    return _free_beside(device, [*falling, largest]) is not None


def _free_beside(device: Device, sizes: Iterable[int]) -> list[int] | None:
    """Return what sessions of these sizes leave free on the device, the host and the disk; None where they do
    not fit. First fit, decreasing sizes."""
    free = [device.memory_bytes - device.shared_bytes, device.host_bytes, device.disk_bytes]
    for nbytes in sorted(sizes, reverse=True):
        tier = next((tier for tier, free_bytes in enumerate(free) if nbytes <= free_bytes), None)
        if tier is None:
            return None
        free[tier] -= nbytes
    return free


def would_fit(
    device: Device,
    session: SessionRecord,
    peak_bytes: int,
    kept_bytes: int | None,
    share: float | None,
    history: AdmissionHistory,
    now_s: float,
) -> bool:
    """Return whether a session of another device would fit on this one, with its state and a segment, and
    could be exchanged with others."""
    keeps = max(session.total_bytes, peak_bytes if kept_bytes is None else kept_bytes)
    needed = max(keeps, session.total_bytes + peak_bytes)
    loads = _Loads.of(device, history, now_s)
    limit_bytes = int((share or 1.0) * device.capacity_bytes)
    if needed > device.memory_bytes - device.shared_bytes - loads.staying_bytes(device):
        return False
    if loads.committed_bytes + needed > limit_bytes:
        return False
    return not device.host_bytes or can_exchange(device, [*loads.expected, keeps])


class _Loads(NamedTuple):
    """Bytes of each session on a device, or that a former process of it left: what it holds, what it is
    expected to hold between two cells, and what it has been granted as well. Sessions that hold and run
    nothing are left out."""

    names: list[str]
    running: set[str]
    shared_bytes: int
    held: list[int]
    expected: list[int]
    committed: list[int]

    @classmethod
    def of(cls, device: Device, history: AdmissionHistory, now_s: float) -> _Loads:
        running = {segment.session for segment in device.granted.values()}
        unbound = [one for one in device.inherited.values() if one.device is None]
        sessions = [
            one
            for one in (*device.sessions.values(), *unbound)
            if one.total_bytes or one.rebuild_bytes or one.session in running
        ]
        expected = [_expected_bytes(session, history, now_s) for session in sessions]
        granted = [_granted_bytes(session) if session.session in running else 0 for session in sessions]
        held = [session.total_bytes + session.rebuild_bytes for session in sessions]
        names, committed = [session.session for session in sessions], list(map(max, expected, granted))
        return cls(names, running, device.shared_bytes, held, expected, committed)

    def without(self, gone: Collection[str]) -> _Loads:
        """Return the loads as they would be had these sessions closed."""
        kept = [name not in gone for name in self.names]
        return _Loads(
            list(compress(self.names, kept)),
            self.running,
            self.shared_bytes,
            *(list(compress(one, kept)) for one in (self.held, self.expected, self.committed)),
        )

    def staying_bytes(self, device: Device) -> int:
        """Return the bytes of sessions that are too large to leave the device."""
        return sum(nbytes for nbytes in self.expected if nbytes > device.host_bytes)

    @property
    def held_bytes(self) -> int:
        return self.shared_bytes + sum(self.held)

    @property
    def expected_bytes(self) -> int:
        return self.shared_bytes + sum(self.expected)

    @property
    def committed_bytes(self) -> int:
        return self.shared_bytes + sum(self.committed)


def _expected_bytes(session: SessionRecord, history: AdmissionHistory, now_s: float) -> int:
    """Return the bytes that the session holds, or will hold between two cells."""
    nbytes = session.total_bytes + session.rebuild_bytes
    if nbytes == 0:
        return max((one.kept_bytes or 0 for one in session.segments.values() if one.granted), default=0)
    if is_settled(session) or stands_still(session, now_s):
        return nbytes
    first_bytes = session.first_bytes
    grown = history.grown_bytes(session.user, first_bytes) if first_bytes else session.guess_bytes
    return max(nbytes, grown)


def _granted_bytes(session: SessionRecord) -> int:
    granted = [one.base_bytes + one.peak_bytes for one in session.segments.values() if one.granted]
    return max(granted, default=0)


class AdmissionGate:
    """Decides for one moment which new sessions are admitted, in the order of arrival. Behind a deferred
    session others are deferred, but for small ones that fit, up to PASSING_SHARE in all."""

    def __init__(self, device: Device, policy: MemoryPolicy, history: AdmissionHistory, now_s: float) -> None:
        self._device = device
        self._share = policy.admission_share
        self._history = history
        self._now_s = now_s
        self._ahead = 0
        self._first: PlacedSegment | None = None
        self._behind = MemoryRelease.ADMISSION
        self._loads = _Loads([], set(), 0, [], [], [])
        self._counted: int | None = None

    def defer(self, segment: PlacedSegment) -> Defer | None:
        """Why this new session must wait, and for how long; None: it is admitted."""
        if self._share is None:
            return None
        if self._first is not None and not self._may_pass(segment, self._first):
            return self._defer_behind(segment, self._first)
        if self._counted != len(self._device.granted):  # in a plan nothing else changes the loads
            self._counted = len(self._device.granted)
            self._loads = _Loads.of(self._device, self._history, self._now_s)
        objection = self._objection(segment)
        if objection is None:
            return None
        if self._first is not None:
            return self._defer_behind(segment, self._first)
        self._behind, reason = objection
        self._ahead, self._first = 1, segment
        every_s = self._history.closing_every_s(self._now_s)
        estimate_s = every_s if self._behind is MemoryRelease.CLOSE else None
        return Defer(segment, f"admission 1: {reason}", reason, estimate_s, self._behind)

    def _may_pass(self, segment: PlacedSegment, first: PlacedSegment) -> bool:
        wanted = guess_bytes(segment, self._device.sessions[segment.session].user, self._history)
        return first.passed_bytes + wanted <= PASSING_SHARE * self._limit_bytes

    def _defer_behind(self, segment: PlacedSegment, first: PlacedSegment) -> Defer:
        self._ahead += 1
        name = first.job[:SHORT_ID_CHARS]
        kind = f"admission {self._ahead}, {self._behind}, {name}"
        if segment.kind == kind:
            return Defer(segment, kind, segment.reason, segment.estimate_s, self._behind)
        every_s = self._history.closing_every_s(self._now_s)
        closes = self._behind is MemoryRelease.CLOSE and every_s is not None
        estimate_s = every_s * self._ahead if closes and every_s is not None else None
        count = self._ahead - 1
        others = f"{counted(count, 'new session')} {'waits' if count == 1 else 'wait'} before it"
        named = f"job {name}" if count == 1 else f"job {name} first"
        reason = f"memory of {self._device.device} is full, and {others} ({named})"
        return Defer(segment, kind, reason, estimate_s, self._behind)

    def _objection(self, segment: PlacedSegment) -> tuple[MemoryRelease, str] | None:
        """Return why the session is not admitted and what would admit it. There is no objection to a
        session that would be alone."""
        device, loads = self._device, self._loads
        wanted = guess_bytes(segment, device.sessions[segment.session].user, self._history)
        if loads.committed_bytes == device.shared_bytes:
            return None
        limit_bytes = self._limit_bytes
        if loads.committed_bytes + wanted > limit_bytes:
            too_much = [limit_bytes < nbytes + wanted for nbytes in (loads.held_bytes, loads.expected_bytes)]
            return self._full(segment, limit_bytes, wanted, "", *too_much)
        keeps = wanted if segment.kept_bytes is not None else 0
        if device.host_bytes and self._ends_exchange(keeps, loads.expected):
            held = self._ends_exchange(keeps, loads.held)
            piece = self._in_one_piece(wanted, keeps, loads.held if held else loads.expected)
            return self._full(segment, device.capacity_bytes, wanted, piece, held, True)
        return None

    @property
    def _limit_bytes(self) -> int:
        return int((self._share or 1.0) * self._device.capacity_bytes)

    def _ends_exchange(self, keeps: int, sizes: list[int]) -> bool:
        """Return whether sessions can be exchanged only as long as this one is not admitted."""
        return not can_exchange(self._device, [*sizes, keeps]) and can_exchange(self._device, sizes)

    def _in_one_piece(self, wanted: int, keeps: int, sizes: list[int]) -> str:
        """Say what is needed in one piece, and what is free in each, where the sum of all would fit."""
        device = self._device
        largest = max((nbytes for nbytes in [*sizes, keeps] if nbytes <= device.host_bytes), default=0)
        needs = (
            f" and {format_bytes(largest)} in one piece to exchange sessions" if largest else " in one piece"
        )
        free = _free_beside(device, sizes)
        if free is None or sum(free) < wanted + largest:
            return needs
        named = zip((f"{device.device} has", "the host", "the disk"), free, strict=True)
        limits = (device.memory_bytes, device.host_bytes, device.disk_bytes)
        parts = [
            f"{tier} {format_bytes(nbytes)}"
            for (tier, nbytes), limit in zip(named, limits, strict=True)
            if limit
        ]
        return f"{needs}, where {listed(parts)} free"

    def _full(
        self, segment: PlacedSegment, limit_bytes: int, wanted: int, piece: str, held: bool, expected: bool
    ) -> tuple[MemoryRelease, str]:
        """``piece``: what is needed in one piece. ``held``: what sessions hold is too much already;
        ``expected``: what they are expected to."""
        device, loads = self._device, self._loads
        count = sum(nbytes > 0 for nbytes in loads.committed)
        holds, are = ("holds", "is") if count == 1 else ("hold", "are")
        grow = f"{are} expected to grow to {format_bytes(loads.expected_bytes)}"
        needs = f"and this one is expected to need {format_bytes(wanted)}{piece}"
        release = MemoryRelease.ADMISSION
        if held:
            release, does = MemoryRelease.CLOSE, f"{holds} {format_bytes(loads.held_bytes)}"
            waits = self._until_closed(segment, wanted, limit_bytes, "free values")
        elif expected:
            waits, does = self._until_closed(segment, wanted, limit_bytes, "stay smaller"), grow
        else:
            waits = f"it waits for {running_text(device)} to end"
            more = format_bytes(loads.committed_bytes - loads.expected_bytes)
            have = f"{holds} {format_bytes(loads.held_bytes)}"
            does = (
                f"{grow if loads.expected_bytes > loads.held_bytes else have}, and running cells {more} more,"
            )
        where = _tiers(device, limit_bytes)
        return release, f"memory is full: {counted(count, 'session')} {does} of {where}, {needs}; {waits}"

    def _until_closed(self, segment: PlacedSegment, wanted: int, limit_bytes: int, otherwise: str) -> str:
        """Say that sessions must close, or what else they may do. While cells run that may free enough at
        their end, no session is to be closed."""
        device, loads = self._device, self._loads
        rest = loads.without(loads.running)
        if loads.running and rest.held_bytes + wanted <= limit_bytes:
            return wait_for(
                device, f"one to close or to {otherwise}, as {running_text(device)} may at the end"
            )
        keeps = wanted if segment.kept_bytes is not None else 0

        def enough(gone: Collection[str]) -> bool:
            left = loads.without(gone)
            fits = left.committed_bytes + wanted <= self._limit_bytes
            runs = segment.peak_bytes <= device.memory_bytes - device.shared_bytes - left.staying_bytes(
                device
            )
            movable = not device.host_bytes or not self._ends_exchange(keeps, left.expected)
            return left.committed_bytes == device.shared_bytes or (fits and runs and movable)

        return wait_for(device, f"one to close or to {otherwise}") + advise_close(device, enough)


def _tiers(device: Device, limit_bytes: int) -> str:
    """Return for example ``288.0 MiB (90% of cpu:0 and the host)``."""
    below = [
        name for name, nbytes in (("the host", device.host_bytes), ("the disk", device.disk_bytes)) if nbytes
    ]
    place = listed([device.device, *below])
    if limit_bytes == device.capacity_bytes:
        return f"{format_bytes(limit_bytes)} on {place}"
    return f"{format_bytes(limit_bytes)} ({limit_bytes / device.capacity_bytes:.0%} of {place})"
