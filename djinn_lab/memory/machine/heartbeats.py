"""What a worker that does not answer means for its device's sessions.

Nothing is lost yet: the worker may answer again, or be ended and replaced. Meanwhile no copy begins on its
device, and a session whose state is in its memory, or is being copied by it, stays bound to it. Its cells
wait, and reserve nothing elsewhere. Any other session is bound to no device, so that its next cell runs on
another one: what is parked on the host or the disk can be restored by every worker."""

from __future__ import annotations

from collections.abc import Iterator

from djinn_lab.events import HeartbeatChanged, IllegalEvent
from djinn_lab.memory.machine import moving
from djinn_lab.memory.machine.records import Device, SessionRecord
from djinn_lab.memory.machine.suggestions import Defer, RefuseMove, Suggestion
from djinn_lab.memory.machine.tables import Tables

SILENT = "silent"
"""The kind of reason of a segment that waits for a worker to answer."""


def check(tables: Tables, event: HeartbeatChanged) -> Device:
    """Return the device. Raises IllegalEvent, with nothing changed."""
    device = tables.device(event.device)
    if device.heard == event.heard:
        raise IllegalEvent(f"{event.device} {'answers' if event.heard else 'is silent'} already")
    return device


def change(tables: Tables, event: HeartbeatChanged) -> Device:
    """Record that a worker fell silent or answers again; return its device, which needs a new plan. Raises
    IllegalEvent, with nothing changed."""
    device = check(tables, event)
    device.heard = event.heard
    if not event.heard:
        for session in tables.sessions.values():
            if session.target == device.device:
                moving.cancel_move(tables, session, _reason(device))
        _unbind_movable(tables, device)
    return device


def can_leave(session: SessionRecord) -> bool:
    """Return whether the session needs nothing from its device's worker to be bound to another one."""
    granted = any(segment.granted for segment in session.segments.values())
    return session.place != "device" and session.moving is None and not granted and not session.temporary


def plan_silent(device: Device) -> Iterator[Suggestion]:
    """Suggest, for each segment that waits on a silent device, that its session stays and it waits."""
    reason = _reason(device)
    for segment in list(device.waiting):
        session = device.sessions[segment.session]
        if session.target is not None or segment.kind != SILENT:
            yield RefuseMove(session, reason)
        yield Defer(segment, SILENT, f"{reason}, and its state is there")


def _reason(device: Device) -> str:
    return f"the worker of {device.device} does not answer"


def _unbind_movable(tables: Tables, device: Device) -> None:
    for session in list(device.sessions.values()):
        if not can_leave(session):
            continue
        for segment in list(session.segments.values()):
            tables.drop(segment)
        device.remove(session)
        session.device = session.target = None
