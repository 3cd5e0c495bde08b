"""What a plan asks for. A plan yields these one at a time; each is carried out before the plan goes on, so
that it sees what has changed."""

from __future__ import annotations

from typing import NamedTuple

from djinn_lab.memory.messages import TransferKind
from djinn_lab.memory.records import Segment, Session


class Transport(NamedTuple):
    """Begin a transfer of a session that has none under way. ``job``: may start before the end of it."""

    kind: TransferKind
    session: Session
    expedited: bool = False
    prefetch: bool = False
    discard: bool = False
    reason: str = ""
    job: str = ""


class Hurry(NamedTuple):
    """A segment waits for the transfer that the session has under way. ``job``: may start before its end."""

    session: Session
    job: str = ""


class Grant(NamedTuple):
    segment: Segment


class Hold(NamedTuple):
    """``told``: the kind of reason, so that the owner hears only of changes. ``in_line``: only its turn is
    missing. ``room``: running cells have it, and would leave enough of it. ``stuck``: it is not coming."""

    segment: Segment
    told: str
    reason: str
    estimate_s: float | None = None
    admission: bool = False
    in_line: bool = False
    room: bool = False
    stuck: bool = False


class Refuse(NamedTuple):
    segment: Segment
    message: str
    advice: str


class Stay(NamedTuple):
    """It cannot go to the device that it is bound for."""

    session: Session
    reason: str


Suggestion = Transport | Hurry | Grant | Hold | Refuse | Stay
