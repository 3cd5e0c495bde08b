"""Plans grants, restores and evictions for the waiting segments of one device.

Planned anew after every event. In the order of the queue, rank and arrival each waiting segment claims
its bytes; a later segment never takes what an earlier one lacks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from djinn_lab.events import MemoryRelease
from djinn_lab.memory.machine import admission
from djinn_lab.memory.machine.admission import AdmissionHistory
from djinn_lab.memory.machine.eviction import FAILURES_MAX, Claims, evict_for
from djinn_lab.memory.machine.moving import continue_move
from djinn_lab.memory.machine.ranking import settled
from djinn_lab.memory.machine.records import LAST, Device, PlacedSegment, SessionRecord
from djinn_lab.memory.machine.sentences import defer, out_of_memory, queued, unrestorable
from djinn_lab.memory.machine.serving_order import (
    ServingOrder,
    early_job,
    in_order,
    is_near_front,
    needed_bytes,
)
from djinn_lab.memory.machine.suggestions import Defer, Grant, StartTransfer, Suggestion
from djinn_lab.memory.machine.tier_capacity import expedite
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.states import Phase
from djinn_lab.units import SHORT_ID_CHARS, format_bytes

LOOKED_AT = 16
"""So many waiting segments are asked whether they could use a device on which one would start early."""


def serve(
    device: Device, policy: MemoryPolicy, history: AdmissionHistory, now_s: float
) -> Iterator[Suggestion]:
    """Suggestions for every segment that waits on the device; sessions that only signalled COMPUTE come
    last."""
    if not (device.waiting or device.index.wishing):
        return
    free_bytes = device.free_bytes()
    claims = Claims(free_bytes, free_bytes + device.leaving_bytes())
    gate = admission.AdmissionGate(device, policy, history, now_s)
    near, turns = 0, ServingOrder(device, _settled_first(device, now_s))
    for segment in turns:
        session = device.sessions[segment.session]
        if segment.job not in session.segments:
            continue
        if session.target is not None:
            yield from continue_move(segment, session, device, policy, now_s)
            if session.target is not None:
                continue
        if admission.is_new(session):
            hold = gate.defer(segment)
            if hold is not None:
                yield hold
                continue
        near += 1
        if (
            near > policy.restore_ahead
            and not is_near_front(segment, device, policy)
            and session.moving is None
        ):
            turns.far = True
            yield queued(segment, device)
            continue
        yield from _serve_one(segment, session, device, policy, now_s, claims)
    if policy.moves:
        for session in list(device.index.wishing.values()):
            if wishes(session, policy, now_s):
                wish = PlacedSegment(
                    "", 0, session.session, device.device, 0, LAST, LAST, session.wish_s or now_s
                )
                yield from _serve_one(wish, session, device, policy, now_s, claims)


def _settled_first(device: Device, now_s: float) -> list[PlacedSegment]:
    """Segments whose sessions were restored for them and that fit as it is. A segment that does not fit
    keeps its queue position: the segments before it may be what fills the device."""
    free_bytes, first = device.free_bytes(), list[PlacedSegment]()
    for segment in in_order(
        one for named in device.index.settled.values() for one in named.segments.values()
    ):
        session = device.sessions[segment.session]
        if segment.granted or not settled(session, now_s):
            continue
        if needed_bytes(session, segment, device) <= free_bytes:
            free_bytes -= needed_bytes(session, segment, device)
            first.append(segment)
    return first


def wishes(session: SessionRecord, policy: MemoryPolicy, now_s: float) -> bool:
    """Return whether the session signalled COMPUTE, is absent, and its signal is still believed."""
    return (
        session.phase is Phase.COMPUTE
        and session.away
        and not session.busy
        and session.retry_s <= now_s
        and session.wish_s is not None
        and now_s - session.wish_s <= policy.wish_s
    )


def _serve_one(
    segment: PlacedSegment,
    session: SessionRecord,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    claims: Claims,
) -> Iterator[Suggestion]:
    if session.failed_restores >= FAILURES_MAX and session.away and session.moving is None:
        if segment.job:
            yield unrestorable(segment, session)
        return
    if session.held:
        yield from expedite(session)
        size = format_bytes(session.unstored_bytes)
        reason = f"its {size} are copied first: to make them again would take long, were {device.device} lost"
        yield from defer(segment, "copied", reason, device.seconds_for(session.unstored_bytes))
        return
    turn = is_near_front(segment, device, policy)
    needed = needed_bytes(session, segment, device, runs=turn)
    enough = needed <= claims.free_bytes
    claims.claim(needed)
    if enough or (not turn and session.resident):
        yield from _proceed(segment, session, device, policy, now_s, turn)
        return
    if session.moving is not None and session.moving.kind == "restore":
        yield from expedite(session, early_job(segment, session, device, policy))
    if claims.coming_bytes >= 0:
        yield from defer(
            segment,
            "leaving",
            claims.short_of(device, needed, "others are being evicted"),
        )
        return
    if not policy.moves:
        if segment.job:
            yield out_of_memory(segment, device, needed, claims.free_bytes + needed)
        return
    if not claims.exhausted:
        yield from evict_for(segment, session, device, policy, now_s, claims, needed)
        claims.short = segment.job if claims.exhausted else ""
        return
    if segment.job:
        kind = f"behind, {claims.release}, {claims.short}"
        ahead = f"job {claims.short[:SHORT_ID_CHARS]} waits for memory before it"
        reason = claims.short_of(device, needed, ahead)
        yield Defer(segment, kind, reason, release=claims.release)
    if claims.release is MemoryRelease.CLOSE:
        claims.claim(-needed)


def _proceed(
    segment: PlacedSegment,
    session: SessionRecord,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    turn: bool,
) -> Iterator[Suggestion]:
    """Capacity is free: grant, or restore the session."""
    early = early_job(segment, session, device, policy)
    if session.open_to(segment.job) and turn and early and not _wanted_by_others(segment, device):
        yield Grant(segment)
        return
    if session.resident:
        if segment.job and turn:
            yield Grant(segment)
        elif segment.job:
            yield queued(segment, device)
        return
    moving = session.moving
    if moving is None and session.away:
        if session.retry_s > now_s:
            yield from defer(segment, "retry", "restoring its state failed; it is tried again in a moment")
            return
        yield StartTransfer("restore", session, expedited=True, reason="its owner waits", job=early)
    elif moving is not None and moving.kind == "restore":
        yield from expedite(session, early)
    size = format_bytes(session.total_bytes)
    yield from defer(
        segment, "restore", f"its {size} are being restored", device.seconds_for(session.total_bytes)
    )


def _wanted_by_others(segment: PlacedSegment, device: Device) -> bool:
    """Return whether other segments could compute while this one waits for the rest of its copy."""
    if device.granted:
        return True
    near = islice(device.waiting, LOOKED_AT)
    others = ((one, device.sessions[one.session]) for one in near if one is not segment)
    free_bytes = device.free_bytes()
    return any(
        session.resident
        and not one.release.of_other_sessions
        and needed_bytes(session, one, device) <= free_bytes
        for one, session in others
    )
