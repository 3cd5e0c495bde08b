"""What a next pool needs to continue each session, queued for the database as it changes.

Sessions of batch notebooks are left out: their kernels end with the pool, and the next one runs them anew."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from djinn_lab.pool.bookkeeping.records import RunningSegment
from djinn_lab.pool.database.sessions import (
    NO_SEGMENT,
    CopyOrigin,
    SessionRow,
    answer_row,
    forget_session,
    forget_sessions,
    release_row,
    run_row,
    session_row,
    write_lineage,
)
from djinn_lab.pool.database.store import Store, program_row
from djinn_lab.pool.lineage.log import Run, SessionLog
from djinn_lab.pool.sessions.registry import ANSWERS_KEPT, ClientSession, SessionRegistry
from djinn_lab.protocol.messages import SegmentResult


def nothing_to_commit() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


class KeptSessions:
    """For the event loop's thread alone."""

    def __init__(self, store: Store, registry: SessionRegistry) -> None:
        self._store = store
        self._registry = registry
        self._origins: dict[str, CopyOrigin] = {}
        registry.keep_answer = self.answered

    def changed(self, session: ClientSession) -> None:
        """Keep a session that was opened, resumed or detached."""
        if session.notebook:
            return
        detached = session.link is None and not session.awaited
        stored = SessionRow(
            *(session.session, session.user, session.account, session.name, session.same_host),
            *(session.connected_at, session.last_seen, session.process, session.jobs, detached),
        )
        self._store.put(session_row(stored))

    def closed(self, session: ClientSession) -> None:
        self._origins.pop(session.session, None)
        if not session.notebook:
            self._store.write(forget_session(session.session))

    def closed_all(self) -> None:
        """Forget all sessions, which end with this pool."""
        self._store.write(forget_sessions)

    def answered(self, session: ClientSession, answer: SegmentResult) -> None:
        """Keep an answer. Its number is that of all answers so far."""
        if not session.notebook:
            self._store.put(answer_row(session.session, session.answered, ANSWERS_KEPT, answer))

    def ran(self, session: str, run: Run, flight: RunningSegment) -> None:
        """Keep a run, and its program where that is not in the database yet. Also one that a new copy has, or
        that the log does not take: until :meth:`rewrite` is committed, the database has the former copy and
        log."""
        if not self._keeps(session):
            return
        if flight.deferred > self._store.deferred_written:
            self._store.put(program_row(run.job, run.segment, run.program))
        self._store.put(run_row(session, run))

    def cannot_repeat(self, session: str, serial: int, job: str) -> None:
        """Keep that what ran cannot be repeated, until :meth:`rewrite` is committed."""
        if self._keeps(session):
            self._store.put(run_row(session, Run(serial, job, NO_SEGMENT, b"", (), None)))

    def released(self, session: str, serial: int, values: Sequence[int]) -> None:
        if self._keeps(session):
            self._store.put(release_row(session, serial, values))

    def copied(self, session: str, log: SessionLog, origin: CopyOrigin, manifest: bytes) -> Future[None]:
        """Keep a whole copy, and what is left of the log; done once it is committed, at once where the
        database has nothing of the session."""
        if not self._keeps(session):
            return nothing_to_commit()
        self._origins[session] = origin
        return self._store.write_noted(write_lineage(session, log, origin, manifest))

    def rewrite(self, session: str, log: SessionLog) -> None:
        """Keep a log that changed otherwise than by one more run or release."""
        if self._keeps(session):
            self._store.write(write_lineage(session, log, self._origins.get(session), None))

    def returned(self, session: str, origin: CopyOrigin | None) -> None:
        """Know the origin of a copy that an earlier pool left."""
        if origin is not None:
            self._origins[session] = origin

    def _keeps(self, session: str) -> bool:
        known = self._registry.get(session)
        return known is not None and not known.notebook
