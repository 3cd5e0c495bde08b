"""Moves a session to another device while its present device is alive.

The session stays with its present device, and waits there, until its state has been stored and evicted.
Then it belongs to its target device, which restores it as it would after the death of the process that
stored it. At last the first device drops its parked copy. A session whose state cannot be stored does not
move."""

from __future__ import annotations

from collections.abc import Iterator

from djinn_lab.events import IllegalEvent
from djinn_lab.memory.machine.records import Device, PlacedSegment, SessionRecord
from djinn_lab.memory.machine.suggestions import Defer, ExpediteCopy, RefuseMove, StartTransfer, Suggestion
from djinn_lab.memory.machine.tables import Tables
from djinn_lab.memory.machine.tier_capacity import free_host
from djinn_lab.memory.messages import DropParked, RejectMove, SessionBound
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.units import format_bytes


def bind(tables: Tables, event: SessionBound) -> list[Device]:
    """Bind a session, and return the devices that need a new plan. Raises IllegalEvent, with nothing
    changed."""
    device = tables.device(event.device)
    session = tables.session(event.session)
    if (session.target or session.device) == device.device:
        return []
    if any(segment.granted for segment in session.segments.values()):
        raise IllegalEvent(f"session {event.session} has a segment at {session.device}")
    session.target = None if session.device == device.device else device.device
    before = tables.device_of(session)
    tables.changed(session)
    after = finish_move(tables, session)
    return [one for one in (before, after) if one is not None]


def finish_move(tables: Tables, session: SessionRecord) -> Device | None:
    """Hand the session to its target device once its present device holds no state of the session, and no
    copy is under way. Returns that device, or None."""
    if session.target is None or session.moving is not None:
        return None
    before, device = tables.device_of(session), tables.device(session.target)
    if before is not None and session.place == "device":
        return None
    if before is not None:
        before.remove(session)
        before.waiting = [segment for segment in before.waiting if segment.session != session.session]
    session.device, session.target = device.device, None
    if session.away:
        session.total_bytes += session.weight_bytes  # what others look at there, too, may not be here
        session.weight_bytes = 0
    else:
        session.place = "none"
    tables.sync(session, device)
    for segment in session.segments.values():
        segment.device, segment.turn = device.device, device.turn_of(session, segment.job)
        device.enqueue(segment)
    device.add(session)
    return device


def continue_move(
    segment: PlacedSegment, session: SessionRecord, device: Device, policy: MemoryPolicy, now_s: float
) -> Iterator[Suggestion]:
    """Return the next step of a moving session that waits on ``device``."""
    reason = f"its next cell runs on {session.target}"
    if session.moving is not None:
        if not session.moving.expedited:
            yield ExpediteCopy(session)
    elif session.unstored_bytes == 0:
        yield StartTransfer("evict", session, expedited=True, reason=reason)
    elif device.store_free_bytes() >= session.unstored_bytes:
        yield StartTransfer("store", session, expedited=True, reason=reason)
    else:
        yield from free_host(device, session.unstored_bytes, session, policy, now_s)
        if not (device.copying("forget") or device.copying("demote") or device.copying("store")):
            free, wanted = max(0, device.host_free_bytes()), session.unstored_bytes
            yield RefuseMove(
                session,
                f"the host has {format_bytes(free)} free for state parked from {device.device}, and this"
                f" session takes {format_bytes(wanted)}",
            )
            return
    yield Defer(
        segment,
        "over",
        f"its {format_bytes(session.total_bytes)} are moved from {device.device} to {session.target}",
        device.seconds_for(session.unstored_bytes + session.total_bytes),
    )


def cancel_move(tables: Tables, session: SessionRecord, reason: str) -> None:
    """Cancel the move: the session's segments are served on its present device."""
    assert session.device is not None
    session.target = None
    tables.changed(session)
    tables.out += [
        RejectMove(segment.job, session.session, session.device, reason)
        for segment in session.segments.values()
    ]


def drop_former_copy(tables: Tables, session: SessionRecord) -> None:
    """Drop the parked copy of a former device or process, now that the session is on its device."""
    tables.inherit(session, None)
    keeper, session.keeper = session.keeper, None
    if keeper is not None and keeper != session.device:
        session.recoverable = False
        tables.out.append(DropParked(session.session, keeper))
