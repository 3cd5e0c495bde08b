"""What workers say of their devices: memory reports, and deaths."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from djinn_lab.memory import enacting, moving, phases
from djinn_lab.memory.messages import DeviceLost, FreeSession, MemoryReported
from djinn_lab.memory.records import Device, Session
from djinn_lab.memory.states import AFTER_LOSS, IllegalEvent
from djinn_lab.memory.tables import Tables


def take(tables: Tables, event: MemoryReported) -> list[Device]:
    """The accounts are what the worker counts. The devices on which something may follow. Raises
    IllegalEvent, with nothing changed."""
    device = tables.device(event.device)
    event = _completed(event, device)
    _check(event)
    holding = {session: nbytes for session, nbytes in event.session_bytes.items() if nbytes}
    if event.used_bytes < device.used_bytes or event.job is not None:
        device.device_full = False
    device.host_full &= event.host_bytes >= device.host_used_bytes
    device.disk_full &= event.disk_bytes >= device.disk_used_bytes
    device.used_bytes = event.used_bytes
    device.peak_bytes = max(device.peak_bytes, event.peak_bytes, event.used_bytes)
    before = (
        device.session_bytes,
        device.kv_bytes,
        device.unstored_bytes,
        device.ready_bytes,
        device.weight_bytes,
    )
    device.session_bytes = holding
    device.shared_bytes = event.shared_bytes
    device.kv_bytes = event.kv_bytes
    device.unstored_bytes = event.unstored_bytes
    device.ready_bytes = event.ready_bytes
    device.weight_bytes = event.weight_bytes
    device.host_used_bytes, device.disk_used_bytes = event.host_bytes, event.disk_bytes
    after = (holding, event.kv_bytes, event.unstored_bytes, event.ready_bytes, event.weight_bytes)
    concerned = [device]
    for name in sorted(_changed(before, after)):
        session = device.sessions.get(name)
        if session is not None:
            tables.sync(session, device)
            arrived = moving.go_over(tables, session)
            concerned += [arrived] if arrived is not None else []
    if event.job is not None:
        _end_segment(tables, event.job, device)
    tables.out += [
        FreeSession(name, device.device) for name in sorted(holding) if name not in tables.sessions
    ]
    return concerned


def _completed(event: MemoryReported, device: Device) -> MemoryReported:
    if not event.partial:
        return event
    return replace(
        event,
        session_bytes=_merged(device.session_bytes, event.session_bytes),
        kv_bytes=_merged(device.kv_bytes, event.kv_bytes),
        unstored_bytes=_merged(device.unstored_bytes, event.unstored_bytes),
        ready_bytes=_merged(device.ready_bytes, event.ready_bytes),
        weight_bytes=_merged(device.weight_bytes, event.weight_bytes),
        partial=False,
    )


def _merged(before: Mapping[str, int], changed: Mapping[str, int]) -> dict[str, int]:
    return {name: nbytes for name, nbytes in {**before, **changed}.items() if nbytes}


def _check(event: MemoryReported) -> None:
    parts = (
        event.session_bytes,
        event.kv_bytes,
        event.unstored_bytes,
        event.ready_bytes,
        event.weight_bytes,
    )
    smallest = min((nbytes for part in parts for nbytes in part.values()), default=0)
    if min(smallest, event.used_bytes, event.shared_bytes, event.host_bytes, event.disk_bytes) < 0:
        raise IllegalEvent(f"{event.device} reports negative bytes")
    held = sum(event.session_bytes.values())
    if held > event.used_bytes:
        raise IllegalEvent(f"{event.device} reports {event.used_bytes} bytes, its sessions {held}")


def _changed(before: tuple[dict[str, int], ...], after: tuple[dict[str, int], ...]) -> set[str]:
    """Sessions of which another number was reported than before."""
    return {name for old, new in zip(before, after, strict=True) for name, _ in old.items() ^ new.items()}


def _end_segment(tables: Tables, job: str, device: Device) -> None:
    segment = tables.segments.get(job)
    if segment is None or segment.device != device.device or not segment.granted:
        return
    tables.drop(segment)
    phases.segment_over(tables, tables.session(segment.session))


def lose_device(tables: Tables, event: DeviceLost) -> list[Device]:
    """Who is stored whole survives, bound to no device; the others are told what they lost. Who was on the
    way to another device goes on there: those devices are returned."""
    lost = tables.device(event.device)
    del tables.devices[event.device]
    bound = dict(lost.sessions)
    ran = {segment.session for segment in lost.granted.values()}
    _end_moves_to(tables, lost)
    leaving = {name for name, session in bound.items() if session.target is not None}
    for segment in [*lost.granted.values(), *lost.waiting]:
        if segment.session not in leaving:
            tables.drop(segment)
    for session in tables.sessions.values():
        if session.keeper == lost.device:
            session.keeper = None
    reached: list[Device] = []
    for name in sorted(bound):
        session = bound[name]
        _unbind(tables, session, lost, ran=name in ran)
        device = moving.go_over(tables, session)
        reached += [device] if device is not None else []
    for name in sorted(lost.session_bytes):
        stray = tables.sessions.get(name)
        if stray is not None and name not in bound:
            enacting.lose(tables, stray, lost.device, lost.session_bytes[name], _how(lost, stored=False))
    return reached


def _end_moves_to(tables: Tables, lost: Device) -> None:
    """Their segments will be placed again, on a device that the queue chooses."""
    for session in tables.sessions.values():
        if session.target == lost.device:
            session.target = None
            for segment in list(session.segments.values()):
                tables.drop(segment)


def _unbind(tables: Tables, session: Session, lost: Device, ran: bool) -> None:
    moving = session.moving
    if moving is not None:
        tables.end(moving)
    session.device = None
    session.cell = False
    whole = lost.tiers and session.unstored_bytes == 0 and session.recoverable and not ran
    after = AFTER_LOSS[session.place, moving.kind if moving else None]
    if session.away or (after != "none" and whole):
        session.place = after
    elif session.total_bytes > 0:
        nbytes = lost.session_bytes.get(session.session, session.total_bytes)
        enacting.lose(tables, session, lost.device, nbytes, _how(lost, stored=not ran and lost.tiers))
    session.place = session.place if session.total_bytes else "none"
    session.ready_s = None
    session.wish_hit = False
    session.prefetched = False


def _how(lost: Device, stored: bool) -> str:
    if stored:
        return f"the process of {lost.device} died before all of it was copied to the host"
    return f"the process of {lost.device} died"
