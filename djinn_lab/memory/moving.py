"""A session on its way to another device that lives, too.

It stays with the device where its state lies, and waits there, until the state is off it: stored, then
evicted. From there it belongs to the device that it is bound for, which brings it in as it would after the
death of the process that stored it; then the first one drops what it parked. A state that cannot be stored
stays, and so does the session."""

from __future__ import annotations

from collections.abc import Iterator

from djinn_lab.memory.messages import DropParked, MoveRefused, SessionBound
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.records import Device, Segment, Session
from djinn_lab.memory.states import IllegalEvent
from djinn_lab.memory.suggestions import Hold, Hurry, Stay, Suggestion, Transport
from djinn_lab.memory.tables import Tables
from djinn_lab.memory.tier_room import clear_host
from djinn_lab.units import format_bytes


def bind(tables: Tables, event: SessionBound) -> list[Device]:
    """The devices on which something may follow. Raises IllegalEvent, with nothing changed."""
    device = tables.device(event.device)
    session = tables.session(event.session)
    if (session.target or session.device) == device.device:
        return []
    if any(segment.granted for segment in session.segments.values()):
        raise IllegalEvent(f"session {event.session} has a segment at {session.device}")
    session.target = None if session.device == device.device else device.device
    before = tables.device_of(session)
    tables.changed(session)
    arrived = go_over(tables, session)
    return [one for one in (before, arrived) if one is not None]


def go_over(tables: Tables, session: Session) -> Device | None:
    """Where nothing of it is on its device any more, nor on the way, it belongs to the one that it is bound
    for, which is returned."""
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
        device.line_up(segment)
    device.add(session)
    return device


def send_over(
    segment: Segment, session: Session, device: Device, policy: MemoryPolicy, now_s: float
) -> Iterator[Suggestion]:
    """The next step of a session that waits on ``device`` and is bound for another."""
    reason = f"its owner goes on on {session.target}"
    if session.moving is not None:
        if not session.moving.expedited:
            yield Hurry(session)
    elif session.unstored_bytes == 0:
        yield Transport("evict", session, expedited=True, reason=reason)
    elif device.host_free_bytes() >= session.unstored_bytes:
        yield Transport("store", session, expedited=True, reason=reason)
    else:
        yield from clear_host(device, session.unstored_bytes, session, policy, now_s)
        if not (device.copying("forget") or device.copying("demote") or device.copying("store")):
            free, wanted = max(0, device.host_free_bytes()), session.unstored_bytes
            yield Stay(
                session,
                f"the host has {format_bytes(free)} free for what {device.device} moves out, and it takes"
                f" {format_bytes(wanted)}",
            )
            return
    yield Hold(
        segment,
        "over",
        f"its {format_bytes(session.total_bytes)} are brought over from {device.device} to {session.target}",
        device.seconds_for(session.unstored_bytes + session.total_bytes),
    )


def stay(tables: Tables, session: Session, reason: str) -> None:
    """It cannot go: its segments are served where it is."""
    assert session.device is not None
    session.target = None
    tables.changed(session)
    tables.out += [
        MoveRefused(segment.job, session.session, session.device, reason)
        for segment in session.segments.values()
    ]


def arrived(tables: Tables, session: Session) -> None:
    """It is on its device; the device that parked it need not keep it."""
    keeper, session.keeper = session.keeper, None
    if keeper is not None and keeper != session.device:
        session.recoverable = False
        tables.out.append(DropParked(session.session, keeper))
