"""Orders over sessions, without side effects: victims for eviction, candidates for prefetch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from djinn_lab.memory.machine.records import Device, PlacedSegment, SessionRecord
from djinn_lab.memory.machine.wake_prediction import (
    NEVER,
    NOW,
    Gap,
    PredictedWake,
    WakePredictor,
    expect,
    remaining_s,
)
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.states import Connection

STORE_PENALTY = 10.0
"""A victim that is not stored must be expected this many times its own copying time later to be worth the
wait for that copy."""

DUE_EVERY_S = 0.25
"""Expected moments are computed for times that are multiples of this. A rank is a function of what was
learned and of the time, never of when it was asked for: else a journal could not be replayed."""

IDLE, LEASED, SOON, IN_CELL, HELD = range(5)
"""Classes of victims, the first first: idle; idle and leased; about to compute; between two segments of a
running cell; waiting itself, behind the segment that needs the capacity."""


class Victim(NamedTuple):
    session: SessionRecord
    kind: int
    after_s: float


def after_s(session: SessionRecord, policy: MemoryPolicy, now_s: float) -> float:
    """Predicted seconds until the session computes: the key by which sessions are ranked."""
    if session.connection is not Connection.CONNECTED:
        return math.inf
    if not session.idle(now_s, policy.wish_s):
        return 0.0
    if policy.ranking == "recency" or session.gap is None:
        return now_s - (session.idle_since_s if session.idle_since_s is not None else session.opened_s)
    bucket = int(now_s / DUE_EVERY_S)
    if session.due_bucket != bucket:
        at_s = bucket * DUE_EVERY_S
        session.due_s = at_s + remaining_s(session.gap, at_s, 0.5)
        session.due_bucket = bucket
    return max(0.0, session.due_s - now_s)


def expectation(session: SessionRecord, policy: MemoryPolicy, now_s: float) -> PredictedWake:
    """The predicted wake-up of a session, for people. Changes nothing."""
    if session.connection is not Connection.CONNECTED or session.gap is None:
        return NEVER
    if not session.idle(now_s, policy.wish_s):
        return NOW
    return expect(session.gap, now_s)


def expect_gap(session: SessionRecord, policy: MemoryPolicy, history: WakePredictor) -> None:
    """Predict the gap of a session that became idle."""
    session.gap = _gap_of(session, policy, history)
    session.due_bucket = -1


def _gap_of(session: SessionRecord, policy: MemoryPolicy, history: WakePredictor) -> Gap:
    announced = None
    if session.announced_s is not None:
        announced = (session.announced_s, session.announced_at_s)
        if policy.trust_estimates:
            return Gap(session.announced_s, 0.0, session.announced_at_s)
    since_s = session.idle_since_s if session.idle_since_s is not None else session.opened_s
    return history.gap(session.session, session.user, since_s, announced)


def victims(device: Device, policy: MemoryPolicy, now_s: float, behind: PlacedSegment | None) -> list[Victim]:
    """Sessions that may be evicted from the device, best victim first. ``behind``: the segment that needs
    the capacity; None: only idle sessions without a lease."""
    found = [
        Victim(session, kind, after_s(session, policy, now_s))
        for session, kind in _candidates(device, policy, now_s, behind)
    ]
    found.sort(key=lambda victim: (victim.kind, -_worth(victim, device), victim.session.session))
    return found


def _candidates(
    device: Device, policy: MemoryPolicy, now_s: float, behind: PlacedSegment | None
) -> Iterator[tuple[SessionRecord, int]]:
    for session in device.sessions.values():
        if session.place != "device" or session.retry_s > now_s:
            continue
        if session.moving is not None and session.moving.kind != "store":
            continue
        kind = victim_kind(session, policy, now_s, behind)
        if kind is not None and (behind is not None or kind == IDLE):
            yield session, kind


def victim_kind(
    session: SessionRecord, policy: MemoryPolicy, now_s: float, behind: PlacedSegment | None
) -> int | None:
    """The kind of victim that the session is; None: it may not be evicted."""
    if session.busy:
        later = behind is not None and all(
            not segment.granted and segment.order > behind.order for segment in session.segments.values()
        )
        if behind is None or not later or behind.session == session.session:
            return None
        return None if settled(session, now_s, behind) else HELD
    if session.idle(now_s, policy.wish_s):
        leased_until_s = session.leased_until_s
        if leased_until_s is None or now_s >= leased_until_s:
            return IDLE
        if behind is not None and session.idle_since_s is not None:
            lease_s = leased_until_s - session.idle_since_s
            if now_s - behind.since_s >= lease_s:
                return IDLE
        return LEASED
    return IN_CELL if session.cell else SOON


def settled(session: SessionRecord, now_s: float, behind: PlacedSegment | None = None) -> bool:
    """Return whether the session was restored for a cell that has not run since. ``behind``: and is kept
    against such a segment."""
    if now_s >= session.settled_until_s or not session.resident:
        return False
    return behind is None or any(segment.rank <= behind.rank for segment in session.segments.values())


def _worth(victim: Victim, device: Device) -> float:
    """Return how late the session is expected, less the time of its own copy first."""
    unstored_bytes = victim.session.unstored_bytes
    if unstored_bytes == 0:
        return victim.after_s
    return victim.after_s - STORE_PENALTY * (device.seconds_for(unstored_bytes) or 0.0)


def fewest(found: Iterable[Victim], needed_bytes: int, device: Device) -> list[Victim] | None:
    """The first victims that free enough, without those that turn out not to be needed; None: all do not
    free enough."""
    taken: list[Victim] = []
    missing = needed_bytes
    for victim in found:
        if missing <= 0:
            break
        taken.append(victim)
        missing -= device.session_bytes.get(victim.session.session, 0)
    if missing > 0:
        return None
    spare = -missing
    for victim in reversed(taken[:]):
        size = device.session_bytes.get(victim.session.session, 0)
        if size <= spare:
            taken.remove(victim)
            spare -= size
    return taken


def absent(device: Device, policy: MemoryPolicy, now_s: float) -> list[Victim]:
    """Sessions whose state could be prefetched, the earliest expected first."""
    found = [
        Victim(session, IDLE, after_s(session, policy, now_s))
        for session in device.index.away.values()
        if session.moving is None
        and not session.busy
        and session.retry_s <= now_s
        and session.fetched_at != device.changes
    ]
    found.sort(key=lambda one: (one.after_s, one.session.session))
    return found
