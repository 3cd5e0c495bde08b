"""The phase of a session: signalled by its client, or observed. Signals are hints; none changes a result."""

from __future__ import annotations

import math

from djinn_lab.memory.machine.ranking import expect_gap
from djinn_lab.memory.machine.records import Device, SessionRecord
from djinn_lab.memory.machine.tables import Tables
from djinn_lab.memory.messages import AnswerPhase, PhaseSignalled
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.states import Connection, Phase

TAUGHT = 16
"""Gaps after which what is expected of the others is computed anew."""
EXPECTED_S_MAX = 24 * 3600.0
"""A longer announced wait is taken as this."""


def signal(tables: Tables, event: PhaseSignalled) -> AnswerPhase:
    """Apply a client's signal, and answer it."""
    session = tables.session(event.session)
    problem = _objection(event, session)
    if problem is not None:
        return AnswerPhase(event.session, "rejected", problem)
    phase = Phase(event.phase)
    before = session.phase
    if event.rebuild_s is not None and event.rebuild_s >= 0:
        session.rebuild_s = event.rebuild_s
    if phase is Phase.COMPUTE:
        session.deferred = None
        wish(tables, session)
        return AnswerPhase(event.session, "accepted", f"{before} -> {phase}")
    if phase is Phase.SOON:
        if session.busy or session.cell:
            return AnswerPhase(event.session, "accepted", f"it is {before} already")
        session.phase, session.said_s = phase, tables.now_s
        return AnswerPhase(event.session, "accepted", f"{before} -> {phase}")
    expected_s = None if event.expected_s is None else min(event.expected_s, EXPECTED_S_MAX)
    if session.busy:
        session.deferred = (event.at_s, expected_s)
        return AnswerPhase(
            event.session, "deferred", "a cell runs or is pending; the signal takes effect when it ends"
        )
    rest(tables, session, event.at_s, expected_s)
    if expected_s != event.expected_s:
        return AnswerPhase(
            event.session, "clipped", f"{before} -> {phase}, for {EXPECTED_S_MAX:.0f} s at most"
        )
    return AnswerPhase(event.session, "accepted", f"{before} -> {phase}")


def _objection(event: PhaseSignalled, session: SessionRecord) -> str | None:
    if event.phase not in Phase.__members__:
        return f"{event.phase!r} is not a phase; use COMPUTE, IO_WAIT or SOON"
    if session.connection is not Connection.CONNECTED:
        return "the session is detached"
    if event.expected_s is not None and (math.isnan(event.expected_s) or event.expected_s < 0):
        return f"expected_s is {event.expected_s}; it must be 0 or more"
    return None


def placed(tables: Tables, session: SessionRecord) -> None:
    """Note that a segment of the session wants to run, and compare the predicted gap with the actual one. The
    caller indexes the session anew, with its segment."""
    _note_wish(tables, session)
    if session.idle_since_s is not None and session.teaches:
        ended_s = tables.now_s if session.wish_s is None else session.wish_s
        announced = None
        if session.announced_s is not None:
            announced = (session.announced_s, ended_s - session.announced_at_s)
        gap_s = ended_s - session.idle_since_s
        _learn(tables, session, gap_s, announced)
    session.idle_since_s = session.announced_s = None
    session.cell = True


def _learn(
    tables: Tables, session: SessionRecord, gap_s: float, announced: tuple[float, float] | None
) -> None:
    """Record an ended gap. Now and then, what other sessions taught changes the predictions for idle
    ones."""
    history = tables.wake_predictor
    history.ended(session.session, session.user, gap_s, announced)
    if history.taught % TAUGHT == 0:
        for other in tables.sessions.values():
            if other.idle_since_s is not None:
                expect_gap(other, tables.policy, history)


def wish(tables: Tables, session: SessionRecord) -> None:
    """Apply a COMPUTE signal. Only a segment proves it: until then nothing is learned from it."""
    _note_wish(tables, session)
    tables.changed(session)


def _note_wish(tables: Tables, session: SessionRecord) -> None:
    was_idle = session.phase is not Phase.COMPUTE
    session.phase, session.said_s = Phase.COMPUTE, tables.now_s
    session.leased_until_s = None
    if (not was_idle and session.resident) or session.total_bytes == 0 or session.wish_s is not None:
        return
    session.wish_s = tables.now_s
    moving = session.moving.kind if session.moving else None
    session.wish_hit = session.place == "device" and moving != "evict"
    session.ready_s = tables.now_s if session.wish_hit else None
    if session.prefetched and session.wish_hit:
        tables.statistics.count(prefetches_on_time=1)
    elif session.moving is not None and session.moving.prefetch:
        tables.statistics.count(prefetches_late=1)
        session.moving.prefetch = False
    session.prefetched = False


def rest(tables: Tables, session: SessionRecord, at_s: float, expected_s: float | None) -> None:
    """Make the session idle: it waits for its user or a tool. ``at_s``: when that was signalled. A lease is
    earned by computing."""
    if session.idle_since_s is None:
        session.idle_since_s = tables.now_s
        device = tables.device_of(session)
        session.leased_until_s = _lease_end_s(session, device, tables.policy, tables.now_s)
    session.phase = Phase.IO_WAIT
    session.wish_s = session.ready_s = None
    session.announced_s, session.announced_at_s = expected_s, at_s
    session.teaches = True
    tables.changed(session)
    expect_gap(session, tables.policy, tables.wake_predictor)


def _lease_end_s(
    session: SessionRecord, device: Device | None, policy: MemoryPolicy, now_s: float
) -> float | None:
    if device is None or policy.lease_restores <= 0:
        return None
    restore_s = device.seconds_for(session.total_bytes) or 0.0
    return now_s + min(policy.lease_s_max, max(policy.lease_s_min, policy.lease_restores * restore_s))


def end_leases(tables: Tables, device: Device) -> None:
    """End the leases whose time is over."""
    for session in list(device.index.leased.values()):
        if session.leased_until_s is not None and session.leased_until_s <= tables.now_s:
            session.leased_until_s = None
            tables.changed(session)


def segment_over(tables: Tables, session: SessionRecord) -> None:
    """Note that a segment is over; with no other one placed, the session's phase may change."""
    if session.busy:
        return
    if session.deferred is not None:
        rest(tables, session, *session.deferred)
        session.teaches = not session.cell
        if not session.cell:
            session.deferred = None
    elif not session.cell:
        rest(tables, session, tables.now_s, None)


def cell_ended(tables: Tables, session: SessionRecord) -> None:
    """Note that a cell is over; the session is idle unless another of its cells is under way."""
    session.cell = False
    session.cells += 1
    tables.admission_history.cell_ended(session)
    if not session.busy and session.connection is Connection.CONNECTED:
        at_s, expected_s = session.deferred or (tables.now_s, None)
        announced = session.announced_s is not None and session.deferred is None
        if not announced:
            rest(tables, session, at_s, expected_s)
        session.deferred = None


def resume(tables: Tables, session: SessionRecord) -> None:
    """Note that the client is back; it will signal its phase."""
    session.phase, session.said_s = Phase.COMPUTE, tables.now_s
    session.idle_since_s = session.leased_until_s = session.announced_s = None
    tables.changed(session)
