"""Frees capacity for a waiting segment: victim selection, and what becomes of the segment without a
victim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from djinn_lab.events import MemoryRelease
from djinn_lab.memory.machine.closing import until_closed
from djinn_lab.memory.machine.costs import may_rebuild
from djinn_lab.memory.machine.ranking import IDLE, LEASED, Victim, fewest, victims
from djinn_lab.memory.machine.records import Device, PlacedSegment, SessionRecord
from djinn_lab.memory.machine.sentences import defer, holders_text, out_of_memory, running_text, short_of
from djinn_lab.memory.machine.serving_order import early_job, needed_bytes
from djinn_lab.memory.machine.suggestions import Defer, Grant, StartTransfer, Suggestion
from djinn_lab.memory.machine.tier_capacity import HostCapacity, drops, evict
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.units import format_bytes

GIVEN_UP_S = 20.0
"""A cell is refused after this long where all that hold something wait and none fits, and there are other
devices to which one of them may go."""
FAILURES_MAX = 3
"""Failed transfers of a session after which its segments are refused, and it is no victim any more."""


@dataclass(slots=True)
class Claims:
    """The device's capacity in a plan. ``free_bytes``: free now, less the claims of segments before;
    ``coming_bytes``: with evictions under way. ``host``: capacity for stores. ``taken``: victims of
    segments before. ``exhausted``: a segment before, of job ``short``, found too few victims, so that none is
    sought for later segments. ``release``: what frees the memory that they lack."""

    free_bytes: int
    coming_bytes: int
    host: HostCapacity | None = None
    taken: set[str] = field(default_factory=set)
    exhausted: bool = False
    short: str = ""
    release: MemoryRelease = MemoryRelease.COPIES

    def short_of(self, device: Device, needed: int, what: str) -> str:
        return short_of(device, needed, self.free_bytes + needed, what)

    def claim(self, nbytes: int) -> None:
        self.free_bytes -= nbytes
        self.coming_bytes -= nbytes


def evict_for(
    segment: PlacedSegment,
    session: SessionRecord,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    claims: Claims,
    needed: int,
) -> Iterator[Suggestion]:
    host = claims.host = claims.host or HostCapacity.of(device, policy, now_s, segment)
    found = [
        victim
        for victim in victims(device, policy, now_s, segment)
        if victim.session.session not in claims.taken
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
            drops(victim, policy, stalled_bytes)
            or host.can_take(victim.session)
            or may_rebuild(victim.session, policy, victim.after_s, stalled_bytes)
        )
    ]
    chosen = fewest(usable, -claims.coming_bytes, device)
    claims.exhausted = chosen is None
    if chosen is None and leased:
        chosen = [victim for victim in usable if victim.kind == IDLE]
    elif chosen is None:
        # victims that do not free enough would soon be prefetched again; a session alone is granted anyway
        chosen = usable if device.granted or _leave_alone(usable, session, device) else []
    leaving = False
    for victim in chosen:
        claims.taken.add(victim.session.session)
        claims.coming_bytes += device.session_bytes.get(victim.session.session, 0)
        yield from evict(
            victim, device, policy, now_s, f"for session {segment.session}", stalled_bytes, segment
        )
        leaving |= victim.session.moving is not None
    if leaving or device.copying("forget") or device.copying("demote"):
        yield from defer(
            segment,
            "leaving",
            claims.short_of(device, needed, "others are being evicted"),
        )
    elif leased:
        yield from defer(segment, "leased", claims.short_of(device, needed, "others only just finished"))
    else:
        first = None
        if segment.job and not device.granted and not device.moving:
            first = _state_first(segment, session, device, policy, now_s, claims.free_bytes + needed, found)
        if first is None:
            yield from _stuck(segment, session, device, policy, now_s, claims, host, needed)
            return
        for victim in first:
            yield from evict(
                victim, device, policy, now_s, f"for session {segment.session}", stalled_bytes, segment
            )
        if not first:
            yield StartTransfer(
                "restore", session, expedited=True, reason="others can be stored in its place"
            )
        what = "its state is restored first, so that others can be stored in its place"
        yield from defer(segment, "restore first", claims.short_of(device, needed, what))


def _state_first(
    segment: PlacedSegment,
    session: SessionRecord,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    free_bytes: int,
    found: list[Victim],
) -> list[Victim] | None:
    """Victims that leave so that the session's state alone is restored first; further victims can then
    use the capacity below the device that the state had. None: that would not free enough for the cell."""
    if not session.away or session.moving is not None or session.retry_s > now_s:
        return None
    host = HostCapacity.of(device, policy, now_s, segment)
    leaving = [victim for victim in found if host.can_take(victim.session)]
    state_bytes = device.restore_bytes(session)
    first = fewest(leaving, state_bytes - free_bytes, device)
    if first is None:
        return None
    gone = {victim.session.session for victim in first}
    below = HostCapacity.of(device, policy, now_s, segment, without=session.session, leaving=gone)
    rest = [victim for victim in found if victim not in first and below.can_take(victim.session)]
    freed = sum(device.session_bytes.get(victim.session.session, 0) for victim in (*first, *rest))
    return first if needed_bytes(session, segment, device) <= free_bytes + freed else None


def _would_free(device: Device, host: HostCapacity) -> int:
    """Bytes that preemption of the granted cells, and eviction of their sessions, would free."""
    freed = 0
    for segment in device.granted.values():
        here = device.session_bytes.get(segment.session, 0)
        freed += max(0, device.granted_bytes(segment) - here)
        freed += here if host.can_take(device.sessions[segment.session]) else 0
    return freed


def _leave_alone(victims: list[Victim], session: SessionRecord, device: Device) -> bool:
    """Return whether the session would have the device to itself."""
    leaving = {victim.session.session for victim in victims}
    return all(name in leaving or name == session.session for name in device.session_bytes)


def _stuck(
    segment: PlacedSegment,
    session: SessionRecord,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    claims: Claims,
    host: HostCapacity,
    needed: int,
) -> Iterator[Suggestion]:
    """No victim: wait for a running segment or a copy to end; with none under way, grant."""
    others = [
        other
        for other in device.sessions.values()
        if other is not session and device.session_bytes.get(other.session, 0) > 0
    ]
    enough = bool(device.granted) and _would_free(device, host) >= -claims.coming_bytes
    if device.granted and (enough or not _closing_helps(others, device)):
        claims.release = MemoryRelease.PREEMPTION if enough else MemoryRelease.CELLS
        if segment.job:
            running = running_text(device)
            reason = claims.short_of(device, needed, f"it waits for {running} to end")
            yield Defer(segment, f"{claims.release}: {running}", reason, release=claims.release)
        return
    if device.moving:
        yield from defer(segment, "copies", claims.short_of(device, needed, "copies are under way"))
        return
    if any(other.retry_s > now_s and other.failures < FAILURES_MAX for other in others):
        yield from defer(
            segment,
            "retry",
            claims.short_of(device, needed, "a copy failed and is tried again"),
        )
        return
    if others and not segment.job:
        return
    if others and device.tiers:
        yield from _full(segment, device, claims, needed, now_s)
        return
    yield from _anyway(segment, session, device, policy, now_s)


def _closing_helps(others: list[SessionRecord], device: Device) -> bool:
    """Return whether only a closed session helps more than the end of the running cells."""
    waiting = [other for other in others if not any(one.granted for one in other.segments.values())]
    return device.tiers and not device.moving and bool(waiting)


def _full(
    segment: PlacedSegment, device: Device, claims: Claims, needed: int, now_s: float
) -> Iterator[Suggestion]:
    """Defer the segment until a session closes. Where every session that holds state waits and none fits,
    reject the last one."""
    holders = [session for session in device.sessions.values() if session.total_bytes > 0]
    given_up = device.alone or now_s - segment.since_s >= GIVEN_UP_S
    if given_up and not device.granted and all(holder.busy for holder in holders):
        free_bytes = claims.free_bytes + needed
        holding = [one for one in device.waiting if device.sessions[one.session].total_bytes > 0]
        needs = [needed_bytes(device.sessions[one.session], one, device) for one in holding]
        if min(needs) > free_bytes:
            yield out_of_memory(holding[-1], device, needs[-1], device.free_bytes())
            if holding[-1] is segment:
                return
    claims.release = MemoryRelease.CLOSE
    what = f"{holders_text(holders, device)}; {until_closed(device, claims.free_bytes + needed, needed)}"
    yield Defer(segment, f"full, {what}", claims.short_of(device, needed, what), release=claims.release)
    claims.claim(-needed)


def _anyway(
    segment: PlacedSegment, session: SessionRecord, device: Device, policy: MemoryPolicy, now_s: float
) -> Iterator[Suggestion]:
    """Grant, or restore, though the prediction says that the segment does not fit. The prediction may be
    too high, and the worker enforces the true limit."""
    if session.resident and segment.job:
        yield Grant(segment)
    elif session.away and session.moving is None and session.retry_s <= now_s:
        early = early_job(segment, session, device, policy)
        yield StartTransfer(
            "restore",
            session,
            expedited=True,
            reason="its owner waits, and no other session is there",
            job=early,
        )
        yield from defer(segment, "restore", f"its {format_bytes(session.total_bytes)} are being restored")
    else:
        yield from defer(segment, "retry", "restoring its state failed; it is tried again in a moment")
