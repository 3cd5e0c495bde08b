"""Capacity on the host and the disk: how a session is evicted, what may be stored, and what is demoted
for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from djinn_lab.memory.machine.costs import may_rebuild
from djinn_lab.memory.machine.ranking import Victim, after_s
from djinn_lab.memory.machine.records import Device, PlacedSegment, SessionRecord
from djinn_lab.memory.machine.suggestions import ExpediteCopy, StartTransfer, Suggestion
from djinn_lab.memory.policy import MemoryPolicy

CLEARED_MAX = 2
"""Stores of a session for an eviction between two events of users or cells; then the copy is kept."""


@dataclass(slots=True)
class HostCapacity:
    """Host capacity for the victims of one segment. ``at_once_bytes``: what one store could take, once
    redundant copies are forgotten and sessions for which the disk has capacity are demoted. ``bytes_left``:
    what several stores could take one after the other, since stored sessions may be demoted in turn."""

    at_once_bytes: int
    bytes_left: int

    @classmethod
    def of(
        cls,
        device: Device,
        policy: MemoryPolicy,
        now_s: float,
        behind: PlacedSegment | None,
        without: str = "",
        leaving: Collection[str] = (),
    ) -> HostCapacity:
        """Capacity for victims of this segment. ``without``: as if nothing of this parked session lay
        below the device. ``leaving``: as if these sessions had been evicted."""
        spare_bytes = taken_bytes = 0
        disk_bytes = device.disk_free_bytes()
        for session in device.sessions.values():
            if session.session == without or (_redundant(session, device) and session.session not in leaving):
                spare_bytes += _on_host_bytes(session, device)
                disk_bytes += _on_disk_bytes(session, device)
            elif session.session in leaving:
                taken_bytes += session.unstored_bytes
        demotions = _demotions(device, policy, now_s, 0.0, behind, disk_bytes)
        demoted = sum(_on_host_bytes(one, device) for one in demotions if one.session != without)
        host_bytes = device.host_free_bytes() + _coming_bytes(device) + spare_bytes + demoted - taken_bytes
        bytes_left = host_bytes + disk_bytes - demoted
        return cls(bytes_left if device.offloaded_bytes else host_bytes, bytes_left)

    def can_take(self, session: SessionRecord) -> bool:
        """Return whether the session could be stored whole; if so, claim the bytes."""
        if session.unstored_bytes == 0 or session.moving is not None:
            return True
        if min(self.at_once_bytes, self.bytes_left) < session.total_bytes:
            return False
        self.bytes_left -= session.total_bytes
        return True


def _on_disk_bytes(session: SessionRecord, device: Device) -> int:
    """Bytes on the disk, of the session's state or of copies."""
    return min(session.total_bytes, device.on_disk_bytes.get(session.session, 0))


def _on_host_bytes(session: SessionRecord, device: Device) -> int:
    """Bytes on the host, of the session's state or of copies."""
    unstored_bytes = session.unstored_bytes if session.place == "device" else 0
    return max(0, session.total_bytes - unstored_bytes - _on_disk_bytes(session, device))


def _coming_bytes(device: Device) -> int:
    """Bytes on the host that are about to be freed."""
    return sum(
        _on_host_bytes(device.sessions[transfer.session], device)
        for transfer in device.moving.values()
        if transfer.kind in ("forget", "demote") and transfer.session in device.sessions
    )


def _redundant(session: SessionRecord, device: Device) -> bool:
    """Return whether the session is on the device with a copy below that may be forgotten: a copy that was
    made for an eviction again and again may not."""
    here = session.place == "device" and session.moving is None
    return here and (session.cleared_at != device.changes or session.cleared < CLEARED_MAX)


def _demotions(
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    later_than_s: float,
    behind: PlacedSegment | None,
    disk_bytes: int,
) -> list[SessionRecord]:
    """Sessions that can be demoted into so many bytes of disk, each by the process that parked it. Idle
    sessions come first, the latest expected first. Then come sessions that wait ``behind`` this segment,
    the last first, and at the end its own session, which is restored from the disk so that its victim can
    use the host."""
    parked = [
        session
        for session in device.sessions.values()
        if session.place == "host"
        and session.moving is None
        and session.keeper == session.device
        and session.retry_s <= now_s
    ]
    idle = [(after_s(one, policy, now_s), one.session, one) for one in parked if not one.busy]
    chosen = [
        one for due_s, _, one in sorted(idle, key=lambda one: (-one[0], one[1])) if due_s > later_than_s
    ]
    if behind is not None:
        waiting = [(one.earliest, one) for one in parked if one.busy]
        later = [one for one in waiting if one[0] is not None and one[0] >= behind.order]
        chosen += [one for _, one in sorted(later, key=lambda one: one[0] or (), reverse=True)]
    found = []
    for session in chosen:
        nbytes = _on_host_bytes(session, device)
        if nbytes <= disk_bytes:
            found.append(session)
            disk_bytes -= nbytes
    return found


def free_host(
    device: Device,
    wanted_bytes: int,
    beneficiary: SessionRecord,
    policy: MemoryPolicy,
    now_s: float,
    *,
    later_than_s: float = 0.0,
    behind: PlacedSegment | None = None,
    forgettable: Collection[str] | None = None,
) -> Iterator[Suggestion]:
    """Free ``wanted_bytes`` on the host for the beneficiary. First forget copies of resident sessions,
    the soonest expected first; then demote absent ones, the latest expected first; and forget copies on
    the disk where it has no capacity for them. Do nothing where all of it would not free enough: else a
    copy would be forgotten and made again for ever. ``later_than_s``: demote only sessions expected
    later. ``behind``: sessions that wait behind this segment may be demoted, too. ``forgettable``: forget
    only these copies."""
    missing = wanted_bytes - device.host_free_bytes() - _coming_bytes(device)
    due = {name: after_s(session, policy, now_s) for name, session in device.sessions.items()}
    redundant = [
        session
        for session in device.sessions.values()
        if _redundant(session, device)
        and session is not beneficiary
        and (forgettable is None or session.session in forgettable)
    ]
    redundant.sort(key=lambda one: (due[one.session], one.session))
    forgotten, spare = list[SessionRecord](), list[SessionRecord]()
    disk_bytes = device.disk_free_bytes()
    for session in redundant:
        if missing > 0 and _on_host_bytes(session, device) > 0:
            missing -= _on_host_bytes(session, device)
            disk_bytes += _on_disk_bytes(session, device)
            forgotten.append(session)
        elif _on_disk_bytes(session, device) > 0:
            spare.append(session)
    spare_bytes = sum(_on_disk_bytes(one, device) for one in spare)
    demoted = []
    for session in _demotions(device, policy, now_s, later_than_s, behind, disk_bytes + spare_bytes):
        if missing > 0:
            missing -= _on_host_bytes(session, device)
            disk_bytes -= _on_host_bytes(session, device)
            demoted.append(session)
    for session in spare:
        if disk_bytes < 0:
            disk_bytes += _on_disk_bytes(session, device)
            forgotten.append(session)
    if missing <= 0:
        reason = f"host memory for {beneficiary.session}"
        yield from (StartTransfer("forget", session, reason=reason) for session in forgotten)
        yield from (StartTransfer("demote", session, reason=reason) for session in demoted)


def evict(
    victim: Victim,
    device: Device,
    policy: MemoryPolicy,
    now_s: float,
    reason: str,
    stalled_bytes: int = 0,
    behind: PlacedSegment | None = None,
) -> Iterator[Suggestion]:
    """Evict a session: at once where it is stored whole, else by storing it first, or by dropping what
    its client can rebuild. ``behind``: for which segment."""
    session = victim.session
    if session.moving is not None:
        yield from expedite(session)
    elif drops(victim, policy, stalled_bytes):
        yield StartTransfer("evict", session, discard=True, reason=reason)
    elif session.unstored_bytes == 0:
        yield StartTransfer("evict", session, reason=reason)
    elif device.store_free_bytes() >= session.unstored_bytes:
        yield StartTransfer("store", session, expedited=True, reason=reason)
    elif may_rebuild(session, policy, victim.after_s, stalled_bytes):
        yield StartTransfer("evict", session, discard=True, reason=f"{reason}; rebuilding it costs least")
    else:
        yield from free_host(device, session.unstored_bytes, session, policy, now_s, behind=behind)


def drops(victim: Victim, policy: MemoryPolicy, stalled_bytes: int) -> bool:
    """Return whether the policy drops the victim's state without considering a swap."""
    return policy.recompute == "always" and may_rebuild(victim.session, policy, victim.after_s, stalled_bytes)


def expedite(session: SessionRecord, early: str = "") -> Iterator[Suggestion]:
    """``early``: the job that may start before the end of the transfer."""
    moving = session.moving
    if moving is not None and (not moving.expedited or (early and early != moving.job)):
        yield ExpediteCopy(session, early)
