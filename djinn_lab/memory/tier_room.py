"""Room on the host and the disk: what may be stored, and what makes way for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.ranking import after_s
from djinn_lab.memory.records import Device, Segment, Session
from djinn_lab.memory.suggestions import Suggestion, Transport

CLEARED_MAX = 2
"""Stores of a session for an eviction between two events of users or cells; then the copy is kept."""


@dataclass(slots=True)
class HostRoom:
    """``at_once_bytes``: what a store could take, once everything redundant is forgotten and everything that
    may be, and for which the disk has room, is demoted. ``bytes_left``: what several could, one after the
    other, since what was stored may be demoted in its turn."""

    at_once_bytes: int
    bytes_left: int

    @classmethod
    def of(cls, device: Device, policy: MemoryPolicy, now_s: float, behind: Segment | None) -> HostRoom:
        """For those who leave so that this segment has room."""
        spare = sum(
            _stored_bytes(session, device)
            for session in device.sessions.values()
            if _redundant(session, device)
        )
        demoted = sum(session.total_bytes for session in _demotions(device, policy, now_s, 0.0, behind))
        at_once_bytes = device.host_free_bytes() + _coming_bytes(device) + spare + demoted
        return cls(at_once_bytes, at_once_bytes + device.disk_free_bytes() - demoted)

    def can_take(self, session: Session) -> bool:
        """Whether the session could be stored whole; claims what that takes."""
        if session.unstored_bytes == 0 or session.moving is not None:
            return True
        if min(self.at_once_bytes, self.bytes_left) < session.total_bytes:
            return False
        self.bytes_left -= session.total_bytes
        return True


def _stored_bytes(session: Session, device: Device) -> int:
    return max(0, device.session_bytes.get(session.session, 0) - session.unstored_bytes)


def _coming_bytes(device: Device) -> int:
    """On the host, about to be free."""
    return sum(
        _stored_bytes(device.sessions[transfer.session], device)
        if transfer.kind == "forget"
        else transfer.nbytes
        for transfer in device.moving.values()
        if transfer.kind in ("forget", "demote") and transfer.session in device.sessions
    )


def _redundant(session: Session, device: Device) -> bool:
    """On the device, and on the host too, where it was not put to make room just now, and again."""
    here = session.place == "device" and session.moving is None
    return here and (session.cleared_at != device.changes or session.cleared < CLEARED_MAX)


def _demotions(
    device: Device, policy: MemoryPolicy, now_s: float, later_than_s: float, behind: Segment | None
) -> list[Session]:
    """Sessions that the disk could take from the host, one after the other, each by the process that parked
    it: of the idle the latest expected first, then those that wait ``behind`` this segment, the last first,
    and at the end its own: it comes back from the disk, and who leaves for it has the host."""
    parked = [
        session
        for session in device.sessions.values()
        if session.place == "host"
        and session.moving is None
        and session.keeper == session.device
        and session.retry_s <= now_s
    ]
    idle = [(after_s(one, policy, now_s), one.session, one) for one in parked if not one.busy]
    chosen = [
        one for due_s, _, one in sorted(idle, key=lambda one: (-one[0], one[1])) if due_s > later_than_s
    ]
    if behind is not None:
        waiting = [(one.earliest, one) for one in parked if one.busy]
        later = [one for one in waiting if one[0] is not None and one[0] >= behind.order]
        chosen += [one for _, one in sorted(later, key=lambda one: one[0] or (), reverse=True)]
    found, disk_bytes = [], device.disk_free_bytes()
    for session in chosen:
        if session.total_bytes <= disk_bytes:
            found.append(session)
            disk_bytes -= session.total_bytes
    return found


def clear_host(
    device: Device,
    wanted_bytes: int,
    beneficiary: Session,
    policy: MemoryPolicy,
    now_s: float,
    *,
    later_than_s: float = 0.0,
    behind: Segment | None = None,
    forgettable: Collection[str] | None = None,
) -> Iterator[Suggestion]:
    """Make room on the host for ``wanted_bytes`` of the beneficiary: forget copies of those who are on the
    device and expected soonest, then demote those away and expected furthest. Nothing where all of it would
    not do: else a copy that was forgotten to no avail is made again, and forgotten again. ``later_than_s``:
    for a demotion only those expected after this; ``behind``: those that wait behind this segment may be
    demoted, too; ``forgettable``: for a copy to be forgotten only those."""
    missing = wanted_bytes - device.host_free_bytes() - _coming_bytes(device)
    due = {name: after_s(session, policy, now_s) for name, session in device.sessions.items()}
    redundant = [
        session
        for session in device.sessions.values()
        if _redundant(session, device)
        and session is not beneficiary
        and _stored_bytes(session, device) > 0
        and (forgettable is None or session.session in forgettable)
    ]
    given_up: list[Transport] = []
    reason = f"room on the host for {beneficiary.session}"
    for session in sorted(redundant, key=lambda one: (due[one.session], one.session)):
        if missing > 0:
            missing -= _stored_bytes(session, device)
            given_up.append(Transport("forget", session, reason=reason))
    for session in _demotions(device, policy, now_s, later_than_s, behind):
        if missing > 0:
            missing -= session.total_bytes
            given_up.append(Transport("demote", session, reason=reason))
    if missing <= 0:
        yield from given_up
