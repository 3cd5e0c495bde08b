"""Applies what workers report of their devices: memory, and deaths."""

from __future__ import annotations

from collections.abc import Mapping

from djinn_lab.events import IllegalEvent, Rebuild, WorkerDied
from djinn_lab.memory.machine import enacting, moving, phases
from djinn_lab.memory.machine.records import Device, Inheritance, SessionRecord
from djinn_lab.memory.machine.tables import Tables
from djinn_lab.memory.messages import FreeSession, MemoryReported
from djinn_lab.memory.states import AFTER_LOSS


def take(tables: Tables, event: MemoryReported) -> list[Device]:
    """Adopt what the worker counted, and return the devices that need a new plan. Raises IllegalEvent, with
    nothing changed."""
    device = tables.device(event.device)
    _check(event, device)
    if event.used_bytes < device.used_bytes or event.job is not None:
        device.device_full = False
    device.host_full &= event.host_bytes >= device.host_used_bytes
    device.disk_full &= event.disk_bytes >= device.disk_used_bytes
    device.used_bytes = event.used_bytes
    peak_bytes = min(
        event.peak_bytes, device.memory_bytes
    )  # peaks of several processes may be of other times
    device.peak_bytes = max(device.peak_bytes, peak_bytes, event.used_bytes)
    device.shared_bytes = event.shared_bytes
    device.host_used_bytes, device.disk_used_bytes = event.host_bytes, event.disk_bytes
    concerned = [device]
    changed = _take_parts(event, device)
    for name in sorted(changed):
        session = device.sessions.get(name)
        if session is not None:
            tables.sync(session, device)
            arrived = moving.finish_move(tables, session)
            concerned += [arrived] if arrived is not None else []
    if event.job is not None:
        _end_segment(tables, event.job, device)
    strays = {
        name
        for name in changed | event.session_bytes.keys()
        if name in device.session_bytes and name not in tables.sessions
    }
    tables.out += [FreeSession(name, device.device) for name in sorted(strays)]
    return concerned


def _take_parts(event: MemoryReported, device: Device) -> set[str]:
    """Sessions whose reported bytes changed. The cost of a partial report is that of the sessions it
    names."""
    changed: set[str] = set()
    for kept, reported in zip(_kept(device), _parts(event), strict=True):
        if not event.partial:
            changed |= {name for name in kept.keys() - reported.keys() if kept[name]}
            for name in kept.keys() - reported.keys():
                del kept[name]
        for name, nbytes in reported.items():
            if kept.get(name, 0) != nbytes:
                changed.add(name)
            if nbytes:
                kept[name] = nbytes
            else:
                kept.pop(name, None)
    return changed


def _kept(device: Device) -> tuple[dict[str, int], ...]:
    return (
        device.session_bytes,
        device.kv_bytes,
        device.unstored_bytes,
        device.ready_bytes,
        device.weight_bytes,
        device.offloaded_bytes,
        device.on_disk_bytes,
    )


def _parts(event: MemoryReported) -> tuple[Mapping[str, int], ...]:
    return (
        event.session_bytes,
        event.kv_bytes,
        event.unstored_bytes,
        event.ready_bytes,
        event.weight_bytes,
        event.offloaded_bytes,
        event.on_disk_bytes,
    )


def _check(event: MemoryReported, device: Device) -> None:
    smallest = min((nbytes for part in _parts(event) for nbytes in part.values()), default=0)
    if min(smallest, event.used_bytes, event.shared_bytes, event.host_bytes, event.disk_bytes) < 0:
        raise IllegalEvent(f"{event.device} reports negative bytes")
    held = sum(event.session_bytes.values())
    if event.partial:
        here = device.session_bytes
        held += sum(here.values()) - sum(here.get(name, 0) for name in event.session_bytes)
    if held > event.used_bytes:
        raise IllegalEvent(f"{event.device} reports {event.used_bytes} bytes, its sessions {held}")


def _end_segment(tables: Tables, job: str, device: Device) -> None:
    segment = tables.segments.get(job)
    if segment is None or segment.device != device.device or not segment.granted:
        return
    tables.drop(segment)
    session = tables.session(segment.session)
    if session.replays:
        session.replays, session.rebuild_bytes, session.replay_peak_bytes = False, 0, 0
    phases.segment_over(tables, session)


def lose_worker(tables: Tables, event: WorkerDied) -> list[Device]:
    """Apply the death of a worker. Sessions of it that were stored whole survive, bound to no device, and so
    do those whose values can be made again; of the others the lost bytes are reported. Moving sessions
    continue on their target devices. Returns the devices that need a new plan."""
    lost = tables.device(event.device)
    gone = _sessions_of(tables, event)
    if event.sessions is None:
        del tables.devices[event.device]
        tables.count_devices()
    bound = {name: session for name, session in lost.sessions.items() if name in gone}
    ran = {segment.session for segment in lost.granted.values()}
    _end_moves_to(tables, lost, gone)
    leaving = {name for name, session in bound.items() if session.target is not None}
    for segment in [*lost.granted.values(), *lost.waiting]:
        if segment.session in gone and segment.session not in leaving:
            tables.drop(segment)
    for name in sorted(gone):
        session = tables.sessions[name]
        if session.keeper == lost.device:
            session.keeper = None
            tables.inherit(session, _left_by(lost, session))
    reached: list[Device] = []
    for name in sorted(bound):
        session = bound[name]
        lost.remove(session)
        lost.waiting = [segment for segment in lost.waiting if segment.session != name]
        _unbind(tables, session, lost, name in ran, event.rebuilds.get(name))
        device = moving.finish_move(tables, session)
        reached += [device] if device is not None else []
    for name in sorted(lost.session_bytes.keys() & gone):
        if name not in bound:
            stray = tables.sessions[name]
            enacting.lose(tables, stray, lost.device, lost.session_bytes[name], _how(lost, stored=False))
    for kept in _kept(lost):
        for name in gone & kept.keys():
            del kept[name]
    return reached if event.sessions is None else [*reached, lost]


def _sessions_of(tables: Tables, event: WorkerDied) -> set[str]:
    """Return the open sessions on the worker, certainly or possibly."""
    if event.sessions is None:
        return set(tables.sessions)
    return tables.sessions.keys() & set(event.sessions)


def _end_moves_to(tables: Tables, lost: Device, gone: set[str]) -> None:
    """End moves to a dead worker: the queue will assign a device anew."""
    for session in [tables.sessions[name] for name in sorted(gone)]:
        if session.target == lost.device:
            session.target = None
            for segment in list(session.segments.values()):
                tables.drop(segment)
            tables.changed(session)


def _unbind(tables: Tables, session: SessionRecord, lost: Device, ran: bool, rebuild: Rebuild | None) -> None:
    moving = session.moving
    if moving is not None:
        tables.end(moving)
    session.device = None
    session.cell = False
    session.failures, session.failed_restores, session.retry_s = 0, 0, 0.0  # of the device that is gone
    whole = lost.tiers and session.unstored_bytes == 0 and session.recoverable and not ran
    after = AFTER_LOSS[session.place, moving.kind if moving else None]
    if session.away:
        session.place = after
    elif after != "none" and whole:
        session.place = after
        tables.inherit(session, _left_by(lost, session))
    elif rebuild is not None:
        _await_replay(tables, session, lost, rebuild)
    elif session.total_bytes > 0:
        nbytes = lost.session_bytes.get(session.session, session.total_bytes)
        enacting.lose(tables, session, lost.device, nbytes, _how(lost, stored=not ran and lost.tiers))
    session.place = session.place if session.total_bytes else "none"
    session.ready_s = None
    session.wish_hit = False
    session.prefetched = False


def _await_replay(tables: Tables, session: SessionRecord, lost: Device, rebuild: Rebuild) -> None:
    """Its last whole copy is its state, if there is one; its next segment makes the rest again."""
    lost_bytes = max(session.total_bytes, lost.session_bytes.get(session.session, 0))
    lost_bytes += session.offloaded_bytes
    session.offloaded_bytes = 0
    if session.replays:  # lost again before they were all made
        lost_bytes = max(lost_bytes, session.rebuild_bytes + rebuild.copy_bytes)
    session.replays = True
    session.rebuild_bytes = max(0, lost_bytes - rebuild.copy_bytes)
    session.replay_peak_bytes = rebuild.peak_bytes
    session.total_bytes = rebuild.copy_bytes
    session.kv_bytes = session.unstored_bytes = session.ready_bytes = session.weight_bytes = 0
    session.recoverable = rebuild.copy_bytes > 0
    session.place = "host" if rebuild.copy_bytes else "none"
    inherited = Inheritance(lost.device, rebuild.copy_bytes, 0) if rebuild.copy_bytes else None
    tables.inherit(session, inherited)


def _left_by(lost: Device, session: SessionRecord) -> Inheritance:
    disk_bytes = min(session.total_bytes, lost.on_disk_bytes.get(session.session, 0))
    return Inheritance(lost.device, session.total_bytes - disk_bytes, disk_bytes)


def _how(lost: Device, stored: bool) -> str:
    if stored:
        return f"the process of {lost.device} died before all of it was copied to the host"
    return f"the process of {lost.device} died"
