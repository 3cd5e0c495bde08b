"""Copies that no segment waits for: to the host in advance, and prefetches."""

from __future__ import annotations

import math
from collections.abc import Iterator

from djinn_lab.memory.machine.ranking import Victim, absent, after_s, fewest, victims
from djinn_lab.memory.machine.records import Device, SessionRecord
from djinn_lab.memory.machine.suggestions import StartTransfer, Suggestion
from djinn_lab.memory.machine.tier_capacity import evict, free_host
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.states import Connection

CONSIDERED = 4
"""Absent sessions that are tried for a prefetch: the earliest expected one, and where it has neither capacity
nor a victim, the next ones."""
TURNS_PART = 10
"""At most this part of a device is kept free of prefetches for the next cells."""
MARGIN_RESTORES = 4.0
"""A prefetch evicts only sessions expected this many restores later, on top of the policy's factor."""
FORGET_FACTOR = 2.0
"""A copy in advance may replace the host copy of a resident session that is expected this much sooner, or a
parked session that is expected this much later."""


def in_background(device: Device, policy: MemoryPolicy, now_s: float) -> Iterator[Suggestion]:
    """Suggest at most one store and one prefetch at a time, and no store while host capacity is being
    freed for another session."""
    if not policy.moves or not device.tiers:
        return
    if policy.eager_after_s is not None:
        yield from _leave_eagerly(device, policy, now_s)
    host_changes = any(one.kind in ("store", "forget", "demote") for one in device.moving.values())
    if policy.write_through and not host_changes:
        yield from _write_through(device, policy, now_s)
    if device.contended or _restoring_unasked(device):
        return
    if policy.prefetch == "into_free":
        yield from _prefetch_into_free(device, policy, now_s)
    elif policy.prefetch == "just_in_time":
        yield from _prefetch_just_in_time(device, policy, now_s)


def _restoring_unasked(device: Device) -> bool:
    return any(transfer.kind == "restore" and not transfer.expedited for transfer in device.moving.values())


def _write_through(device: Device, policy: MemoryPolicy, now_s: float) -> Iterator[Suggestion]:
    unstored = [
        session
        for session in device.index.unstored.values()
        if session.moving is None
        and session.retry_s <= now_s
        and session.copied_at != device.changes
        and _worth_storing(session, device, policy, now_s)
    ]
    if not unstored:
        return
    due = {
        session.session: (not _running(session, policy, now_s), after_s(session, policy, now_s))
        for session in unstored
    }
    first = max(unstored, key=lambda session: (due[session.session], session.session))
    running = _running(first, policy, now_s)
    wanted = first.ready_bytes if running else first.unstored_bytes
    if device.host_free_bytes() >= wanted:
        yield StartTransfer("store", first, reason="in advance, so that it can leave at once")
    elif not running:
        yield from _trade_host(first, due[first.session][1], device, policy, now_s)


def _worth_storing(session: SessionRecord, device: Device, policy: MemoryPolicy, now_s: float) -> bool:
    """Return whether the session has been idle long enough. A user who continues at once is spared the copy,
    unless capacity is short."""
    if _running(session, policy, now_s):
        return session.ready_bytes > 0
    if session.total_bytes == 0 or (session.unstored_bytes == 0 and session.recoverable):
        return False
    idle_s = now_s - (session.idle_since_s if session.idle_since_s is not None else session.opened_s)
    short = 2 * device.used_bytes > device.memory_bytes and session.unstored_bytes > 0
    return short or idle_s >= policy.settle_s


def wanted_copy(device: Device, session: SessionRecord, now_s: float, holds: bool) -> Iterator[Suggestion]:
    """Suggest to copy a session whose values would take long to make again."""
    granted = any(segment.granted for segment in session.segments.values())
    rests = session.place == "device" and session.moving is None and session.target is None and not granted
    may = device.heard and session.retry_s <= now_s and device.host_free_bytes() >= session.unstored_bytes
    if rests and may and (session.unstored_bytes > 0 or not session.recoverable):
        reason = "to make it again would take long, were its device lost"
        yield StartTransfer("store", session, reason=reason, holds=holds)


def _trade_host(
    first: SessionRecord, due_s: float, device: Device, policy: MemoryPolicy, now_s: float
) -> Iterator[Suggestion]:
    """Give host capacity to the next victim, from a session that needs it clearly later."""
    sooner = {
        session.session
        for session in device.sessions.values()
        if after_s(session, policy, now_s) * FORGET_FACTOR < due_s
    }
    spare = sum(
        max(0, device.session_bytes.get(name, 0) - device.sessions[name].unstored_bytes)
        for name in sooner
        if device.sessions[name].place == "device" and device.sessions[name].moving is None
    )
    if device.host_free_bytes() + spare < first.unstored_bytes and not device.disk_bytes:
        return
    yield from free_host(
        device,
        first.unstored_bytes,
        first,
        policy,
        now_s,
        later_than_s=FORGET_FACTOR * due_s,
        forgettable=sooner,
    )


def _running(session: SessionRecord, policy: MemoryPolicy, now_s: float) -> bool:
    return not session.idle(now_s, policy.wish_s)


def _turns_bytes(device: Device, policy: MemoryPolicy) -> int:
    """The capacity that the next cells will need, judged by the last ones. Without it a prefetched
    session would be evicted for the next cell of a resident one."""
    turns = device.slots + policy.ready_ahead
    wanted = int(device.usual_peak_bytes) * turns if len(device.session_bytes) > turns else 0
    return min(wanted, device.memory_bytes // TURNS_PART)


def _prefetch_into_free(device: Device, policy: MemoryPolicy, now_s: float) -> Iterator[Suggestion]:
    waiting = [one for one in absent(device, policy, now_s) if math.isfinite(one.after_s)]
    if not waiting:
        return
    headroom = max(int(policy.headroom * device.memory_bytes), _turns_bytes(device, policy))
    free = device.free_bytes() - max(0, headroom - device.reserved_bytes())
    first, others = waiting[0], waiting[1:CONSIDERED]
    if device.restore_bytes(first.session) <= free:
        yield StartTransfer("restore", first.session, prefetch=True, reason=_why(first))
        return
    missing = device.restore_bytes(first.session) - free - device.leaving_bytes()
    if missing <= 0:
        return
    displaced = _displaced(first, missing, device, policy, now_s)
    for victim in displaced or ():
        yield StartTransfer("evict", victim.session, reason=f"{first.session.session} is due sooner")
    smaller = [other for other in others if device.restore_bytes(other.session) <= free]
    if not displaced and smaller:
        yield StartTransfer("restore", smaller[0].session, prefetch=True, reason=_why(smaller[0]))


def _why(candidate: Victim) -> str:
    if candidate.after_s <= 0:
        return "its owner is about to compute"
    return f"memory is free, and it is expected in {candidate.after_s:.1f} s"


def _displaced(
    candidate: Victim, missing: int, device: Device, policy: MemoryPolicy, now_s: float
) -> list[Victim] | None:
    margin_s = MARGIN_RESTORES * (device.seconds_for(candidate.session.total_bytes) or 0.0)
    bar_s = policy.displacement * candidate.after_s + margin_s
    later = [
        victim
        for victim in victims(device, policy, now_s, None)
        if victim.after_s > bar_s * (policy.displacement if victim.session.prefetched else 1.0)
        and victim.session.unstored_bytes == 0
        and victim.session.moving is None
    ]
    return fewest(later, missing, device)


def _prefetch_just_in_time(device: Device, policy: MemoryPolicy, now_s: float) -> Iterator[Suggestion]:
    for candidate in absent(device, policy, now_s):
        session = candidate.session
        due_s = 0.0
        if session.idle(now_s, policy.wish_s):
            if session.announced_s is None or session.connection is not Connection.CONNECTED:
                continue
            due_s = session.announced_at_s + session.announced_s - now_s
        lead_s = policy.just_in_time_s + (device.seconds_for(session.total_bytes) or 0.0)
        if due_s <= lead_s and session.total_bytes <= device.free_bytes():
            yield StartTransfer("restore", session, prefetch=True, reason="it is due by its own estimate")
            return


def _leave_eagerly(device: Device, policy: MemoryPolicy, now_s: float) -> Iterator[Suggestion]:
    assert policy.eager_after_s is not None
    for victim in victims(device, policy, now_s, None):
        session = victim.session
        if session.moving is not None or session.prefetched:
            continue
        idle_s = now_s - (session.idle_since_s if session.idle_since_s is not None else session.opened_s)
        expected_s = session.gap.median_s if session.gap is not None and session.gap.known else None
        if idle_s >= policy.eager_after_s and (expected_s is None or expected_s > policy.eager_after_s):
            yield from evict(victim, device, policy, now_s, "it is idle")
