"""Renders the state of session memory as frozen structures for API, pages and reports."""

from __future__ import annotations

import math

from djinn_lab.memory.machine.ranking import expectation
from djinn_lab.memory.machine.records import Device, SessionRecord
from djinn_lab.memory.machine.tables import Tables
from djinn_lab.memory.snapshot import DeferredSegment, DeviceAccount, MemorySnapshot, SessionAccount
from djinn_lab.memory.states import Connection, Phase


def snapshot(tables: Tables) -> MemorySnapshot:
    return MemorySnapshot(
        tuple(device_account(tables, device) for _, device in sorted(tables.devices.items())),
        tuple(session_account(tables, session) for _, session in sorted(tables.sessions.items())),
        tables.policy.name,
        deferred_segments(tables),
        tables.statistics.wake_ups(),
        tables.statistics.counters(),
        tables.statistics.last_happenings(),
    )


def device_account(tables: Tables, device: Device) -> DeviceAccount:
    """Return the account of one device. Bytes of no session count as shared only where the worker says so."""
    busy = idle = loading = 0
    for name, nbytes in device.session_bytes.items():
        session = tables.sessions.get(name)
        if session is not None and session.moving is not None and session.moving.kind == "restore":
            loading += nbytes
        elif session is not None and (session.busy or session.cell or session.phase is not Phase.IO_WAIT):
            busy += nbytes
        else:
            idle += nbytes
    shared = min(device.shared_bytes, device.used_bytes - busy - idle - loading)
    busy += device.used_bytes - busy - idle - loading - shared
    out, into = tables.statistics.rates(device.device, tables.now_s)
    return DeviceAccount(
        device.device,
        device.memory_bytes,
        used_bytes=device.used_bytes,
        peak_bytes=device.peak_bytes,
        session_bytes=dict(device.session_bytes),
        busy_bytes=busy,
        idle_bytes=idle,
        loading_bytes=loading,
        shared_bytes=shared,
        reserved_bytes=device.reserved_bytes(),
        host_bytes=device.host_bytes,
        host_used_bytes=device.host_taken_bytes,
        disk_bytes=device.disk_bytes,
        disk_used_bytes=device.disk_taken_bytes,
        link_bytes_per_s=device.link_bytes_per_s or device.measured_bytes_per_s,
        out_bytes_per_s=out,
        in_bytes_per_s=into,
    )


def session_account(tables: Tables, session: SessionRecord) -> SessionAccount:
    wake_at_s = wake_from_s = wake_until_s = None
    if session.phase is Phase.IO_WAIT and session.connection is Connection.CONNECTED and not session.busy:
        expected = expectation(session, tables.policy, tables.now_s)
        if expected.known and math.isfinite(expected.after_s):
            wake_at_s = tables.now_s + expected.after_s
            wake_from_s = tables.now_s + expected.from_s
            wake_until_s = tables.now_s + expected.until_s
    stored_bytes = session.total_bytes - (session.unstored_bytes if session.place == "device" else 0)
    return SessionAccount(
        session.session,
        session.user,
        session.connection,
        session.phase,
        session.device,
        wake_at_s,
        tier=session.place,
        moving=session.moving.kind if session.moving else None,
        total_bytes=session.total_bytes + session.offloaded_bytes,
        kv_bytes=session.kv_bytes,
        stored_bytes=stored_bytes + session.offloaded_bytes,
        offloaded_bytes=session.offloaded_bytes,
        idle_since_s=session.idle_since_s,
        wake_from_s=wake_from_s,
        wake_until_s=wake_until_s,
        leased_until_s=session.leased_until_s,
        last_wake_s=session.last_wake_s,
        last_floor_s=session.last_floor_s,
        target=session.target,
    )


def deferred_segments(tables: Tables) -> tuple[DeferredSegment, ...]:
    return tuple(
        DeferredSegment(
            segment.job,
            segment.session,
            segment.device,
            segment.since_s,
            segment.reason,
            segment.estimate_s,
            segment.release,
        )
        for _, device in sorted(tables.devices.items())
        for segment in device.waiting
        if segment.queued_since_s is None
    )
