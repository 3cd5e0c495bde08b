"""Whether a session that waits for capacity would have it sooner on another device."""

from __future__ import annotations

from djinn_lab.memory.machine import admission
from djinn_lab.memory.machine.records import Device, SessionRecord
from djinn_lab.memory.machine.tables import Tables

WAITED_COPIES = 10.0
"""A session goes to a less crowded device once it waited for this many times its own copy ..."""
WAITED_S_MIN = 0.5
"""... and at least so many seconds."""


class OtherDevices:
    """The devices as they are until the next event."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._competing: dict[tuple[str, int], int] = {}

    def has_capacity(self, session: str, device: str, peak_bytes: int, kept_bytes: int | None) -> bool:
        """Return whether another device, on which no segment waits for capacity, would admit the session with
        such a segment."""
        found = self._candidate(session, device)
        if found is None:
            return False
        known, there = found
        if there.short or any(segment.release.of_other_sessions for segment in there.waiting):
            return False
        return self._would_fit(known, there, peak_bytes, kept_bytes)

    def is_less_crowded(self, session: str, device: str, peak_bytes: int, kept_bytes: int | None) -> bool:
        """Return whether the session waited long for its device and would compete with less on another one.
        Competing: sessions that compute or wait there with the same or a better rank, in bytes, as a
        share of the device. The other device, with the session, must still be less crowded than the
        present one is without it. So each such move makes the more crowded device less so, and no session
        moves to and fro. The session's state lies below the devices, so that it costs no more to restore
        it there."""
        tables, found = self._tables, self._candidate(session, device)
        if found is None:
            return False
        known, there = found
        here = tables.devices.get(known.device or "")
        waiting = [segment for segment in known.segments.values() if not segment.granted]
        if here is None or not waiting or (known.resident and known.total_bytes > 0):
            return False
        first = min(waiting, key=lambda segment: segment.order)
        waited_s = max(WAITED_S_MIN, WAITED_COPIES * (here.seconds_for(known.total_bytes) or 0.0))
        if tables.now_s - first.since_s < waited_s:
            return False
        if any(admission.is_new(there.sessions[segment.session]) for segment in there.waiting):
            return False  # of a session that is about to come in there, nothing is counted yet
        rest = (self._competing_bytes(here, first.rank) - _needs_bytes(known)) / here.memory_bytes
        there_bytes = self._competing_bytes(there, first.rank) + known.total_bytes + peak_bytes
        if there_bytes / there.memory_bytes >= rest:
            return False
        return self._would_fit(known, there, peak_bytes, kept_bytes)

    def _candidate(self, session: str, device: str) -> tuple[SessionRecord, Device] | None:
        known, there = self._tables.sessions.get(session), self._tables.devices.get(device)
        if known is None or there is None or known.device == device or known.moving is not None:
            return None
        return known, there

    def _would_fit(
        self, session: SessionRecord, device: Device, peak_bytes: int, kept_bytes: int | None
    ) -> bool:
        tables = self._tables
        share, history = tables.policy.admission_share, tables.admission_history
        return admission.would_fit(device, session, peak_bytes, kept_bytes, share, history, tables.now_s)

    def _competing_bytes(self, device: Device, rank: int) -> int:
        """Bytes of the sessions that compute or wait on the device with the same or a better rank."""
        found = self._competing.get((device.device, rank))
        if found is None:
            segments = (*device.waiting, *device.granted.values())
            urgent = {segment.session for segment in segments if segment.rank <= rank}
            found = sum(_needs_bytes(device.sessions[name]) for name in urgent)
            self._competing[device.device, rank] = found
        return found


def _needs_bytes(session: SessionRecord) -> int:
    """Return the bytes that the session needs on its device while its cell runs."""
    return session.total_bytes + max(segment.peak_bytes for segment in session.segments.values())
