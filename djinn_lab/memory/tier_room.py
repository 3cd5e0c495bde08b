"""Room on the host and the disk: what may be stored, and what makes way for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.ranking import after_s
from djinn_lab.memory.records import Device, Session
from djinn_lab.memory.suggestions import Suggestion, Transport


@dataclass(slots=True)
class HostRoom:
    """``bytes_left``: what stores could still take, once everything redundant is forgotten and everything
    that may be is demoted."""

    bytes_left: int

    @classmethod
    def of(cls, device: Device) -> HostRoom:
        spare = sum(
            _stored_bytes(session, device) for session in device.sessions.values() if _redundant(session)
        )
        demotable = sum(session.total_bytes for session in device.sessions.values() if _demotable(session))
        return cls(device.host_free_bytes() + spare + min(demotable, device.disk_free_bytes()))

    def can_take(self, session: Session) -> bool:
        """Whether the session could be stored whole; claims what that takes."""
        if session.unstored_bytes == 0 or session.moving is not None:
            return True
        if self.bytes_left < session.total_bytes:
            return False
        self.bytes_left -= session.total_bytes
        return True


def _stored_bytes(session: Session, device: Device) -> int:
    return max(0, device.session_bytes.get(session.session, 0) - session.unstored_bytes)


def _redundant(session: Session) -> bool:
    """On the device, and on the host too."""
    return session.place == "device" and session.moving is None


def _demotable(session: Session) -> bool:
    """By the process that parked it."""
    idle = session.moving is None and not session.busy
    return session.place == "host" and idle and session.keeper == session.device


def clear_host(
    device: Device,
    wanted_bytes: int,
    beneficiary: Session,
    policy: MemoryPolicy,
    now_s: float,
    later_than_s: float = 0.0,
) -> Iterator[Suggestion]:
    """Make room on the host for ``wanted_bytes`` of the beneficiary: forget copies of those who are on the
    device and expected soonest, then demote those away and expected furthest. ``later_than_s``: only those
    expected after this, for a demotion."""
    missing = wanted_bytes - device.host_free_bytes()
    missing -= sum(
        _stored_bytes(device.sessions[transfer.session], device)
        if transfer.kind == "forget"
        else transfer.nbytes
        for transfer in device.moving.values()
        if transfer.kind in ("forget", "demote") and transfer.session in device.sessions
    )
    due = {name: after_s(session, policy, now_s) for name, session in device.sessions.items()}
    redundant = [
        session
        for session in device.sessions.values()
        if _redundant(session) and session is not beneficiary and _stored_bytes(session, device) > 0
    ]
    for session in sorted(redundant, key=lambda one: (due[one.session], one.session)):
        if missing <= 0:
            return
        missing -= _stored_bytes(session, device)
        yield Transport("forget", session, reason=f"room on the host for {beneficiary.session}")
    away = [session for session in device.sessions.values() if _demotable(session)]
    for session in sorted(away, key=lambda one: (-due[one.session], one.session)):
        if missing <= 0 or due[session.session] <= later_than_s:
            return
        if session.total_bytes > device.disk_free_bytes():
            continue
        missing -= session.total_bytes
        yield Transport("demote", session, reason=f"room on the host for {beneficiary.session}")
