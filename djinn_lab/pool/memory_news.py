"""Tells the queue what session memory decides about jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from djinn_lab import jobs, memory
from djinn_lab.pool import answers
from djinn_lab.pool.bookkeeping import Bookkeeper
from djinn_lab.pool.ledger import Ledger

log = logging.getLogger(__name__)


class MemoryNews:
    """Heard by :class:`~djinn_lab.pool.residence.Residence`. ``tell`` feeds the queue and does what it
    says."""

    def __init__(self, ledger: Ledger, books: Bookkeeper, tell: Callable[[jobs.Event], None]) -> None:
        self._ledger = ledger
        self._books = books
        self._tell = tell

    def granted(self, grant: memory.GrantSegment) -> None:
        if self.refuses_lost(grant.job):
            return
        flight = self._books.records[grant.job].flight
        assert flight is not None
        if flight.stops is None:
            flight.restoring_s = grant.waited_s
        self._tell(jobs.MemoryGranted(self._now_s(), grant.job, self._device(grant.job)))

    def held(self, hold: memory.HoldSegment) -> None:
        held = jobs.MemoryHeld(
            at_s=self._now_s(),
            job=hold.job,
            reason=hold.reason,
            wait_s=hold.estimate_s,
            in_line=hold.in_line,
            room=hold.room,
            device=self._device(hold.job),
        )
        self._tell(held)

    def _device(self, job: str) -> str | None:
        """Where memory was asked for it."""
        account = self._ledger.accounts.session(self._books.records[job].session)
        return None if account is None else account.target or account.device

    def refused(self, verdict: memory.RefuseSegment) -> None:
        """Of a segment that was held."""
        record = self._books.records[verdict.job]
        assert record.flight is not None
        record.error = answers.never_fits(verdict)
        self._tell(jobs.MemoryRefused(self._now_s(), verdict.job, record.error.message))

    def stays(self, refusal: memory.MoveRefused) -> None:
        try:
            self._tell(jobs.MoveRefused(self._now_s(), refusal.job, refusal.device, refusal.reason))
        except jobs.IllegalEvent as error:
            log.error("session memory refuses a move that is over: %s", error)

    def lost(self, lost: memory.ValuesLost) -> None:
        """With what a preempted segment of the session had made, where there is one."""
        for record in self._books.records.values():
            stops = record.flight.stops if record.flight is not None else None
            if record.session == lost.session and stops is not None and stops.since_s is not None:
                stops.lost = lost.reason

    def refuses_lost(self, job: str) -> bool:
        """A preempted segment whose work is lost cannot go on: the queue is told so."""
        record = self._books.records[job]
        stops = record.flight.stops if record.flight is not None else None
        if stops is None or not stops.lost:
            return False
        record.error = answers.lost_aside(stops.lost)
        self._tell(jobs.MemoryRefused(self._now_s(), job, record.error.message))
        return True

    def _now_s(self) -> float:
        return self._ledger.clock.now_s()
