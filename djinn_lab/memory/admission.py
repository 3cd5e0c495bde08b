"""Who may come in? Past what the devices and the tiers below hold together, no order of moving helps: even
one that knew the future would wake its sessions tens of seconds late. So *new* sessions wait there, with
the reason; those that are in are never held for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.records import Device, Segment, Session
from djinn_lab.memory.suggestions import Hold
from djinn_lab.units import format_bytes

LEARNED_FROM = 5
"""Sizes that must have been seen before new sessions are taken to reach them."""
GROWN_CELLS = 3
"""Cells after which a session's growth counts."""
SETTLED_CELLS = 32
"""A session that ran this many cells is as large as it is, not as large as others became."""
REMEMBERED = 64


class AdmissionLore:
    """What past sessions taught: how large they became, and how often one closes."""

    def __init__(self) -> None:
        self._sizes: deque[int] = deque(maxlen=REMEMBERED)
        self._closed_s: deque[float] = deque(maxlen=REMEMBERED)
        self._growths: dict[str, float] = {}
        self._final_growths: deque[float] = deque(maxlen=REMEMBERED)

    def cell_ended(self, session: Session) -> None:
        """How much larger is it than after its first cell?"""
        if session.first_bytes == 0:
            session.first_bytes = session.total_bytes
        elif session.cells >= GROWN_CELLS:
            self._growths[session.session] = session.largest_bytes / session.first_bytes

    def growth(self) -> float:
        """The median of how many times larger sessions became than after their first cell: of those that
        closed; while these are too few, of those that are open, taken to be halfway. 0 while nothing is
        known."""
        seen: Collection[float] = self._final_growths
        if len(seen) < LEARNED_FROM:
            seen = [2 * growth - 1 for growth in self._growths.values()]
        if len(seen) < LEARNED_FROM:
            return 0.0
        return max(1.0, sorted(seen)[len(seen) // 2])

    def closed(self, session: Session, now_s: float) -> None:
        """A session that held something is gone."""
        self._growths.pop(session.session, None)
        if session.first_bytes > 0:
            self._final_growths.append(session.largest_bytes / session.first_bytes)
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


def is_new(session: Session) -> bool:
    """It holds nothing, and may come to stay."""
    return session.total_bytes == 0 and session.rebuild_bytes == 0 and not session.passing


def guess_bytes(segment: Segment, lore: AdmissionLore) -> int:
    """How large a new session becomes, as far as anybody knows."""
    first = segment.peak_bytes if segment.kept_bytes is None else segment.kept_bytes
    return max(first, int(lore.growth() * first) or lore.usual_bytes())


def committed_bytes(device: Device, growth: float) -> int:
    """What the sessions of a device hold and are expected to."""
    return device.shared_bytes + sum(_commitment(session, growth) for session in device.sessions.values())


def _commitment(session: Session, growth: float) -> int:
    nbytes = session.total_bytes + session.rebuild_bytes
    for segment in session.segments.values():
        if segment.granted:
            nbytes = max(nbytes, segment.base_bytes + segment.peak_bytes)
    if nbytes and session.cells < SETTLED_CELLS:
        nbytes = max(nbytes, int(growth * session.first_bytes) or session.guess_bytes)
    return nbytes


class Gate:
    """At one moment: may the next new session come in? In the order of arrival; who comes after one that
    waits, waits too."""

    def __init__(self, device: Device, policy: MemoryPolicy, lore: AdmissionLore, now_s: float) -> None:
        self._device = device
        self._share = policy.admission_share
        self._lore = lore
        self._now_s = now_s
        self._ahead = 0

    def hold(self, segment: Segment) -> Hold | None:
        """Why this new session must wait, and for how long; None: it may come in."""
        if self._share is None:
            return None
        told = f"admission {self._ahead + 1}"
        if self._ahead and segment.told == told:
            self._ahead += 1
            return Hold(segment, told, segment.reason, segment.estimate_s, True)
        limit_bytes = int(self._share * self._device.capacity_bytes)
        committed = committed_bytes(self._device, self._lore.growth())
        wanted = guess_bytes(segment, self._lore)
        alone = committed == self._device.shared_bytes
        if alone or (not self._ahead and committed + wanted <= limit_bytes):
            return None
        self._ahead += 1
        every_s = self._lore.closing_every_s(self._now_s)
        estimate_s = None if every_s is None else every_s * self._ahead
        return Hold(segment, told, _full(committed, limit_bytes, wanted, self._device), estimate_s, True)


def _full(committed: int, limit_bytes: int, wanted: int, device: Device) -> str:
    inside = sum(_commitment(session, 1.0) > 0 for session in device.sessions.values())
    where = "on the device and the host" if device.host_bytes else "on the device"
    return (
        f"memory is full: {inside} sessions hold or expect {format_bytes(committed)} of the"
        f" {format_bytes(limit_bytes)} that may be given away {where}, and this one needs"
        f" {format_bytes(wanted)}; it waits for one to close"
    )
