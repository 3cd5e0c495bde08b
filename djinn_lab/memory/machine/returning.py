"""Continue the sessions of an earlier run of the pool, as :mod:`.reports` does those of a dead worker."""

from __future__ import annotations

from djinn_lab.events import IllegalEvent
from djinn_lab.memory.machine import phases
from djinn_lab.memory.machine.records import Inheritance, SessionRecord
from djinn_lab.memory.machine.tables import Tables
from djinn_lab.memory.messages import SessionReturned
from djinn_lab.memory.states import Connection, Move


def return_session(tables: Tables, event: SessionReturned) -> None:
    """Open a session with the state that an earlier run left below the devices; it is bound to none. Raises
    IllegalEvent, with nothing changed."""
    connection = tables.moved(event.session, Move.OPEN)
    assert connection is not None
    if not 0 <= event.disk_bytes <= event.copy_bytes or min(event.rebuild_bytes, event.peak_bytes) < 0:
        raise IllegalEvent(f"session {event.session} returns with negative bytes")
    session = SessionRecord(
        event.session,
        event.user,
        connection if event.connected else Connection.DETACHED,
        opened_s=event.at_s,
        total_bytes=event.copy_bytes,
        largest_bytes=event.copy_bytes + event.rebuild_bytes,
        recoverable=event.copy_bytes > 0,
        replays=event.rebuild_bytes > 0,
        rebuild_bytes=event.rebuild_bytes,
        replay_peak_bytes=event.peak_bytes,
    )
    tables.sessions[event.session] = session
    if event.copy_bytes:
        session.place = "disk" if event.disk_bytes == event.copy_bytes else "host"
        host_bytes = event.copy_bytes - event.disk_bytes
        tables.inherit(session, Inheritance(event.device, host_bytes, event.disk_bytes))
    phases.rest(tables, session, event.at_s, None)
