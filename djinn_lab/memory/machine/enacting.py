"""Enacts a plan's suggestions, and applies the results of transfers."""

from __future__ import annotations

from collections.abc import Iterable

from djinn_lab.events import IllegalEvent
from djinn_lab.memory.machine import moving, phases
from djinn_lab.memory.machine.admission import guess_bytes, is_new
from djinn_lab.memory.machine.records import Device, PlacedSegment, SessionRecord, TransferRecord
from djinn_lab.memory.machine.suggestions import (
    Defer,
    ExpediteCopy,
    Grant,
    RefuseMove,
    Reject,
    StartTransfer,
    Suggestion,
)
from djinn_lab.memory.machine.tables import Tables
from djinn_lab.memory.messages import (
    Command,
    DeferSegment,
    DemoteSession,
    DropParked,
    EvictSession,
    ExpediteTransfer,
    FirstValuesRestored,
    ForgetStored,
    GrantSegment,
    RejectSegment,
    RestoreSession,
    StoreSession,
    TransferDone,
    TransferFailed,
    ValuesLost,
)
from djinn_lab.memory.states import PLACES

RETRY_S = 0.25
FLOOR_MIN_S = 0.001
"""A wake-up is not compared with copying that takes less: it would say nothing of the copying."""
"""After a failed transfer its session is left alone for this long, doubled with each failure in a row."""
NOTIFY_EVERY_S = 0.25
"""The user of a deferred segment is notified of changes at most this often."""
PEAK_SHARE = 0.1
"""Weight of the latest segment in what segments usually need at once."""
LINK_SHARE = 0.2
"""Weight of the latest copy in the measured rate of a link."""
LINK_BYTES_MIN = 2**20
"""Smaller copies say nothing about a link's rate."""


def enact(tables: Tables, suggestions: Iterable[Suggestion]) -> None:
    for suggestion in suggestions:
        match suggestion:
            case Grant():
                grant(tables, suggestion.segment)
            case Defer():
                _defer(tables, suggestion)
            case StartTransfer():
                _transport(tables, suggestion)
            case ExpediteCopy():
                _hurry(tables, suggestion)
            case Reject():
                refuse(tables, suggestion.segment, suggestion.message, suggestion.advice)
            case RefuseMove():
                moving.cancel_move(tables, suggestion.session, suggestion.reason)


def grant(tables: Tables, segment: PlacedSegment) -> None:
    session, device = tables.session(segment.session), tables.device(segment.device)
    free_bytes = device.free_bytes()
    if segment in device.waiting:
        device.waiting.remove(segment)
    segment.granted = True
    device.usual_peak_bytes += PEAK_SHARE * (segment.peak_bytes - device.usual_peak_bytes)
    session.recoverable = False
    segment.base_bytes = device.session_bytes.get(session.session, 0) + session.rebuild_bytes
    segment.base_bytes += session.offloaded_bytes + max(0, session.replay_peak_bytes - segment.peak_bytes)
    device.granted[segment.job] = segment
    if is_new(session):
        session.guess_bytes = guess_bytes(segment, session.user, tables.admission_history)
        passed = (
            one for one in device.waiting if one.release.of_other_sessions and one.order < segment.order
        )
        if first := next(passed, None):
            first.passed_bytes += session.guess_bytes
    _leave_queue(tables, segment)
    waited_s = tables.now_s - segment.since_s - segment.lined_s
    statistics = tables.statistics
    statistics.capacity_taken(session.session, device.device, segment.peak_bytes, free_bytes)
    statistics.came_back(session.session)
    if segment.kind:
        statistics.note(tables.now_s, "grant", session.session, device.device, segment.peak_bytes, waited_s)
    if session.wish_s is not None:
        _woke(tables, session, segment, device)
    session.wish_s = session.ready_s = None
    session.prefetched = False
    session.settled_until_s = 0.0
    tables.changed(session)
    tables.out.append(GrantSegment(segment.job, segment.segment, waited_s))


def _woke(tables: Tables, session: SessionRecord, segment: PlacedSegment, device: Device) -> None:
    """Record a wake-up: from the wish until the state was there, and from then, or the call, until the
    grant."""
    assert session.wish_s is not None
    ready_s = session.ready_s if session.ready_s is not None else tables.now_s
    if segment.since_s > ready_s:
        seconds = ready_s - session.wish_s + tables.now_s - segment.since_s
    else:
        seconds = tables.now_s - session.wish_s
    seconds = max(0.0, seconds - segment.lined_s)
    copying_s = device.seconds_for(session.total_bytes) or 0.0
    floor_s = copying_s if copying_s >= FLOOR_MIN_S else None
    session.last_wake_s, session.last_floor_s = seconds, floor_s
    tables.statistics.woke(seconds, floor_s, session.wish_hit)
    reason = "it was on the device" if session.wish_hit else "it was restored"
    tables.statistics.note(
        tables.now_s, "wake", session.session, device.device, session.total_bytes, seconds, reason
    )


def _defer(tables: Tables, deferral: Defer) -> None:
    """Defer a segment, and notify its user of what changed, except for every queue position."""
    segment = deferral.segment
    queues = deferral.queued or segment.queued_since_s is not None
    decides = segment.release is not deferral.release  # the queue goes by it
    if segment.kind == deferral.kind or (tables.now_s < segment.notify_from_s and not (queues or decides)):
        return
    if deferral.queued:
        segment.queued_since_s = tables.now_s
    else:
        _leave_queue(tables, segment)
    if deferral.release.of_other_sessions and not segment.counted:
        tables.statistics.count(admission_waits=1)
        segment.counted = True
    segment.release, segment.notify_from_s = deferral.release, tables.now_s + NOTIFY_EVERY_S
    segment.kind, segment.reason, segment.estimate_s = deferral.kind, deferral.reason, deferral.estimate_s
    tables.changed(tables.session(segment.session))
    tables.statistics.note(
        tables.now_s, "defer", segment.session, segment.device, segment.peak_bytes, reason=deferral.reason
    )
    tables.out.append(
        DeferSegment(
            segment.job,
            segment.segment,
            deferral.reason,
            deferral.estimate_s,
            deferral.release,
            deferral.queued,
        )
    )


def _leave_queue(tables: Tables, segment: PlacedSegment) -> None:
    """Time in the device's queue is not time spent waiting for memory."""
    if segment.queued_since_s is not None:
        segment.lined_s += tables.now_s - segment.queued_since_s
        segment.queued_since_s = None


def refuse(tables: Tables, segment: PlacedSegment, message: str, advice: str) -> None:
    session = tables.session(segment.session)
    tables.drop(segment)
    session.failures = session.failed_restores = 0
    tables.out.append(RejectSegment(segment.job, segment.segment, message, advice, segment.node, segment.op))


def _transport(tables: Tables, ask: StartTransfer) -> None:
    session = ask.session
    device = tables.device_of(session)
    assert device is not None
    assert session.moving is None
    assert (session.place, ask.kind) in PLACES, (session.place, ask.kind)
    free_bytes = device.free_bytes()
    transfer = tables.begin(ask.kind, session, device, ask.expedited, ask.prefetch, ask.discard, ask.job)
    transfer.holds = ask.holds
    if ask.kind == "restore":
        tables.statistics.capacity_taken(session.session, device.device, transfer.nbytes, free_bytes)
        tables.statistics.count(prefetches=ask.prefetch)
    elif ask.kind == "evict":
        tables.statistics.eviction_began(session.session, device.device, transfer.nbytes)
    what = "prefetch" if ask.prefetch else ask.kind
    tables.statistics.note(
        tables.now_s, what, session.session, device.device, transfer.nbytes, reason=ask.reason
    )
    tables.out.append(_command(transfer))


def _command(transfer: TransferRecord) -> Command:
    number, session, device = transfer.number, transfer.session, transfer.device
    match transfer.kind:
        case "store":
            return StoreSession(number, session, device, transfer.expedited)
        case "evict":
            return EvictSession(number, session, device, transfer.discard)
        case "restore":
            return RestoreSession(number, session, device, transfer.expedited, transfer.job)
        case "demote":
            return DemoteSession(number, session, device)
        case "forget":
            return ForgetStored(number, session, device)


def _hurry(tables: Tables, expedite: ExpediteCopy) -> None:
    transfer = expedite.session.moving
    assert transfer is not None
    transfer.expedited = True
    if expedite.job:
        transfer.job, transfer.usable = expedite.job, False
    tables.out.append(ExpediteTransfer(transfer.number, transfer.session, transfer.device, expedite.job))


def transfer_of(
    tables: Tables, event: FirstValuesRestored | TransferDone | TransferFailed
) -> TransferRecord | None:
    """Return the transfer that the event is about; None for a transfer that was given up. Raises
    IllegalEvent."""
    transfer = tables.transfers.get(event.transfer)
    if transfer is None:
        if 0 < event.transfer <= tables.transfers_begun:
            return None
        raise IllegalEvent(f"transfer {event.transfer} was never begun")
    kind = "restore" if isinstance(event, FirstValuesRestored) else event.kind
    if (transfer.session, transfer.device, transfer.kind) != (event.session, event.device, kind):
        raise IllegalEvent(
            f"transfer {event.transfer} is the {transfer.kind} of {transfer.session} at {transfer.device},"
            f" not the {kind} of {event.session} at {event.device}"
        )
    return transfer


def opened(tables: Tables, transfer: TransferRecord, event: FirstValuesRestored) -> None:
    """Let the job use the session from now on, unless another job waits for it by now."""
    session = tables.session(transfer.session)
    if transfer.job != event.job:
        return
    transfer.usable = True
    if session.wish_s is not None and session.ready_s is None:
        session.ready_s = tables.now_s


def done(tables: Tables, transfer: TransferRecord, event: TransferDone) -> None:
    session, device = tables.session(transfer.session), tables.device(transfer.device)
    statistics = tables.statistics
    tables.end(transfer)
    session.failures, session.retry_s = 0, 0.0
    if transfer.kind == "restore":
        session.failed_restores = 0
    session.place = PLACES[session.place, transfer.kind]
    statistics.copied(tables.now_s, device.device, transfer.kind, event.copied_bytes)
    statistics.count(hash_checks=event.checked_pieces)
    _measure(device, event)
    match transfer.kind:
        case "store":
            statistics.count(stores=1)
            tables.sync(session, device)
            if event.whole and not any(segment.granted for segment in session.segments.values()):
                session.unstored_bytes = session.ready_bytes = 0
                session.recoverable = True
        case "evict":
            _evicted(tables, session, device, transfer)
        case "restore":
            statistics.count(restores=1)
            statistics.came_back(session.session)
            session.unstored_bytes = session.ready_bytes = 0
            granted = any(segment.granted for segment in session.segments.values())
            session.prefetched = transfer.prefetch and not granted
            if session.busy and not granted:
                stays_s = tables.policy.residency_copies * (tables.now_s - transfer.begun_s)
                session.settled_until_s = tables.now_s + stays_s
            if session.wish_s is not None and session.ready_s is None:
                session.ready_s = tables.now_s
            moving.drop_former_copy(tables, session)
            if device.session_bytes.get(session.session, 0):
                tables.sync(session, device)
        case "demote":
            statistics.count(demotions=1)
            device.host_full = False
        case "forget":
            device.host_full = False
            session.unstored_bytes = session.total_bytes
            session.ready_bytes = 0
            session.recoverable = False
    tables.changed(session)
    seconds = tables.now_s - transfer.begun_s
    statistics.note(
        tables.now_s, transfer.kind, session.session, device.device, event.copied_bytes, seconds, "done"
    )


def _evicted(tables: Tables, session: SessionRecord, device: Device, transfer: TransferRecord) -> None:
    tables.statistics.count(evictions=1)
    tables.statistics.count(prefetches_wasted=session.prefetched)
    session.prefetched = False
    session.wish_hit = False
    session.ready_s = None
    device.device_full = False
    session.unstored_bytes = session.ready_bytes = 0
    if device.on_disk_bytes.get(session.session, 0) >= session.total_bytes:
        session.place = "disk"
    session.recoverable = not transfer.discard
    session.keeper = None if transfer.discard else device.device
    if transfer.discard:
        session.place = "none"
        session.rebuild_bytes, session.total_bytes = session.total_bytes, 0


def _measure(device: Device, event: TransferDone) -> None:
    """Measure the link's rate, from copies that are large enough."""
    if event.kind not in ("store", "restore") or event.copied_bytes < LINK_BYTES_MIN or event.copy_s <= 0:
        return
    rate = event.copied_bytes / event.copy_s
    before = device.measured_bytes_per_s or rate
    device.measured_bytes_per_s = before + LINK_SHARE * (rate - before)


def failed(tables: Tables, transfer: TransferRecord, event: TransferFailed) -> None:
    session, device = tables.session(transfer.session), tables.device(transfer.device)
    tables.end(transfer)
    tables.statistics.count(failed_transfers=1)
    tables.statistics.note(
        tables.now_s, "failed", session.session, device.device, transfer.nbytes, reason=event.reason
    )
    if transfer.kind == "evict":
        tables.statistics.eviction_failed(session.session)
    if event.mismatch:
        tables.statistics.count(mismatches=1)
        lose(tables, session, device.device, session.total_bytes, event.reason)
        return
    if event.full is not None:
        tables.found_full(device, event.full)
    if transfer.kind == "restore":
        session.failed_restores += 1
        _take_back(tables, session)
    session.failures += 1
    session.retry_s = tables.now_s + RETRY_S * 2 ** min(session.failures - 1, 6)
    if session.target is not None and session.busy and transfer.kind in ("store", "evict"):
        moving.cancel_move(tables, session, event.reason)
    tables.changed(session)
    tables.sync(session, device)


def _take_back(tables: Tables, session: SessionRecord) -> None:
    """Revoke grants for which the session was open: their segments were preempted, and will be placed
    again."""
    granted = [segment for segment in session.segments.values() if segment.granted]
    for segment in granted:
        tables.drop(segment)
    if granted:
        phases.segment_over(tables, session)


def lose(tables: Tables, session: SessionRecord, device: str, nbytes: int, reason: str) -> None:
    """Record that the session's values are gone; the session stays open, and holds nothing."""
    session.place = "none"
    session.recoverable = False
    session.total_bytes = session.kv_bytes = session.unstored_bytes = session.ready_bytes = 0
    session.offloaded_bytes = 0
    session.prefetched = session.replays = False
    session.rebuild_bytes = session.replay_peak_bytes = 0
    session.wish_s = session.ready_s = None
    tables.changed(session)
    tables.inherit(session, None)
    keeper, session.keeper = session.keeper, None
    if keeper is not None and keeper != device:
        tables.out.append(DropParked(session.session, keeper))
    tables.statistics.count(values_lost=1)
    tables.statistics.swaps.pop(session.session, None)
    tables.statistics.note(tables.now_s, "lost", session.session, device, nbytes, reason=reason)
    tables.out.append(ValuesLost(session.session, device, nbytes, reason))
