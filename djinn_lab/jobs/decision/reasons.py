"""Why a job does not run: a closed list, the strongest first."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The order is the precedence: of several that apply, the first is told. ``never`` ones do not end by
    waiting."""

    IMPOSSIBLE = "impossible"
    """No node, or the whole pool, could ever hold it; args say which constraint."""
    ABOVE_LIMIT = "above_limit"
    """It alone wants more than its account may ever have at once."""
    STARTS_NOW = "starts_now"
    """Nothing is in its way: the decision that is due starts it."""
    NOT_READY = "not_ready"
    """Something is still brought for it; its place in line is kept."""
    MAKING_ROOM = "making_room"
    """Others are moving aside for it."""
    ACCOUNT_LIMIT = "account_limit"
    """Its account, or one above it, has as much as it may."""
    UNAVAILABLE = "unavailable"
    """The nodes that could hold it are cordoned or not there."""
    CALENDAR = "calendar"
    """The nodes that could hold it are reserved for others."""
    HOME = "home"
    """Where its state lies is busy, and waiting there costs less than moving."""
    RESERVED = "reserved"
    """There is room, but using it would delay a job that is ahead."""
    SOFT_LIMIT = "soft_limit"
    """It is above its account's soft limit, and others want the room."""
    BEHIND = "behind"
    """Others are ahead of it and there is no room for them either."""
    BUSY = "busy"
    """It is next, and what it needs is in use."""

    @property
    def never(self) -> bool:
        return self in (Reason.IMPOSSIBLE, Reason.ABOVE_LIMIT)
