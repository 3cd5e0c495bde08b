"""Serving those who wait: grants, restores and evictions for the waiting segments of one device.

Planned anew after every event. In the order of rank and arrival each waiting segment claims its bytes; what
one cannot have, no later one takes from it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from djinn_lab.memory import admission
from djinn_lab.memory.admission import AdmissionLore
from djinn_lab.memory.making_room import FAILURES_MAX, Room, make_room
from djinn_lab.memory.moving import send_over
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.ranking import settled
from djinn_lab.memory.records import LAST, Device, Segment, Session
from djinn_lab.memory.sentences import hold, in_line, out_of_memory, unrestorable
from djinn_lab.memory.states import Phase
from djinn_lab.memory.suggestions import Grant, Hold, Suggestion, Transport
from djinn_lab.memory.tier_room import hurry
from djinn_lab.memory.turns import Turns, early_job, has_turn, in_order, needed_bytes
from djinn_lab.units import format_bytes

LOOKED_AT = 16
"""So many waiting segments are asked whether they could use a device on which one would start early."""


def serve(device: Device, policy: MemoryPolicy, lore: AdmissionLore, now_s: float) -> Iterator[Suggestion]:
    """For everybody who waits on the device; those who only announced COMPUTE come last."""
    free_bytes = device.free_bytes()
    room = Room(free_bytes, free_bytes + device.leaving_bytes())
    gate = admission.Gate(device, policy, lore, now_s)
    near, turns = 0, Turns(device, _settled_first(device, now_s))
    for segment in turns:
        session = device.sessions[segment.session]
        if segment.job not in session.segments:
            continue
        if session.target is not None:
            yield from send_over(segment, session, device, policy, now_s)
            if session.target is not None:
                continue
        if admission.is_new(session):
            hold = gate.hold(segment)
            if hold is not None:
                yield hold
                continue
        near += 1
        if near > policy.restore_ahead and not has_turn(segment, device, policy) and session.moving is None:
            turns.far = True
            yield in_line(segment, device)
            continue
        yield from _serve_one(segment, session, device, policy, now_s, room)
    if policy.moves:
        for session in list(device.index.wishing.values()):
            if wishes(session, policy, now_s):
                wish = Segment("", 0, session.session, device.device, 0, LAST, LAST, session.wish_s or now_s)
                yield from _serve_one(wish, session, device, policy, now_s, room)


def _settled_first(device: Device, now_s: float) -> list[Segment]:
    """Those whose sessions were brought back for them and that have room as it is. One that has none keeps
    its place: who stands before it may be what fills the device."""
    free_bytes, first = device.free_bytes(), list[Segment]()
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


def wishes(session: Session, policy: MemoryPolicy, now_s: float) -> bool:
    """It announced that it computes, is not there, and did not cry wolf for long."""
    return (
        session.phase is Phase.COMPUTE
        and session.away
        and not session.busy
        and session.retry_s <= now_s
        and session.wish_s is not None
        and now_s - session.wish_s <= policy.wish_s
    )


def _serve_one(
    segment: Segment,
    session: Session,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    room: Room,
) -> Iterator[Suggestion]:
    if session.failures >= FAILURES_MAX and session.away and session.moving is None:
        if segment.job:
            yield unrestorable(segment, session)
        return
    turn = has_turn(segment, device, policy)
    needed = needed_bytes(session, segment, device) - (0 if turn else segment.peak_bytes)
    enough = needed <= room.free_bytes
    room.claim(needed)
    if enough or (not turn and session.resident):
        yield from _proceed(segment, session, device, policy, now_s, turn)
        return
    if session.moving is not None and session.moving.kind == "restore":
        yield from hurry(session, early_job(segment, session, device, policy))
    if room.coming_bytes >= 0:
        yield from hold(
            segment,
            "leaving",
            room.short_of(device, needed, "others are being moved out"),
        )
        return
    if not policy.moves:
        if segment.job:
            yield out_of_memory(segment, device, needed, room.free_bytes + needed)
        return
    if not room.exhausted:
        yield from make_room(segment, session, device, policy, now_s, room, needed)
        return
    if segment.job:
        told = "behind, full" if room.full else "behind, running" if room.running else "behind"
        reason = room.short_of(device, needed, "others wait before it")
        yield Hold(segment, told, reason, admission=room.full, room=room.running, stuck=room.stuck)
    if room.full:
        room.claim(-needed)


def _proceed(
    segment: Segment, session: Session, device: Device, policy: MemoryPolicy, now_s: float, turn: bool
) -> Iterator[Suggestion]:
    """There is room: run it, or bring its session back."""
    early = early_job(segment, session, device, policy)
    if session.open_to(segment.job) and turn and early and not _wanted_by_others(segment, device):
        yield Grant(segment)
        return
    if session.resident:
        if segment.job and turn:
            yield Grant(segment)
        elif segment.job:
            yield in_line(segment, device)
        return
    moving = session.moving
    if moving is None and session.away:
        if session.retry_s > now_s:
            yield from hold(segment, "retry", "bringing its state back failed; it is tried again in a moment")
            return
        yield Transport("restore", session, expedited=True, reason="its owner waits", job=early)
    elif moving is not None and moving.kind == "restore":
        yield from hurry(session, early)
    size = format_bytes(session.total_bytes)
    yield from hold(
        segment, "restore", f"its {size} are being brought back", device.seconds_for(session.total_bytes)
    )


def _wanted_by_others(segment: Segment, device: Device) -> bool:
    """Could other segments compute while this one waits for the rest of its copy?"""
    if device.granted:
        return True
    near = islice(device.waiting, LOOKED_AT)
    others = ((one, device.sessions[one.session]) for one in near if one is not segment)
    free_bytes = device.free_bytes()
    return any(
        session.resident and not one.admission and needed_bytes(session, one, device) <= free_bytes
        for one, session in others
    )
