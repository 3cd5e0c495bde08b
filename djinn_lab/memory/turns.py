"""In which order the segments of a device are looked at: as the device's line has it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence

from djinn_lab.memory.records import Device, Segment
from djinn_lab.memory.tables import Tables


def order(tables: Tables, device: Device, jobs: Sequence[str]) -> None:
    """Take over whose turn is near. Costs what is named, now or last, however many wait."""
    named = device.line.keys() | set(jobs)
    device.line = {job: turn for turn, job in enumerate(jobs)}
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
            insort(device.waiting, segment, key=_order)


class Turns:
    """The segments that wait, ``first`` these, then in order. Behind one whose turn is ``far`` only those
    that do not know that theirs is, too, and those of sessions bound for another device: a plan costs no more
    where thousands wait."""

    def __init__(self, device: Device, first: Iterable[Segment]) -> None:
        self._device = device
        self._first = {segment.job: segment for segment in first}
        self.far = False

    def __iter__(self) -> Iterator[Segment]:
        seen: set[str] = set()
        for segment in self._first_then(self._device.waiting.copy()):
            if self.far:
                break
            seen.add(segment.job)
            yield segment
        unlined = self._device.index.unlined
        for segment in self._first_then(in_order(unlined.values())):
            if segment.job not in seen and segment.job in unlined:  # still
                yield segment

    def _first_then(self, others: list[Segment]) -> Iterator[Segment]:
        yield from self._first.values()
        for segment in others:
            if segment.job not in self._first:
                yield segment


def in_order(segments: Iterable[Segment]) -> list[Segment]:
    """As the device's line has them."""
    return sorted(segments, key=_order)


def _order(segment: Segment) -> tuple[int, int, int]:
    return segment.order
