"""Whether a session that waits for room would have it sooner on another device."""

from __future__ import annotations

from djinn_lab.memory import admission
from djinn_lab.memory.records import Device, Session
from djinn_lab.memory.tables import Tables

WAITED_COPIES = 10.0
"""A session goes to a less crowded device once it waited for this many times its own copy ..."""
WAITED_S_MIN = 0.5
"""... and at least so many seconds."""


def has_room(
    tables: Tables, session: str, device: str, peak_bytes: int, kept_bytes: int | None, share: float | None
) -> bool:
    """Whether the session, with a segment like this, would come in on a device that is not its own, where
    nothing waits for room."""
    found = _candidate(tables, session, device)
    if found is None:
        return False
    known, there = found
    if there.short or any(segment.admission for segment in there.waiting):
        return False
    return admission.would_fit(there, known, peak_bytes, kept_bytes, share, tables.admission_lore)


def is_less_crowded(
    tables: Tables, session: str, device: str, peak_bytes: int, kept_bytes: int | None, share: float | None
) -> bool:
    """Whether the session waited long for the device where it is, and for another one it would compete with
    less: with what those hold that compute or wait there and are as urgent, as a part of the device. With the
    session, the other device is still less crowded than its own is without it: so each such move
    makes the more crowded one less so, and no two devices hand a session to and fro. Its state lies below the
    devices, so that it costs no more to bring it there."""
    found = _candidate(tables, session, device)
    if found is None:
        return False
    known, there = found
    here = tables.devices.get(known.device or "")
    waiting = [segment for segment in known.segments.values() if not segment.granted]
    if here is None or not waiting or (known.resident and known.total_bytes > 0):
        return False
    first = min(waiting, key=lambda segment: segment.order)
    waited_s = max(WAITED_S_MIN, WAITED_COPIES * (here.seconds_for(known.total_bytes) or 0.0))
    if tables.now_s - first.since_s < waited_s:
        return False
    if any(admission.is_new(there.sessions[segment.session]) for segment in there.waiting):
        return False  # whoever is about to come in there does not count among those that hold something
    needed = known.total_bytes + peak_bytes
    rest = _crowding(here, first.rank, session)
    if _crowding(there, first.rank, session) + needed / there.memory_bytes >= rest:
        return False
    return admission.would_fit(there, known, peak_bytes, kept_bytes, share, tables.admission_lore)


def _candidate(tables: Tables, session: str, device: str) -> tuple[Session, Device] | None:
    known, there = tables.sessions.get(session), tables.devices.get(device)
    if known is None or there is None or known.device == device or known.moving is not None:
        return None
    return known, there


def _crowding(device: Device, rank: int, but: str) -> float:
    """What the other sessions need that compute or wait there and are at least as urgent, over its memory."""
    nbytes = sum(
        session.total_bytes + max(segment.peak_bytes for segment in session.segments.values())
        for session in device.sessions.values()
        if session.session != but and any(segment.rank <= rank for segment in session.segments.values())
    )
    return nbytes / device.memory_bytes
