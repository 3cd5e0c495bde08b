"""Why a job does not run, and what a decision found out about each class of waiting jobs."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from djinn_lab.jobs.decision.state.waiting import Shape, shape_of
from djinn_lab.jobs.fairness import LimitHit
from djinn_lab.jobs.request import Request


class Reason(StrEnum):
    """Why a job does not run: a closed list. The order is the precedence: of several that apply, the first
    is given. Reasons with ``never`` do not end by waiting."""

    IMPOSSIBLE = "impossible"
    """No node, or the whole pool, could ever hold it; the explanation says which constraint."""
    ABOVE_LIMIT = "above_limit"
    """It alone wants more than its account may ever have at once."""
    STARTS_NOW = "starts_now"
    """Nothing blocks it: the decision that is due starts it."""
    NOT_READY = "not_ready"
    """Its state or memory is not on its device yet; its queue position is kept."""
    PREEMPTING = "preempting"
    """Jobs are being preempted for it."""
    ACCOUNT_LIMIT = "account_limit"
    """Its account, or one above it, is at its limit."""
    UNAVAILABLE = "unavailable"
    """The nodes that could hold it are cordoned or not there."""
    CALENDAR = "calendar"
    """The nodes that could hold it are reserved for other accounts."""
    HOME = "home"
    """The device with its state is busy, and waiting there costs less than moving."""
    RESERVED = "reserved"
    """Capacity is free, but using it would delay a job that is ahead."""
    SOFT_LIMIT = "soft_limit"
    """It is above its account's soft limit, and other accounts want the devices."""
    BEHIND = "behind"
    """Other jobs are ahead of it and do not fit either."""
    BUSY = "busy"
    """It is next, and the devices that it needs are in use."""

    @property
    def never(self) -> bool:
        return self in (Reason.IMPOSSIBLE, Reason.ABOVE_LIMIT)


class Verdict(msgspec.Struct, frozen=True):
    """The result of a decision for one class of waiting jobs. ``job`` stood for its class: all of
    ``shape`` and ``rank`` behind it."""

    job: str
    rank: int
    shape: Shape
    reason: Reason
    limit: LimitHit | None = None


class DecisionTrace:
    def __init__(self) -> None:
        self.notes: list[Verdict] = []
        self._by_job: dict[str, Verdict] = {}
        self._by_class: dict[tuple[int, Shape], Verdict] = {}

    def note(self, request: Request, rank: int, reason: Reason, limit: LimitHit | None = None) -> None:
        """Record a verdict. A later one on the same job or class replaces an earlier one."""
        note = Verdict(request.job, rank, shape_of(request), reason, limit)
        self.notes.append(note)
        self._by_job[note.job] = note
        if reason is not Reason.STARTS_NOW and reason is not Reason.PREEMPTING:
            self._by_class[(rank, note.shape)] = note

    def verdict(self, request: Request, rank: int) -> Verdict | None:
        """Return the verdict on this job, or on the one that stood for it; None when the decision did not
        come that far."""
        return self._by_job.get(request.job) or self._by_class.get((rank, shape_of(request)))
