"""The state of session memory, with look-ups that refuse what cannot happen."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.events import IllegalEvent
from djinn_lab.memory.machine.admission import AdmissionHistory
from djinn_lab.memory.machine.records import (
    Device,
    Index,
    Inheritance,
    PlacedSegment,
    SessionRecord,
    TransferRecord,
)
from djinn_lab.memory.machine.statistics import Statistics
from djinn_lab.memory.machine.wake_prediction import WakePredictor
from djinn_lab.memory.messages import Command, TransferKind
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.memory.states import PLACES, TRANSITIONS, Connection, Move, Phase

FULL_S = 1.0
"""A tier that refused a copy for lack of capacity is taken to be full for this long, unless something is
freed there: what did not fit in one piece may fit later, and less may fit now."""


class Tables:
    """The state of session memory. ``out``: the commands of the present event. ``host_links``: bytes a second
    that came to each host lately."""

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy = policy
        self.now_s = 0.0
        self.devices: dict[str, Device] = {}
        self.sessions: dict[str, SessionRecord] = {}
        self.segments: dict[str, PlacedSegment] = {}
        self.transfers: dict[int, TransferRecord] = {}
        self.host_links: dict[str, float] = {}
        self.wake_predictor = WakePredictor()
        self.admission_history = AdmissionHistory()
        self.statistics = Statistics()
        self.out: list[Command] = []
        self.transfers_begun = 0
        self.segments_placed = 0
        self._full: set[str] = set()

    def found_full(self, device: Device, tier: str) -> None:
        """Note that a transfer of the device failed for lack of capacity in the tier."""
        device.host_full |= tier == "host"
        device.disk_full |= tier == "disk"
        device.device_full |= tier == "device"
        device.full_s = self.now_s
        self._full.add(device.device)

    def expire_full(self) -> list[tuple[Device, bool, bool, bool]]:
        """Forget which tiers were found full long ago, and return what was forgotten. Done at every event,
        not only when the clock ticks: ticks without commands are not in the journal, and its replay must
        decide the same."""
        expired: list[tuple[Device, bool, bool, bool]] = []
        if not self._full:
            return expired
        for device in [self.devices[name] for name in self._full if name in self.devices]:
            if self.now_s - device.full_s >= FULL_S:
                expired.append((device, device.host_full, device.disk_full, device.device_full))
                device.host_full = device.disk_full = device.device_full = False
                self._full.discard(device.device)
        return expired

    def put_back_full(self, expired: Sequence[tuple[Device, bool, bool, bool]]) -> None:
        """Take :meth:`expire_full` back."""
        for device, host_full, disk_full, device_full in expired:
            device.host_full, device.disk_full, device.device_full = host_full, disk_full, device_full
            self._full.add(device.device)

    def device(self, device: str) -> Device:
        if device not in self.devices:
            raise IllegalEvent(f"{device} is unknown")
        return self.devices[device]

    def session(self, session: str) -> SessionRecord:
        if session not in self.sessions:
            raise IllegalEvent(f"session {session} is unknown")
        return self.sessions[session]

    def moved(self, session: str, move: Move) -> Connection | None:
        """The connection after the move."""
        known = self.sessions.get(session)
        connection = known.connection if known else None
        if (connection, move) not in TRANSITIONS:
            raise IllegalEvent(f"session {session} is {connection or 'unknown'} and cannot {move}")
        return TRANSITIONS[connection, move]

    def slowest_link_from(self, host: str) -> float | None:
        """Return the bytes a second to the slowest other host that has a device; None where none is known."""
        others = {device.host for device in self.devices.values()} - {host} if self.host_links else ()
        return min((self.host_links[other] for other in others if other in self.host_links), default=None)

    def device_of(self, session: SessionRecord) -> Device | None:
        return self.devices[session.device] if session.device is not None else None

    def changed(self, session: SessionRecord) -> None:
        """Index the session of a device anew."""
        if session.device in self.devices:
            self.devices[session.device].index.put(session)

    def inherit(self, session: SessionRecord, inherited: Inheritance | None) -> None:
        """Parked state of a dead process takes capacity below its device until it is restored or dropped:
        None."""
        for name in {one.device for one in (session.inherited, inherited) if one is not None}:
            device = self.devices.get(name)
            if device is not None:
                device.inherited.pop(session.session, None)
                device.host_full = device.disk_full = False
        session.inherited = inherited
        if inherited is not None and inherited.device in self.devices:
            self.devices[inherited.device].inherited[session.session] = session

    def count_devices(self) -> None:
        """Note that a device was added or lost."""
        for device in self.devices.values():
            device.alone = len(self.devices) == 1

    def begin(
        self,
        kind: TransferKind,
        session: SessionRecord,
        device: Device,
        expedited: bool = False,
        prefetch: bool = False,
        discard: bool = False,
        job: str = "",
    ) -> TransferRecord:
        self.transfers_begun += 1
        nbytes = session.unstored_bytes if kind == "store" else session.total_bytes
        if kind == "restore":
            nbytes = device.restore_bytes(session)
        transfer = TransferRecord(
            self.transfers_begun,
            kind,
            session.session,
            device.device,
            nbytes,
            self.now_s,
            expedited,
            prefetch,
            discard,
            job,
        )
        if kind == "store" and expedited:
            session.cleared = session.cleared + 1 if session.cleared_at == device.changes else 1
            session.cleared_at = device.changes
        elif kind == "store":
            session.copied_at = device.changes
        elif kind == "restore" and not expedited:
            session.fetched_at = device.changes
        self.transfers[transfer.number] = transfer
        device.moving[transfer.number] = transfer
        session.moving = transfer
        return transfer

    def end(self, transfer: TransferRecord) -> None:
        """Forget a transfer, however it ended; a later result is ignored."""
        del self.transfers[transfer.number]
        if transfer.device in self.devices:
            self.devices[transfer.device].moving.pop(transfer.number, None)
        session = self.sessions.get(transfer.session)
        if session is not None and session.moving is transfer:
            session.moving = None

    def drop(self, segment: PlacedSegment) -> None:
        """Remove a segment, and free its reserved bytes."""
        del self.segments[segment.job]
        session = self.sessions.get(segment.session)
        if session is not None:
            session.segments.pop(segment.job, None)
            self.changed(session)
        device = self.devices.get(segment.device)
        if device is not None:
            device.granted.pop(segment.job, None)
            device.index.unpositioned.pop(segment.job, None)
            if segment in device.waiting:
                device.waiting.remove(segment)

    def sync(self, session: SessionRecord, device: Device) -> None:
        """Adopt what the device last reported of a session that is, or may be, on it."""
        moving = session.moving.kind if session.moving else None
        if session.away or moving in ("evict", "restore", "demote"):
            return
        nbytes = device.session_bytes.get(session.session, 0)
        session.total_bytes = nbytes
        session.kv_bytes = min(nbytes, device.kv_bytes.get(session.session, 0))
        unstored_bytes = device.unstored_bytes.get(session.session, 0) if device.tiers else nbytes
        session.unstored_bytes = min(nbytes, unstored_bytes)
        session.ready_bytes = min(session.unstored_bytes, device.ready_bytes.get(session.session, 0))
        session.weight_bytes = device.weight_bytes.get(session.session, 0)
        session.offloaded_bytes = device.offloaded_bytes.get(session.session, 0)
        session.largest_bytes = max(session.largest_bytes, nbytes)
        session.place = "device" if nbytes or moving else "none"
        if nbytes and not session.replays:
            session.rebuild_bytes = 0
        self.changed(session)

    def next_timeout_s(self) -> float | None:
        """The next end of a lease or pause for which a segment waits."""
        due: list[float] = []
        for device in self.devices.values():
            if not (device.waiting and device.contended):
                continue
            due += [one.retry_s for one in device.index.paused.values()]
            leases = [
                (one.leased_until_s, one.leased_until_s - one.idle_since_s)
                for one in device.index.leased.values()
                if one.leased_until_s is not None
                and one.idle_since_s is not None
                and one.leased_until_s > self.now_s
            ]
            if not leases:
                continue
            longest_s = max(lease_s for _, lease_s in leases)
            since_s = device.waiting_since_s(self.now_s - longest_s)
            for until_s, lease_s in leases:
                due += (until_s, since_s + lease_s)
        return min((at_s for at_s in due if at_s > self.now_s), default=None)

    def validate(self) -> None:
        """Assert every invariant."""
        for name, device in self.devices.items():
            assert name == device.device
            assert device.memory_bytes > 0
            assert 0 <= device.used_bytes <= device.peak_bytes
            assert sum(device.session_bytes.values()) <= device.used_bytes
            assert all(nbytes > 0 for nbytes in device.session_bytes.values())
            assert [one.order for one in device.waiting] == sorted(one.order for one in device.waiting)
            assert not any(segment.granted for segment in device.waiting)
            assert all(segment.granted for segment in device.granted.values())
            assert all(self.transfers[number] is one for number, one in device.moving.items())
            looked_at = Index()
            for session in device.sessions.values():
                assert self.sessions.get(session.session) is session
                assert session.device == name
                looked_at.put(session)
            assert device.index == looked_at
            segments = [one for session in device.sessions.values() for one in session.segments.values()]
            assert {one.job for one in device.waiting} == {one.job for one in segments if not one.granted}
            left = {one for one in self.sessions.values() if one.inherited and one.inherited.device == name}
            assert set(device.inherited.values()) == left
        for name, session in self.sessions.items():
            assert name == session.session
            assert session.target is None or session.target in self.devices
            assert session.target != session.device or session.target is None
            assert session.keeper is None or session.keeper in self.devices
            assert session.device is None or session.session in self.devices[session.device].sessions
            self._validate_session(session)
        for number, transfer in self.transfers.items():
            assert 0 < number <= self.transfers_begun
            assert self.sessions[transfer.session].moving is transfer
        for job, segment in self.segments.items():
            assert self.sessions[segment.session].segments[job] is segment

    def _validate_session(self, session: SessionRecord) -> None:
        moving = session.moving
        assert moving is None or (session.place, moving.kind) in PLACES, (session.place, moving)
        assert (session.total_bytes > 0) == (session.place != "none") or moving is not None, session
        assert 0 <= session.ready_bytes <= session.unstored_bytes <= session.total_bytes
        assert session.connection is Connection.CONNECTED or session.phase is Phase.IO_WAIT or session.busy
        assert session.inherited is None or (session.away and session.keeper is None)
        assert not session.busy or session.announced_s is None
        for segment in session.segments.values():
            there = session.resident or session.open_to(segment.job)
            assert there or not segment.granted, "a session runs that is not on the device"
            assert session.target is None or not segment.granted, "a session runs that is about to leave"
            assert segment.device == session.device, "a segment waits where its session is not"
