"""What a decision found out on its way: one note for every class of waiting jobs that it looked at, in order.
Costs nothing when nobody asks for it."""

from __future__ import annotations

import msgspec

from djinn_lab.jobs.decision.reasons import Reason
from djinn_lab.jobs.decision.waiting import Shape, shape_of
from djinn_lab.jobs.fairness import LimitHit
from djinn_lab.jobs.request import Request


class Note(msgspec.Struct, frozen=True):
    """``job`` stood for its class, all of ``shape`` and ``rank`` behind it."""

    job: str
    rank: int
    shape: Shape
    reason: Reason
    limit: LimitHit | None = None


class Trace:
    def __init__(self) -> None:
        self.notes: list[Note] = []
        self._by_job: dict[str, Note] = {}
        self._by_class: dict[tuple[int, Shape], Note] = {}

    def note(self, request: Request, rank: int, reason: Reason, limit: LimitHit | None = None) -> None:
        """A later verdict on the same job or class replaces an earlier one."""
        note = Note(request.job, rank, shape_of(request), reason, limit)
        self.notes.append(note)
        self._by_job[note.job] = note
        if reason is not Reason.STARTS_NOW and reason is not Reason.MAKING_ROOM:
            self._by_class[(rank, note.shape)] = note

    def verdict(self, request: Request, rank: int) -> Note | None:
        """On this job, or on the one that stood for it; None when the decision did not come that far."""
        return self._by_job.get(request.job) or self._by_class.get((rank, shape_of(request)))
