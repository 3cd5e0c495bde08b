"""The order in which waiting segments are served, and what each needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from djinn_lab.memory.machine.records import FIRST, LAST, Device, PlacedSegment, SessionRecord
from djinn_lab.memory.machine.tables import Tables
from djinn_lab.memory.policy import MemoryPolicy


def order(tables: Tables, device: Device, jobs: Sequence[str]) -> None:
    """Adopt the queue's order. The cost is that of the jobs named now or last, however many wait."""
    named = device.positions.keys() | set(jobs)
    device.positions = {job: turn for turn, job in enumerate(jobs)}
    for job in sorted(named):
        segment = tables.segments.get(job)
        if segment is None or segment.device != device.device:
            continue
        turn = device.turn_of(tables.session(segment.session), job)
        if turn == segment.turn:
            continue
        if segment.granted:
            segment.turn = turn
        else:
            device.waiting.remove(segment)
            segment.turn = turn
            device.enqueue(segment)


class ServingOrder:
    """Iterate over waiting segments: ``first`` these, then in order. Behind a segment that is ``far``
    from the front only two kinds follow: segments that were not notified that they are far, and segments of
    moving sessions. So the cost of a plan does not grow with the number of waiting segments."""

    def __init__(self, device: Device, first: Iterable[PlacedSegment]) -> None:
        self._device = device
        self._first = {segment.job: segment for segment in first}
        self.far = False

    def __iter__(self) -> Iterator[PlacedSegment]:
        seen: set[str] = set()
        for segment in self._first_then(self._device.waiting.copy()):
            if self.far:
                break
            seen.add(segment.job)
            yield segment
        unpositioned = self._device.index.unpositioned
        for segment in self._first_then(in_order(unpositioned.values())):
            if segment.job not in seen and segment.job in unpositioned:  # still
                yield segment

    def _first_then(self, others: list[PlacedSegment]) -> Iterator[PlacedSegment]:
        yield from self._first.values()
        for segment in others:
            if segment.job not in self._first:
                yield segment


def in_order(segments: Iterable[PlacedSegment]) -> list[PlacedSegment]:
    """Sort segments by the device's queue order."""
    return sorted(segments, key=lambda segment: segment.order)


def is_near_front(segment: PlacedSegment, device: Device, policy: MemoryPolicy) -> bool:
    """Return whether capacity is reserved for the segment. Granted segments behind it in the device's queue
    do not count, nor do those of its batch, which may run with it. Of granted segments without a queue
    position, no more run than there are slots."""
    if segment.turn == FIRST:
        return True
    batch, granted = segment.batch, device.granted.values()
    turns = [other.turn for other in granted if not batch or other.batch != batch]
    if segment.turn == LAST:
        before = len(turns)
    else:
        before = sum(turn <= segment.turn for turn in turns) + min(turns.count(LAST), device.slots)
    return before < device.slots + policy.ready_ahead


def needed_bytes(session: SessionRecord, segment: PlacedSegment, device: Device, runs: bool = True) -> int:
    """Capacity that is still to be found for the segment; bytes of a restore under way are counted
    already. Never more than the device has beside what the session has there, as long as the tiers below have
    capacity for the rest: values of the session are offloaded then. ``runs``: else for its session's state
    alone."""
    restoring = session.moving is not None and session.moving.kind == "restore"
    absent = (session.away and not restoring) or not session.resident
    if restoring:
        absent = False
    peak_bytes = max(segment.peak_bytes, session.replay_peak_bytes) if runs else 0
    needed = peak_bytes + session.rebuild_bytes + (device.restore_bytes(session) if absent else 0)
    if not device.tiers:
        return needed
    here = 0 if absent else session.total_bytes
    beside = max(0, device.memory_bytes - here - min(session.weight_bytes, device.shared_bytes))
    stored_bytes = session.total_bytes - session.unstored_bytes
    below_bytes = device.host_free_bytes() + device.disk_free_bytes() + stored_bytes
    if needed - beside > below_bytes:
        return needed
    return min(needed + (session.offloaded_bytes if runs else 0), beside)


def early_job(segment: PlacedSegment, session: SessionRecord, device: Device, policy: MemoryPolicy) -> str:
    """The segment's job, where a start before the end of the restore is worth it; else empty."""
    if policy.early_start_s is None or session.earliest != segment.order:
        return ""
    copy_s = device.seconds_for(session.total_bytes)
    return segment.job if copy_s is None or copy_s > policy.early_start_s else ""
