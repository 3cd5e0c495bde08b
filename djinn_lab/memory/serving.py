"""Making room for those who wait: grants, restores and evictions for the waiting segments of one device.

Planned anew after every event. In the order of rank and arrival each waiting segment claims its bytes; what
one cannot have, no later one takes from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from djinn_lab.memory import admission
from djinn_lab.memory.admission import AdmissionLore
from djinn_lab.memory.costs import may_rebuild
from djinn_lab.memory.moving import send_over
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.ranking import IDLE, LEASED, Victim, fewest, settled, victims
from djinn_lab.memory.records import FIRST, LAST, Device, Segment, Session
from djinn_lab.memory.states import Phase
from djinn_lab.memory.suggestions import Grant, Hold, Hurry, Refuse, Suggestion, Transport
from djinn_lab.memory.tier_room import HostRoom, clear_host
from djinn_lab.memory.turns import Turns, in_order
from djinn_lab.units import counted, format_bytes

LOOKED_AT = 16
"""So many waiting segments are asked whether they could use a device on which one would start early."""
GIVEN_UP_S = 20.0
"""A cell is refused after this long where all that hold something wait and none fits, and there are other
devices to which one of them may go."""
FAILURES_MAX = 3
"""Failed transfers of a session after which its segments are refused, and it is no victim any more."""


@dataclass(slots=True)
class _Room:
    """``free_bytes``: now, less what those before have claimed; ``coming_bytes``: with what is leaving, too.
    ``host``: room for stores. ``taken``: victims of those before. ``exhausted``: somebody before found too
    little, so that no later one is looked at; ``running``: what running cells have would do; ``full``: until
    a session closes; ``stuck``: nothing is under way that would help."""

    free_bytes: int
    coming_bytes: int
    host: HostRoom | None = None
    taken: set[str] = field(default_factory=set)
    exhausted: bool = False
    running: bool = False
    full: bool = False
    stuck: bool = False

    def claim(self, nbytes: int) -> None:
        self.free_bytes -= nbytes
        self.coming_bytes -= nbytes


def serve(device: Device, policy: MemoryPolicy, lore: AdmissionLore, now_s: float) -> Iterator[Suggestion]:
    """For everybody who waits on the device; those who only announced COMPUTE come last."""
    free_bytes = device.free_bytes()
    room = _Room(free_bytes, free_bytes + device.leaving_bytes())
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
            yield _in_line(segment, device)
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


def has_turn(segment: Segment, device: Device, policy: MemoryPolicy) -> bool:
    """Is room kept for it, too? Granted segments that stand behind it in the device's line do not count. Of
    those that stand in none, no more run than there are slots; the others come after all that stand in it."""
    if segment.turn == FIRST:
        return True
    turns = [other.turn for other in device.granted.values()]
    if segment.turn == LAST:
        before = len(turns)
    else:
        before = sum(turn <= segment.turn for turn in turns) + min(turns.count(LAST), device.slots)
    return before < device.slots + policy.ready_ahead


def needed_bytes(session: Session, segment: Segment, device: Device) -> int:
    """Room that is still to be found for it; bytes of a restore under way are counted already."""
    restoring = session.moving is not None and session.moving.kind == "restore"
    absent = (session.away and not restoring) or not session.resident
    if restoring:
        absent = False
    return segment.peak_bytes + session.rebuild_bytes + (device.restore_bytes(session) if absent else 0)


def _serve_one(
    segment: Segment,
    session: Session,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    room: _Room,
) -> Iterator[Suggestion]:
    if session.failures >= FAILURES_MAX and session.away and session.moving is None:
        if segment.job:
            yield _unrestorable(segment, session)
        return
    turn = has_turn(segment, device, policy)
    needed = needed_bytes(session, segment, device) - (0 if turn else segment.peak_bytes)
    enough = needed <= room.free_bytes
    room.claim(needed)
    if enough or (not turn and session.resident):
        yield from _proceed(segment, session, device, policy, now_s, turn)
        return
    if session.moving is not None and session.moving.kind == "restore":
        yield from _hurry(session, _early(segment, session, device, policy))
    if room.coming_bytes >= 0:
        yield from _hold(segment, "leaving", _short_of(device, needed, room, "others are being moved out"))
        return
    if not policy.moves:
        if segment.job:
            yield _out_of_memory(segment, device, needed, room.free_bytes + needed)
        return
    if not room.exhausted:
        yield from _make_room(segment, session, device, policy, now_s, room, needed)
        return
    if segment.job:
        told = "behind, full" if room.full else "behind, running" if room.running else "behind"
        reason = _short_of(device, needed, room, "others wait before it")
        yield Hold(segment, told, reason, admission=room.full, room=room.running, stuck=room.stuck)
    if room.full:
        room.claim(-needed)


def _proceed(
    segment: Segment, session: Session, device: Device, policy: MemoryPolicy, now_s: float, turn: bool
) -> Iterator[Suggestion]:
    """There is room: run it, or bring its session back."""
    early = _early(segment, session, device, policy)
    if session.open_to(segment.job) and turn and early and not _wanted_by_others(segment, device):
        yield Grant(segment)
        return
    if session.resident:
        if segment.job and turn:
            yield Grant(segment)
        elif segment.job:
            yield _in_line(segment, device)
        return
    moving = session.moving
    if moving is None and session.away:
        if session.retry_s > now_s:
            yield from _hold(
                segment, "retry", "bringing its state back failed; it is tried again in a moment"
            )
            return
        yield Transport("restore", session, expedited=True, reason="its owner waits", job=early)
    elif moving is not None and moving.kind == "restore":
        yield from _hurry(session, early)
    size = format_bytes(session.total_bytes)
    yield from _hold(
        segment, "restore", f"its {size} are being brought back", device.seconds_for(session.total_bytes)
    )


def _early(segment: Segment, session: Session, device: Device, policy: MemoryPolicy) -> str:
    """Its job, where that is worth starting before all of the session is back."""
    if policy.early_start_s is None or session.earliest != segment.order:
        return ""
    copy_s = device.seconds_for(session.total_bytes)
    return segment.job if copy_s is None or copy_s > policy.early_start_s else ""


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


def _in_line(segment: Segment, device: Device) -> Hold:
    return Hold(
        segment, "line", f"room is kept for it when its turn on {device.device} is near", in_line=True
    )


def _make_room(
    segment: Segment,
    session: Session,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    room: _Room,
    needed: int,
) -> Iterator[Suggestion]:
    host = room.host = room.host or HostRoom.of(device, policy, now_s, segment)
    found = [
        victim
        for victim in victims(device, policy, now_s, segment)
        if victim.session.session not in room.taken
        and victim.session is not session
        and (segment.job or victim.kind <= LEASED)
    ]
    leased = [victim for victim in found if victim.kind == LEASED]
    stalled_bytes = session.total_bytes
    usable = [
        victim
        for victim in found
        if victim.kind != LEASED
        and (
            _drops(victim, policy, stalled_bytes)
            or host.can_take(victim.session)
            or may_rebuild(victim.session, policy, victim.after_s, stalled_bytes)
        )
    ]
    chosen = fewest(usable, -room.coming_bytes, device)
    room.exhausted = chosen is None
    if chosen is None and leased:
        chosen = [victim for victim in usable if victim.kind == IDLE]
    elif chosen is None:
        # victims that do not free enough would soon be prefetched again; a session alone is granted anyway
        chosen = usable if device.granted or _leave_alone(usable, session, device) else []
    leaving = False
    for victim in chosen:
        room.taken.add(victim.session.session)
        room.coming_bytes += device.session_bytes.get(victim.session.session, 0)
        yield from send_off(
            victim, device, policy, now_s, f"room for {segment.session}", stalled_bytes, segment
        )
        leaving |= victim.session.moving is not None
    if leaving or device.copying("forget") or device.copying("demote"):
        yield from _hold(segment, "leaving", _short_of(device, needed, room, "others are being moved out"))
    elif leased:
        yield from _hold(segment, "leased", _short_of(device, needed, room, "others only just finished"))
    else:
        first = None
        if segment.job and not device.granted and not device.moving:
            first = _state_first(segment, session, device, policy, now_s, room.free_bytes + needed, found)
        if first is None:
            yield from _stuck(segment, session, device, policy, now_s, room, host, needed)
            return
        for victim in first:
            yield from send_off(
                victim, device, policy, now_s, f"room for {segment.session}", stalled_bytes, segment
            )
        if not first:
            yield Transport("restore", session, expedited=True, reason="others can leave into its room below")
        what = "its state is brought back first, so that others can leave into its room below"
        yield from _hold(segment, "restore first", _short_of(device, needed, room, what))


def _state_first(
    segment: Segment,
    session: Session,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    free_bytes: int,
    found: list[Victim],
) -> list[Victim] | None:
    """Two sessions cannot change places without room for a third, but one at a time may: who must leave so
    that the session's state fits, without what its cell takes, such that others can leave for the rest into
    the room that the state has now. None: that would not do."""
    if not session.away or session.moving is not None or session.retry_s > now_s:
        return None
    host = HostRoom.of(device, policy, now_s, segment)
    leaving = [victim for victim in found if host.can_take(victim.session)]
    state_bytes = device.restore_bytes(session)
    first = fewest(leaving, state_bytes - free_bytes, device)
    if first is None:
        return None
    gone = {victim.session.session for victim in first}
    below = HostRoom.of(device, policy, now_s, segment, without=session.session, leaving=gone)
    rest = [victim for victim in found if victim not in first and below.can_take(victim.session)]
    freed = sum(device.session_bytes.get(victim.session.session, 0) for victim in (*first, *rest))
    return first if needed_bytes(session, segment, device) <= free_bytes + freed else None


def _would_free(device: Device, host: HostRoom) -> int:
    """Bytes, if the cells that have room here were preempted, and those of their sessions left that can."""
    freed = 0
    for segment in device.granted.values():
        here = device.session_bytes.get(segment.session, 0)
        freed += max(0, segment.base_bytes + segment.peak_bytes - here)
        freed += here if host.can_take(device.sessions[segment.session]) else 0
    return freed


def _leave_alone(victims: list[Victim], session: Session, device: Device) -> bool:
    """Would the session have the device to itself?"""
    leaving = {victim.session.session for victim in victims}
    return all(name in leaving or name == session.session for name in device.session_bytes)


def _drops(victim: Victim, policy: MemoryPolicy, stalled_bytes: int) -> bool:
    """Without a thought of swapping it."""
    return policy.recompute == "always" and may_rebuild(victim.session, policy, victim.after_s, stalled_bytes)


def send_off(
    victim: Victim,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    reason: str,
    stalled_bytes: int = 0,
    behind: Segment | None = None,
) -> Iterator[Suggestion]:
    """Move a session out: at once where it is stored whole, else by storing it first, or by dropping what its
    owner can rebuild. ``behind``: for which segment."""
    session = victim.session
    if session.moving is not None:
        yield from _hurry(session)
    elif _drops(victim, policy, stalled_bytes):
        yield Transport("evict", session, discard=True, reason=reason)
    elif session.unstored_bytes == 0:
        yield Transport("evict", session, reason=reason)
    elif device.host_free_bytes() >= session.unstored_bytes:
        yield Transport("store", session, expedited=True, reason=reason)
    elif may_rebuild(session, policy, victim.after_s, stalled_bytes):
        yield Transport("evict", session, discard=True, reason=f"{reason}; rebuilding it costs least")
    else:
        yield from clear_host(device, session.unstored_bytes, session, policy, now_s, behind=behind)


def _stuck(
    segment: Segment,
    session: Session,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    room: _Room,
    host: HostRoom,
    needed: int,
) -> Iterator[Suggestion]:
    """No session can leave. A cell will end or a copy arrive, or else it runs with what there is."""
    others = [
        other
        for other in device.sessions.values()
        if other is not session and device.session_bytes.get(other.session, 0) > 0
    ]
    room.running = bool(device.granted) and _would_free(device, host) >= -room.coming_bytes
    if device.granted and (room.running or not _closing_helps(others, device)):
        room.stuck, granted = not room.running, len(device.granted)
        what = f"it waits for {granted} {'cell' if granted == 1 else 'cells'} with a memory grant to end"
        if segment.job:
            told = "running" if room.running else "running, stuck"
            reason = _short_of(device, needed, room, what)
            yield Hold(segment, told, reason, room=room.running, stuck=room.stuck)
        return
    if device.moving:
        yield from _hold(segment, "copies", _short_of(device, needed, room, "copies are under way"))
        return
    if any(other.retry_s > now_s and other.failures < FAILURES_MAX for other in others):
        yield from _hold(
            segment, "retry", _short_of(device, needed, room, "a copy failed and is tried again")
        )
        return
    if others and not segment.job:
        return
    if others and device.tiers:
        yield from _full(segment, device, room, needed, now_s)
        return
    yield from _anyway(segment, session, device, policy, now_s)


def _closing_helps(others: list[Session], device: Device) -> bool:
    """More than the end of those that run: nothing is on its way out, and some that do not run stay."""
    waiting = [other for other in others if not any(one.granted for one in other.segments.values())]
    return device.tiers and not device.moving and bool(waiting)


def _full(segment: Segment, device: Device, room: _Room, needed: int, now_s: float) -> Iterator[Suggestion]:
    """A session that closes makes room. Where all that hold something wait and none of them fits, none will,
    and the last of them has to go."""
    holders = [session for session in device.sessions.values() if session.total_bytes > 0]
    given_up = device.alone or now_s - segment.since_s >= GIVEN_UP_S
    if given_up and not device.granted and all(holder.busy for holder in holders):
        free_bytes = room.free_bytes + needed
        holding = [one for one in device.waiting if device.sessions[one.session].total_bytes > 0]
        needs = [needed_bytes(device.sessions[one.session], one, device) for one in holding]
        if min(needs) > free_bytes:
            yield _out_of_memory(holding[-1], device, needs[-1], device.free_bytes())
            if holding[-1] is segment:
                return
    room.full = room.stuck = True
    what = f"{_who_fills(holders, device)}; {admission.wait_for_close(device)}"
    told = f"full, {len(admission.abandoned(device))}"
    yield Hold(segment, told, _short_of(device, needed, room, what), admission=True, stuck=True)
    room.claim(-needed)


def _who_fills(holders: list[Session], device: Device) -> str:
    staying = [one for one in holders if one.place == "device" and one.total_bytes > device.host_bytes]
    if staying:
        names = f"{counted(len(staying), 'session')} on it, larger than the host's tier, cannot leave"
        return f"{names} ({format_bytes(device.host_bytes)})"
    fill = "fills" if len(holders) == 1 else "fill"
    return f"{counted(len(holders), 'session')} {fill} the device and the tiers below"


def _anyway(
    segment: Segment, session: Session, device: Device, policy: MemoryPolicy, now_s: float
) -> Iterator[Suggestion]:
    """The prediction may be too high and a segment frees as it goes; the worker keeps the true limit."""
    if session.resident and segment.job:
        yield Grant(segment)
    elif session.away and session.moving is None and session.retry_s <= now_s:
        early = _early(segment, session, device, policy)
        yield Transport(
            "restore", session, expedited=True, reason="its owner waits, and nobody else is there", job=early
        )
        yield from _hold(
            segment, "restore", f"its {format_bytes(session.total_bytes)} are being brought back"
        )
    else:
        yield from _hold(segment, "retry", "bringing its state back failed; it is tried again in a moment")


def _hurry(session: Session, early: str = "") -> Iterator[Suggestion]:
    """``early``: the job that may start before the end of the transfer."""
    moving = session.moving
    if moving is not None and (not moving.expedited or (early and early != moving.job)):
        yield Hurry(session, early)


def _hold(segment: Segment, told: str, reason: str, estimate_s: float | None = None) -> Iterator[Suggestion]:
    if segment.job:
        yield Hold(segment, told, reason, estimate_s)


def _short_of(device: Device, needed: int, room: _Room, what: str) -> str:
    if needed <= 0:
        return f"device {device.device} is full; {what}"
    free = max(0, room.free_bytes + needed)
    if free < needed and format_bytes(needed) == format_bytes(free):
        more = format_bytes(needed - free)
        return f"it needs {format_bytes(needed)}, {more} more than {device.device} has free; {what}"
    return f"it needs {format_bytes(needed)} and {device.device} has {format_bytes(free)} free; {what}"


def _out_of_memory(segment: Segment, device: Device, needed: int, free: int) -> Refuse:
    holding = sum(nbytes > 0 for nbytes in device.session_bytes.values())
    return Refuse(
        segment,
        f"out of memory: the cell needs {format_bytes(needed)} and {device.device} has"
        f" {format_bytes(max(0, free))} of {format_bytes(device.memory_bytes)} free;"
        f" {counted(holding, 'session')} {'holds' if holding == 1 else 'hold'} the rest",
        "Close other sessions, or run the pool with a memory policy that moves idle ones.",
    )


def _unrestorable(segment: Segment, session: Session) -> Refuse:
    return Refuse(
        segment,
        f"the session's {format_bytes(session.total_bytes)} could not be brought back to the device,"
        f" {session.failures} times in a row",
        "Run the cell again; if it fails again, close other sessions or look into the pool's log.",
    )
