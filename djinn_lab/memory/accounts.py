"""The accounts: events in, commands out. Theory of operation: :mod:`djinn_lab.memory.states`."""

from __future__ import annotations

from msgspec.structs import replace

from djinn_lab.memory.messages import (
    AdmitSegment,
    AnswerPhase,
    Command,
    DeviceAdded,
    DeviceLost,
    Event,
    FreeSession,
    MemoryReported,
    PhaseSignalled,
    RefuseSegment,
    SegmentProposed,
    SessionBound,
    SessionClosed,
    SessionDetached,
    SessionOpened,
    SessionResumed,
    ValuesLost,
)
from djinn_lab.memory.snapshot import DeviceAccount, MemorySnapshot, SessionAccount
from djinn_lab.memory.states import TRANSITIONS, Connection, IllegalEvent, Move, Phase
from djinn_lab.units import format_bytes

EXPECTED_S_MAX = 30 * 24 * 3600.0
"""A longer announced wait is not believed."""


class MemoryAccounts:
    """What every session holds on every device. One instance is driven by one thread."""

    def __init__(self) -> None:
        self._devices: dict[str, DeviceAccount] = {}
        self._sessions: dict[str, SessionAccount] = {}

    def handle(self, event: Event) -> list[Command]:
        """Apply one event. Raises IllegalEvent, with nothing changed, when it cannot happen now."""
        match event:
            case DeviceAdded():
                return self._add_device(event)
            case DeviceLost():
                return self._lose_device(event)
            case SessionOpened():
                self._move(event.session, Move.OPEN)
                self._sessions[event.session] = SessionAccount(
                    event.session, event.user, Connection.CONNECTED, Phase.COMPUTE
                )
                return []
            case SessionDetached():
                return self._detach(event)
            case SessionResumed():
                connection = self._move(event.session, Move.RESUME)
                self._change(event.session, connection=connection, phase=Phase.COMPUTE, wake_at_s=None)
                return []
            case SessionClosed():
                return self._close(event)
            case SessionBound():
                self._device(event.device)
                self._change(event.session, device=event.device)
                return []
            case SegmentProposed():
                return self._propose(event)
            case MemoryReported():
                return self._report(event)
            case PhaseSignalled():
                return self._signal(event)
            case _:
                raise NotImplementedError(event)

    def device(self, device: str) -> DeviceAccount | None:
        return self._devices.get(device)

    def session(self, session: str) -> SessionAccount | None:
        return self._sessions.get(session)

    def session_bytes(self, session: str) -> int:
        """Live bytes of a session over all devices, as last reported."""
        return sum(account.session_bytes.get(session, 0) for account in self._devices.values())

    def snapshot(self) -> MemorySnapshot:
        return MemorySnapshot(
            tuple(account for _, account in sorted(self._devices.items())),
            tuple(account for _, account in sorted(self._sessions.items())),
        )

    def validate(self) -> None:
        """Assert every invariant."""
        for name, account in self._devices.items():
            assert name == account.device
            assert account.memory_bytes > 0
            assert 0 <= account.used_bytes <= account.peak_bytes
            assert sum(account.session_bytes.values()) <= account.used_bytes
            assert all(nbytes > 0 for nbytes in account.session_bytes.values())
        for name, session in self._sessions.items():
            assert name == session.session
            assert session.device is None or session.device in self._devices
            assert session.wake_at_s is None or session.phase is Phase.IO_WAIT
            assert session.connection is Connection.CONNECTED or session.phase is Phase.IO_WAIT

    def _add_device(self, event: DeviceAdded) -> list[Command]:
        if event.device in self._devices:
            raise IllegalEvent(f"{event.device} is already known")
        if event.memory_bytes <= 0:
            raise IllegalEvent(f"{event.device} with {event.memory_bytes} bytes")
        self._devices[event.device] = DeviceAccount(event.device, event.memory_bytes)
        return []

    def _lose_device(self, event: DeviceLost) -> list[Command]:
        lost = self._device(event.device)
        del self._devices[event.device]
        for name, session in list(self._sessions.items()):
            if session.device == event.device:
                self._sessions[name] = replace(session, device=None)
        return [
            ValuesLost(session, event.device, nbytes)
            for session, nbytes in sorted(lost.session_bytes.items())
            if session in self._sessions
        ]

    def _detach(self, event: SessionDetached) -> list[Command]:
        connection = self._move(event.session, Move.DETACH)
        self._change(event.session, connection=connection, phase=Phase.IO_WAIT, wake_at_s=None)
        return []

    def _close(self, event: SessionClosed) -> list[Command]:
        self._move(event.session, Move.CLOSE)
        session = self._sessions.pop(event.session)
        holding = {name for name, account in self._devices.items() if event.session in account.session_bytes}
        devices = holding | ({session.device} if session.device else set())
        return [FreeSession(event.session, device) for device in sorted(devices)]

    def _propose(self, event: SegmentProposed) -> list[Command]:
        session = self._known(event.session)
        if session.device is not None:
            limits = {session.device: self._devices[session.device].memory_bytes}
        else:
            limits = {name: account.memory_bytes for name, account in self._devices.items()}
        if not limits or event.peak_bytes <= max(limits.values()):
            return [AdmitSegment(event.job, event.segment)]
        largest = max(limits, key=lambda name: (limits[name], name))
        whose = f"{largest} has" if session.device else f"the largest device, {largest}, has"
        message = (
            f"the cell needs {format_bytes(event.peak_bytes)} at once"
            f"{f' at {event.op}' if event.op else ''}, and {whose} {format_bytes(limits[largest])}"
        )
        advice = "Use smaller batches or tensors, or run on a pool whose devices have more memory."
        return [RefuseSegment(event.job, event.segment, message, advice, event.node, event.op)]

    def _report(self, event: MemoryReported) -> list[Command]:
        account = self._device(event.device)
        if min([event.used_bytes, *event.session_bytes.values()]) < 0:
            raise IllegalEvent(f"{event.device} reports negative bytes")
        holding = {session: nbytes for session, nbytes in event.session_bytes.items() if nbytes}
        if sum(holding.values()) > event.used_bytes:
            raise IllegalEvent(
                f"{event.device} reports {event.used_bytes} bytes, its sessions {sum(holding.values())}"
            )
        peak_bytes = max(account.peak_bytes, event.peak_bytes, event.used_bytes)
        self._devices[event.device] = replace(
            account, used_bytes=event.used_bytes, peak_bytes=peak_bytes, session_bytes=holding
        )
        return [
            FreeSession(session, event.device) for session in sorted(holding) if session not in self._sessions
        ]

    def _signal(self, event: PhaseSignalled) -> list[Command]:
        session = self._known(event.session)
        problem = _objection(event, session)
        if problem is not None:
            return [AnswerPhase(event.session, "rejected", problem)]
        phase = Phase(event.phase)
        wake_at_s = None
        if phase is Phase.IO_WAIT and event.expected_s is not None:
            wake_at_s = event.at_s + event.expected_s
        self._change(event.session, phase=phase, wake_at_s=wake_at_s)
        return [AnswerPhase(event.session, "accepted", f"{session.phase} -> {phase}")]

    def _device(self, device: str) -> DeviceAccount:
        if device not in self._devices:
            raise IllegalEvent(f"{device} is unknown")
        return self._devices[device]

    def _known(self, session: str) -> SessionAccount:
        if session not in self._sessions:
            raise IllegalEvent(f"session {session} is unknown")
        return self._sessions[session]

    def _change(self, session: str, **changes: object) -> None:
        self._sessions[session] = replace(self._known(session), **changes)

    def _move(self, session: str, move: Move) -> Connection | None:
        known = self._sessions.get(session)
        connection = known.connection if known else None
        if (connection, move) not in TRANSITIONS:
            raise IllegalEvent(f"session {session} is {connection or 'unknown'} and cannot {move}")
        return TRANSITIONS[connection, move]


def _objection(event: PhaseSignalled, session: SessionAccount) -> str | None:
    if event.phase not in Phase.__members__:
        return f"{event.phase!r} is no phase; say COMPUTE or IO_WAIT"
    if session.connection is not Connection.CONNECTED:
        return "the session is detached"
    if event.expected_s is not None and not 0 <= event.expected_s <= EXPECTED_S_MAX:
        return f"expected_s is {event.expected_s}; it must lie between 0 and {EXPECTED_S_MAX:.0f}"
    return None
