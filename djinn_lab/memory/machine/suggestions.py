"""The suggestions of a plan. A plan yields them one at a time; each is enacted before the plan continues,
so that the plan sees what has changed."""

from __future__ import annotations

from typing import NamedTuple

from djinn_lab.events import MemoryRelease
from djinn_lab.memory.machine.records import PlacedSegment, SessionRecord
from djinn_lab.memory.messages import TransferKind


class StartTransfer(NamedTuple):
    """Begin a transfer of a session that has none under way. ``job``: may start before its end. ``holds``:
    none of the session's may."""

    kind: TransferKind
    session: SessionRecord
    expedited: bool = False
    prefetch: bool = False
    discard: bool = False
    reason: str = ""
    job: str = ""
    holds: bool = False


class ExpediteCopy(NamedTuple):
    """A segment waits for the session's transfer under way. ``job``: may start before its end."""

    session: SessionRecord
    job: str = ""


class Grant(NamedTuple):
    segment: PlacedSegment


class Defer(NamedTuple):
    """``kind``: the kind of reason, so that the user hears only of changes. ``queued``: only the queue
    position is missing."""

    segment: PlacedSegment
    kind: str
    reason: str
    estimate_s: float | None = None
    release: MemoryRelease = MemoryRelease.COPIES
    queued: bool = False


class Reject(NamedTuple):
    segment: PlacedSegment
    message: str
    advice: str


class RefuseMove(NamedTuple):
    """The session cannot go to its target device."""

    session: SessionRecord
    reason: str


Suggestion = StartTransfer | ExpediteCopy | Grant | Defer | Reject | RefuseMove
