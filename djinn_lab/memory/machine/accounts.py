"""The state machine of session memory: events in, commands out. Theory of operation:
:mod:`djinn_lab.memory.states`."""

from __future__ import annotations

from djinn_lab.events import (
    ClockTicked,
    DeviceAdded,
    HeartbeatChanged,
    IllegalEvent,
    SessionClosed,
    SessionDetached,
    WorkerDied,
)
from djinn_lab.memory.machine import (
    admission,
    enacting,
    heartbeats,
    moving,
    oversize,
    phases,
    reports,
    returning,
    serving_order,
    views,
)
from djinn_lab.memory.machine.background import in_background, wanted_copy
from djinn_lab.memory.machine.other_devices import OtherDevices
from djinn_lab.memory.machine.records import Device, PlacedSegment, SessionRecord
from djinn_lab.memory.machine.serving import serve
from djinn_lab.memory.machine.tables import Tables
from djinn_lab.memory.messages import (
    AdmitSegment,
    CellEnded,
    Command,
    CopyWanted,
    Event,
    FirstValuesRestored,
    FreeSession,
    HostLinkMeasured,
    MemoryReported,
    PhaseSignalled,
    QueueOrdered,
    SegmentPlaced,
    SegmentProposed,
    SegmentWithdrawn,
    SessionBound,
    SessionOpened,
    SessionResumed,
    SessionReturned,
    TransferDone,
    TransferFailed,
)
from djinn_lab.memory.policy import POLICIES, MemoryPolicy
from djinn_lab.memory.snapshot import DeviceAccount, MemorySnapshot, SessionAccount
from djinn_lab.memory.states import Move

ASSUMED_BYTES_PER_S = 2**30
"""Of a link without a known rate, which copies nothing for free."""


class MemoryAccounts:
    """Account for the state of every session, by tier, and for memory grants. Driven by one thread."""

    def __init__(self, policy: MemoryPolicy = POLICIES["default"]) -> None:
        self.policy = policy
        self._tables = Tables(policy)

    def handle(self, event: Event) -> list[Command]:
        """Apply one event. Raises IllegalEvent, with nothing changed, when it cannot happen now."""
        tables = self._tables
        before_s = tables.now_s
        tables.now_s = max(before_s, event.at_s)
        changed = self._changed(event)
        if changed is not None:
            changed.changes += 1
        expired = tables.expire_full()
        try:
            self._apply(event)
        except IllegalEvent:
            tables.now_s = before_s
            tables.put_back_full(expired)
            if changed is not None:
                changed.changes -= 1
            raise
        commands, tables.out = tables.out, []
        return commands

    def check(
        self, event: DeviceAdded | HeartbeatChanged | WorkerDied | SessionDetached | SessionClosed
    ) -> None:
        """Raise IllegalEvent for an event that :meth:`handle` would refuse; change nothing."""
        match event:
            case DeviceAdded():
                self._check_device(event)
            case HeartbeatChanged():
                heartbeats.check(self._tables, event)
            case WorkerDied():
                self._tables.device(event.device)
            case SessionDetached():
                self._tables.moved(event.session, Move.DETACH)
            case SessionClosed():
                self._tables.moved(event.session, Move.CLOSE)

    def check_part(self, part: str, device: str, peak_bytes: int, is_open: bool) -> None:
        """Raise IllegalEvent where a gang part cannot be opened, bound to the device and placed there; change
        nothing."""
        tables = self._tables
        if not is_open:
            tables.moved(part, Move.OPEN)
        there, session = tables.device(device), tables.sessions.get(part)
        elsewhere = session is not None and (session.target or session.device) != there.device
        if session is not None and elsewhere and any(one.granted for one in session.segments.values()):
            raise IllegalEvent(f"session {part} has a segment at {session.device}")
        if part in tables.segments:
            raise IllegalEvent(f"a segment of job {part} is placed already")
        if peak_bytes < 0:
            raise IllegalEvent(f"a segment of job {part} needs {peak_bytes} bytes")

    def next_timeout_s(self) -> float | None:
        """Return when a :class:`ClockTicked` would change something for waiting segments, None if time alone
        changes nothing."""
        return self._tables.next_timeout_s()

    def device(self, device: str) -> DeviceAccount | None:
        known = self._tables.devices.get(device)
        return views.device_account(self._tables, known) if known else None

    def session(self, session: str) -> SessionAccount | None:
        known = self._tables.sessions.get(session)
        return views.session_account(self._tables, known) if known else None

    def knows(self, session: str) -> bool:
        """Return whether the session is open."""
        return session in self._tables.sessions

    def has_device(self, device: str) -> bool:
        """Return whether the device is up."""
        return device in self._tables.devices

    def bound_for(self, session: str) -> str | None:
        """The device of the session, or its target device while the session moves."""
        known = self._tables.sessions.get(session)
        return known.target or known.device if known is not None else None

    def home_of(self, session: str) -> str | None:
        """The device to which the session is bound."""
        known = self._tables.sessions.get(session)
        return known.device if known is not None else None

    def can_leave(self, device: str) -> tuple[str, ...]:
        """Return the sessions of a device that need nothing from its worker to be bound to another one."""
        known = self._tables.devices.get(device)
        bound = known.sessions.values() if known is not None else ()
        return tuple(sorted(one.session for one in bound if heartbeats.can_leave(one)))

    def open_jobs(self, device: str, sessions: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Jobs on the device, of these sessions or of all, that were granted before the end of their
        sessions' restores. Until that end the parked copy is still the session's state."""
        known = self._tables.devices.get(device)
        granted = known.granted.values() if known is not None else ()
        named = [one for one in granted if sessions is None or one.session in sessions]
        return tuple(one.job for one in named if self._tables.sessions[one.session].away)

    def session_bytes(self, session: str) -> int:
        """Bytes of a session on all tiers, as last reported."""
        known = self._tables.sessions.get(session)
        away = known.total_bytes if known is not None and known.away else 0
        here = sum(device.session_bytes.get(session, 0) for device in self._tables.devices.values())
        return max(away, here)

    def move_s(self, session: str) -> float | None:
        """Predicted seconds to bring the session's state to another device: out, and in again. None where the
        host has no capacity for it on the way, or its worker does not answer."""
        known = self._tables.sessions.get(session)
        device = self._tables.device_of(known) if known is not None else None
        if known is None or device is None:
            return 0.0
        if not device.heard and not heartbeats.can_leave(known):
            return None
        out_bytes = known.unstored_bytes if known.place == "device" else 0
        if out_bytes > device.host_bytes:
            return None
        nbytes = out_bytes + known.total_bytes
        return device.seconds_for(nbytes) or nbytes / ASSUMED_BYTES_PER_S

    def other_host_s(self, session: str) -> float:
        """Predicted seconds more to move the session to a device of another host: all of it over the slowest
        link between hosts. 0 where there is no other host, or no link's rate is known."""
        known = self._tables.sessions.get(session)
        device = self._tables.device_of(known) if known is not None else None
        if known is None or device is None:
            return 0.0
        rate = self._tables.slowest_link_from(device.host)
        return self.session_bytes(session) / rate if rate is not None else 0.0

    def other_devices(self) -> OtherDevices:
        """Return which other devices have capacity for a session; valid until the next event."""
        return OtherDevices(self._tables)

    def copy_s(self, nbytes: int) -> float:
        """Predicted seconds to copy so many bytes over the slowest device's link; 0 while no rate is
        known."""
        devices = self._tables.devices.values()
        return max((device.seconds_for(nbytes) or 0.0 for device in devices), default=0.0)

    def snapshot(self) -> MemorySnapshot:
        return views.snapshot(self._tables)

    def validate(self) -> None:
        """Assert every invariant."""
        self._tables.validate()

    # -- events --------------------------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        """Apply an event, frequent kinds first. Each handler raises before it changes anything."""
        match event:
            case SegmentPlaced():
                self._place(event)
            case MemoryReported():
                for device in reports.take(self._tables, event):
                    self._plan(device, background=False)
            case SegmentWithdrawn():
                self._withdraw(event)
            case CellEnded():
                session = self._tables.session(event.session)
                session.job = ""
                phases.cell_ended(self._tables, session)
                self._plan(self._tables.device_of(session))
            case TransferDone() | TransferFailed():
                self._end_transfer(event)
            case FirstValuesRestored():
                transfer = enacting.transfer_of(self._tables, event)
                if transfer is not None:
                    enacting.opened(self._tables, transfer, event)
                    self._plan(self._tables.devices[transfer.device], background=False)
            case CopyWanted():
                session = self._tables.session(event.session)
                at = self._tables.device_of(session)
                if at is not None and at.tiers and self.policy.moves:
                    enacting.enact(self._tables, wanted_copy(at, session, event.at_s, event.holds))
            case PhaseSignalled():
                self._tables.out.append(phases.signal(self._tables, event))
                self._plan(self._tables.device_of(self._tables.session(event.session)))
            case ClockTicked():
                self._tick()
            case SegmentProposed():
                self._propose(event)
            case _:
                self._apply_rare(event)

    def _apply_rare(self, event: Event) -> None:
        match event:
            case DeviceAdded():
                self._add_device(event)
            case WorkerDied():
                for device in reports.lose_worker(self._tables, event):
                    self._plan(device)
            case HeartbeatChanged():
                self._plan(heartbeats.change(self._tables, event))
            case SessionOpened():
                connection = self._tables.moved(event.session, Move.OPEN)
                assert connection is not None
                self._tables.sessions[event.session] = SessionRecord(
                    event.session, event.user, connection, opened_s=event.at_s, temporary=event.temporary
                )
            case SessionReturned():
                returning.return_session(self._tables, event)
            case SessionDetached():
                self._detach(event)
            case SessionResumed():
                self._resume(event)
            case SessionClosed():
                self._close(event)
            case SessionBound():
                for device in moving.bind(self._tables, event):
                    self._plan(device, background=False)
            case QueueOrdered():
                self._order_line(event)
            case HostLinkMeasured():
                self._tables.host_links[event.host] = event.bytes_per_s
            case _:
                raise AssertionError(event)

    def _changed(self, event: Event) -> Device | None:
        """The device of the session or cell that the event is about; None for results of copies, and
        time."""
        tables = self._tables
        match event:
            case MemoryReported():
                return tables.devices.get(event.device) if event.job is not None else None
            case SegmentWithdrawn():
                segment = tables.segments.get(event.job)
                return tables.devices[segment.device] if segment is not None else None
            case (
                SegmentPlaced()
                | CellEnded()
                | PhaseSignalled()
                | SessionDetached()
                | SessionResumed()
                | SessionClosed()
                | SessionBound()
            ):
                session = tables.sessions.get(event.session)
                return tables.device_of(session) if session is not None else None
            case _:
                return None

    def _plan(self, device: Device | None, background: bool = True) -> None:
        if device is None:
            return
        tables = self._tables
        if not device.heard:
            enacting.enact(tables, heartbeats.plan_silent(device))
            return
        if background or device.contended:
            enacting.enact(tables, serve(device, self.policy, tables.admission_history, tables.now_s))
        if background:
            enacting.enact(tables, in_background(device, self.policy, tables.now_s))

    def _tick(self) -> None:
        tables = self._tables
        at_rest = self.policy.eager_after_s is None
        for device in list(tables.devices.values()):
            if at_rest and device.heard and not device.waiting and device.index.empty:
                continue
            phases.end_leases(tables, device)
            self._plan(device)

    # -- segments ------------------------------------------------------------------------------------------

    def _place(self, event: SegmentPlaced) -> None:
        """Grant at once where the session is on the device and capacity is free; else the segment waits."""
        tables = self._tables
        session = tables.session(event.session)
        device = tables.device_of(session)
        if device is None:
            raise IllegalEvent(f"session {event.session} is bound to no device")
        if event.job in tables.segments:
            raise IllegalEvent(f"a segment of job {event.job} is placed already")
        if event.peak_bytes < 0:
            raise IllegalEvent(f"a segment of job {event.job} needs {event.peak_bytes} bytes")
        target = tables.device(session.target) if session.target is not None else device
        if not oversize.can_run(event, target, self.policy):
            tables.out.append(oversize.never_fits(event, [target], bound=True))
            return
        if session.job != event.job:
            tables.segments_placed += 1
            session.job, session.job_arrival = event.job, tables.segments_placed
        segment = PlacedSegment(
            event.job,
            event.segment,
            event.session,
            device.device,
            oversize.most_bytes(event.peak_bytes, target, self.policy),
            event.rank,
            session.job_arrival,
            event.at_s,
            event.node,
            event.op,
            batch=event.batch,
            kept_bytes=None
            if event.kept_bytes is None
            else oversize.most_bytes(event.kept_bytes, target, self.policy),
            turn=device.turn_of(session, event.job),
        )
        phases.placed(tables, session)
        tables.segments[event.job] = session.segments[event.job] = segment
        at_once = (
            device.heard
            and session.resident
            and not session.held
            and session.target is None
            and not device.contended
            and serving_order.is_near_front(segment, device, self.policy)
            and not admission.is_new(session)
            and serving_order.needed_bytes(session, segment, device) <= device.free_bytes()
        )
        if at_once:
            enacting.grant(tables, segment)
            return
        device.enqueue(segment)
        tables.changed(session)
        self._plan(device, background=False)

    def _order_line(self, event: QueueOrdered) -> None:
        device = self._tables.device(event.device)
        serving_order.order(self._tables, device, event.jobs)
        self._plan(device, background=False)

    def _withdraw(self, event: SegmentWithdrawn) -> None:
        segment = self._tables.segments.get(event.job)
        if segment is None:
            return
        self._tables.drop(segment)
        phases.segment_over(self._tables, self._tables.session(segment.session))
        self._plan(self._tables.devices[segment.device])

    def _propose(self, event: SegmentProposed) -> None:
        session = self._tables.session(event.session)
        devices = list(self._tables.devices.values())
        if session.device is not None:
            devices = [self._tables.devices[session.target or session.device]]
        if not devices or any(oversize.can_run(event, device, self.policy) for device in devices):
            self._tables.out.append(AdmitSegment(event.job, event.segment))
        else:
            bound = session.device is not None
            self._tables.out.append(oversize.never_fits(event, devices, bound))

    # -- transfers -----------------------------------------------------------------------------------------

    def _end_transfer(self, event: TransferDone | TransferFailed) -> None:
        transfer = enacting.transfer_of(self._tables, event)
        if transfer is None:
            return
        if isinstance(event, TransferDone):
            enacting.done(self._tables, transfer, event)
        else:
            enacting.failed(self._tables, transfer, event)
        reached = moving.finish_move(self._tables, self._tables.session(transfer.session))
        self._plan(self._tables.devices[transfer.device])
        self._plan(reached)

    # -- devices and sessions ------------------------------------------------------------------------------

    def _check_device(self, event: DeviceAdded) -> None:
        if event.device in self._tables.devices:
            raise IllegalEvent(f"{event.device} is already known")
        if event.memory_bytes <= 0:
            raise IllegalEvent(f"{event.device} with {event.memory_bytes} bytes")
        if min(event.host_bytes, event.disk_bytes) < 0:
            raise IllegalEvent(f"{event.device} with negative host or disk capacity")

    def _add_device(self, event: DeviceAdded) -> None:
        self._check_device(event)
        self._tables.devices[event.device] = Device(
            event.device,
            event.memory_bytes,
            event.host_bytes,
            event.disk_bytes,
            event.link_bytes_per_s,
            slots=max(1, event.slots),
            host=event.host,
        )
        for session in self._tables.sessions.values():
            if session.inherited is not None and session.inherited.device == event.device:
                self._tables.inherit(session, session.inherited)
        self._tables.count_devices()

    def _detach(self, event: SessionDetached) -> None:
        connection = self._tables.moved(event.session, Move.DETACH)
        assert connection is not None
        session = self._tables.session(event.session)
        session.connection = connection
        session.deferred = None
        phases.rest(self._tables, session, event.at_s, None)
        self._plan(self._tables.device_of(session))

    def _resume(self, event: SessionResumed) -> None:
        connection = self._tables.moved(event.session, Move.RESUME)
        assert connection is not None
        session = self._tables.session(event.session)
        session.connection = connection
        phases.resume(self._tables, session)
        self._plan(self._tables.device_of(session))

    def _close(self, event: SessionClosed) -> None:
        tables = self._tables
        tables.moved(event.session, Move.CLOSE)
        session = tables.sessions.pop(event.session)
        left_at = session.inherited
        tables.inherit(session, None)
        holding = {name for name, device in tables.devices.items() if event.session in device.session_bytes}
        devices = holding | {one for one in (session.device, session.keeper) if one is not None}
        for segment in list(session.segments.values()):
            tables.drop(segment)
        if session.moving is not None:
            tables.end(session.moving)
        tables.statistics.count(prefetches_wasted=session.prefetched)
        tables.statistics.swaps.pop(event.session, None)
        tables.wake_predictor.forget(event.session)
        if not session.temporary:
            tables.admission_history.closed(session, tables.now_s)
        tables.out += [FreeSession(event.session, device) for device in sorted(devices)]
        device = tables.device_of(session)
        if device is not None:
            device.remove(session)
            device.host_full = device.disk_full = False
            self._plan(device)
        if left_at is not None and left_at.device in tables.devices:
            self._plan(tables.devices[left_at.device])
