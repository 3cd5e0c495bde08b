"""A session's connection, its phase, and where its state is, with the table of every transition.

Theory of operation
-------------------

Workers report the live bytes of every session; these reports are the accounts, nothing is estimated. A
session's state lies in one *place*. ``none``: it holds nothing. ``device``: with a valid copy of all,
some or none of it on the host. ``host``: on the host alone. ``disk``: on the disk alone. Transfers move
the state: commands whose results come back as events. A session has at most one transfer under way. Its
possible transfers are rows of :data:`PLACES`; what is left after the death of its device is in
:data:`AFTER_LOSS`.

A segment runs only when its session's state is on the device and there is capacity for the segment's own
peak. A *grant* promises both, and reserves the peak until the segment's end. Evictions are *planned anew
after every event* from what is under way. Nothing is remembered between plans but the transfers
themselves, so that a late, failed or superfluous result needs no undoing.

A segment may be granted while its session is still being restored, once what its first op reads is there,
and where no other segment could use the device meanwhile. The worker answers the segment after the end of
the restore. So a state whose restore has not ended is still the parked one; a restore that fails revokes
the grant.

Preemption ends a segment's grant as any other end does. The segment is placed again, and its values
belong to its session's state. A session that moves to another device stays with its present one until its
state is on the host or the disk; no segment of it is granted meanwhile. Then it belongs to the other
device. The process that parked it is its *keeper* until it is restored there. See
:mod:`djinn_lab.memory.machine.moving`.

Waiting segments are served in the job queue's order, then by rank and arrival: so session memory and the
queue never wait for each other.

A session whose client vanishes is *detached*: its bytes stay until an explicit close. Its *phase* is what
its client signals, or what is observed: a placed segment computes, and after the end of a cell the
session waits for its user or a tool. A signal is a hint that never changes a result.

An event that cannot happen raises :class:`IllegalEvent` and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from djinn_lab.memory.messages import TransferKind


class Connection(StrEnum):
    CONNECTED = "connected"
    DETACHED = "detached"


class Phase(StrEnum):
    COMPUTE = "COMPUTE"
    IO_WAIT = "IO_WAIT"
    SOON = "SOON"
    """The user types: the session will compute in a moment."""


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

Place = Literal["none", "device", "host", "disk"]

PLACES: Mapping[tuple[Place, TransferKind], Place] = {
    ("device", "store"): "device",
    ("device", "forget"): "device",
    ("device", "evict"): "host",
    ("host", "restore"): "device",
    ("host", "demote"): "disk",
    ("disk", "restore"): "device",
}
"""Place and transfer to the place once it is done (an eviction leads to the disk where all copies lie
there); a failed one leaves the place as it was, except that a restore which finds other bytes than were
stored, and an eviction that discards, leave ``none``. A missing pair is never commanded."""

AFTER_LOSS: Mapping[tuple[Place, TransferKind | None], Place] = {
    ("none", None): "none",
    ("device", None): "host",
    ("device", "evict"): "host",
    ("device", "store"): "none",
    ("device", "forget"): "none",
    ("host", None): "host",
    ("host", "restore"): "host",
    ("host", "demote"): "host",
    ("disk", None): "disk",
    ("disk", "restore"): "disk",
}
"""Place and transfer under way to where the state is when the device's process died, of a session that was
stored whole and ran nothing. Of the others, all that was on the device is gone; where their values can be
made again (:class:`djinn_lab.events.Rebuild`), the last whole copy is their state until their next segment.
"""
