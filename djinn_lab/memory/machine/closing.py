"""Advises to close sessions without a client, where that would be enough for a waiting segment."""

from __future__ import annotations

from collections.abc import Callable, Collection

from djinn_lab.memory.machine.records import Device
from djinn_lab.memory.machine.sentences import running_text
from djinn_lab.memory.states import Connection
from djinn_lab.units import SHORT_ID_CHARS, counted, listed

CLOSED_MAX = 3
"""No advice to close more sessions than this at once."""

Enough = Callable[[Collection[str]], bool]
"""Returns whether a segment could be served without these sessions."""


def advise_close(device: Device, enough: Enough) -> str:
    """Return the end of a reason: the fewest sessions without a client whose end would be enough, and how to
    close them. Empty for none: values are not to be dropped for nothing."""
    abandoned = [
        session
        for session in device.sessions.values()
        if session.connection is Connection.DETACHED and session.total_bytes > 0 and not session.busy
    ]
    abandoned.sort(key=lambda session: (-session.total_bytes, session.session))
    named = [session.session for session in abandoned[:CLOSED_MAX]]
    alone = [(name,) for name in reversed(named)]
    together = [tuple(named[:count]) for count in range(2, len(named) + 1)]
    found = next((names for names in (*alone, *together) if enough(names)), None)
    if found is None:
        return ""
    commands = listed([f"`djinn-lab close {name[:SHORT_ID_CHARS]}`" for name in found])
    if len(found) == 1:
        return f"; one session has no client: {commands} frees enough, and drops its values"
    return f"; {counted(len(found), 'session')} have no client: {commands} free enough, and drop their values"


def wait_for(device: Device, release: str) -> str:
    """Return what a segment waits for, as a part of a reason."""
    return f"it waits for {release}{'' if device.alone else ', or for memory on another device'}"


def until_closed(device: Device, free_bytes: int, needed_bytes: int) -> str:
    """Say what a segment waits for that found no victim: running cells, where their end may free enough, else
    sessions that close."""
    here = device.session_bytes
    ending = {
        segment.session: max(device.granted_bytes(segment), here.get(segment.session, 0))
        for segment in device.granted.values()
    }
    if ending and free_bytes + sum(ending.values()) >= needed_bytes:
        return wait_for(device, f"{running_text(device)} to end or a session to close")

    def enough(gone: Collection[str]) -> bool:
        parked = sum(device.sessions[name].total_bytes for name in gone if device.sessions[name].away)
        host_bytes, freed = device.host_free_bytes() + parked, sum(here.get(name, 0) for name in gone)
        for session in sorted(device.sessions.values(), key=lambda session: -session.total_bytes):
            idle = session.place == "device" and session.session not in gone and not session.busy
            if idle and session.total_bytes <= host_bytes:
                host_bytes -= session.total_bytes
                freed += here.get(session.session, 0)
        return free_bytes + freed >= needed_bytes

    return wait_for(device, "a session to close or to free values") + advise_close(device, enough)
