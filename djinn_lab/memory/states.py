"""A session's connection and phase, with the table of every transition.

Theory of operation ------------------- Workers report the live bytes of every session after each segment;
those reports are the accounts, nothing is estimated. A segment is admitted when its own predicted peak
fits the device at all; one that never can is refused with the numbers, before it disturbs anybody.

A session whose client vanishes is *detached*: its bytes stay. It is freed by an explicit close only. Its
*phase* is what its user says it is doing. A signal is a hint that never changes a result: one that is
unknown, or comes from a session that is not connected, is rejected and says why.

An event that cannot happen raises :class:`IllegalEvent` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Connection(StrEnum):
    CONNECTED = "connected"
    DETACHED = "detached"


class Phase(StrEnum):
    COMPUTE = "COMPUTE"
    IO_WAIT = "IO_WAIT"
    SOON = "SOON"
    """Somebody types: it will compute in a moment."""


class Move(StrEnum):
    OPEN = "open"
    DETACH = "detach"
    RESUME = "resume"
    CLOSE = "close"


TRANSITIONS: Mapping[tuple[Connection | None, Move], Connection | None] = {
    (None, Move.OPEN): Connection.CONNECTED,
    (Connection.CONNECTED, Move.DETACH): Connection.DETACHED,
    (Connection.CONNECTED, Move.CLOSE): None,
    (Connection.DETACHED, Move.RESUME): Connection.CONNECTED,
    (Connection.DETACHED, Move.CLOSE): None,
}
"""Connection and move to next connection; None: no such session. A missing pair is illegal."""


class IllegalEvent(Exception):
    """An event that cannot happen in this state; a bug of the pool's, since clients cannot cause one."""
