"""What the pool sent to a host, and what the segments under way there read of it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from djinn_lab.protocol.worker import RunSegment


class AwaitedSegment(NamedTuple):
    """A segment without an answer, and the uploads and results that it reads."""

    session: str
    uploads: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(slots=True)
class SentFiles:
    """The uploads that a host has, least recently used first, and what its segments need."""

    bytes_max: int
    uploads: OrderedDict[str, int] = field(default_factory=OrderedDict)
    pins: Counter[str] = field(default_factory=Counter)
    waiting: dict[tuple[str, str, int], AwaitedSegment] = field(default_factory=dict)
    """By device, job and segment."""

    def begin(self, device: str, run: RunSegment) -> None:
        uploads = tuple(dict.fromkeys(run.blobs.values()))
        results = tuple(one.blob for one in run.imports if one.blob is not None)
        self.pins.update(uploads)
        self.waiting[device, run.job, run.segment] = AwaitedSegment(run.session, uploads, results)

    def end(self, device: str, job: str, segment: int) -> tuple[str, ...]:
        """Return the results that nothing needs any more."""
        ended = self.waiting.pop((device, job, segment), None)
        if ended is None:
            return ()
        self.pins.subtract(ended.uploads)
        return ended.results

    def died(self, device: str, sessions: frozenset[str] | None) -> list[str]:
        """Return the results that nothing needs after the death of workers; None: of all sessions there."""
        ended = [
            (job, segment)
            for (at, job, segment), awaited in self.waiting.items()
            if at == device and (sessions is None or awaited.session in sessions)
        ]
        return [name for job, segment in ended for name in self.end(device, job, segment)]

    def add(self, name: str, nbytes: int) -> None:
        self.uploads[name] = nbytes

    def evicted(self) -> list[str]:
        """Forget what is over the limit, but for what segments under way need."""
        over = sum(self.uploads.values()) - self.bytes_max
        gone = []
        for name in list(self.uploads):
            if over <= 0:
                break
            if self.pins[name] <= 0:
                over -= self.uploads.pop(name)
                gone.append(name)
        return gone
