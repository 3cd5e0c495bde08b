"""Rows of the database, and one transaction that writes what gathered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from enum import Enum, auto
from functools import lru_cache, partial
from typing import Any, NamedTuple

import sqlalchemy as sa

from djinn_lab.jobs.resources import PROGRAMS_MAX
from djinn_lab.pool.database.audit import AuditChain
from djinn_lab.pool.database.engine import DiskFull, is_full, upsert_by
from djinn_lab.pool.database.tables import (
    answers,
    forecasts,
    jobs,
    journal,
    lives,
    programs,
    releases,
    runs,
    sessions,
    usage,
)

PROGRAM_JOBS_MAX = 200
PROGRAMS_BYTES_MAX = 2**30
JOURNAL_ROWS_MAX = 200_000
FORECAST_PROGRAMS_MAX = PROGRAMS_MAX
PROGRAM = "program"
"""The kind of forecasts' rows that grow in number."""

Work = Callable[[sa.Connection], None]
Attempt = Callable[[sa.Connection, Callable[[sa.Connection], Any]], Any]
DATABASE_AT_FAULT = (sa.exc.OperationalError, sa.exc.InternalError, sa.exc.InterfaceError)
log = logging.getLogger(__name__)


class WriteKind(Enum):
    """Rows that are written together, in this order."""

    JOURNAL = auto()
    AUDIT = auto()
    USAGE = auto()
    JOB = auto()
    PROGRAM = auto()
    TIMINGS = auto()
    FORECAST = auto()
    SESSION = auto()
    RUN = auto()
    RELEASE = auto()
    ANSWER = auto()
    LIFE = auto()


DEFERRED = frozenset(
    (WriteKind.JOURNAL, WriteKind.AUDIT, WriteKind.TIMINGS, WriteKind.FORECAST, WriteKind.LIFE)
)
"""No cell waits for these."""
PROMPT_PROGRAM_BYTES_MAX = 64 * 2**10
"""Larger programs are written a moment later, and at once with an answer that comes earlier."""


class Row(NamedTuple):
    """``deferred``: no cell waits for it, though cells do for others of its kind."""

    kind: WriteKind
    values: dict[str, object]
    deferred: bool = False


class AwaitedWork(NamedTuple):
    """Work whose result, or error, a caller gets once it is committed. ``everything``: with all that was
    queued before, DEFERRED kinds, too."""

    work: Callable[[sa.Connection], Any]
    future: Future[Any]
    everything: bool


class UnfitValues(sa.exc.InvalidRequestError):
    """A number is too large for the database, or a text has no encoding."""


class WorkFailed(sa.exc.InvalidRequestError):
    """Work raised ``error``, which is none of the database's: its caller's to know, and of no other's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


class Batch:
    """Collect what one transaction writes. ``chain``: links the rows of the audit."""

    def __init__(
        self, rows: Iterable[Row], works: Iterable[AwaitedWork | Work], trim: bool, chain: AuditChain
    ) -> None:
        self._chain = chain
        self._rows: dict[WriteKind, list[dict[str, object]]] = {}
        for row in rows:
            self._rows.setdefault(row.kind, []).append(row.values)
        self._works = [item for item in works if _is_wanted(item)]
        self._awaited = [item for item in self._works if isinstance(item, AwaitedWork)]
        self._trim = trim

    def write(self, connection: sa.Connection) -> None:
        """Write all; when that fails, all but the rows at fault. Then resolve the awaited futures. Raises
        DiskFull with nothing written, to be called again, and SQLAlchemyError."""
        try:
            results = self.write_plainly(connection)
        except sa.exc.SQLAlchemyError as whole:
            if is_full(whole):
                raise DiskFull(whole) from whole
            try:
                if connection.invalidated:
                    raise
                results = self._attempt(connection, _apart)
            except sa.exc.SQLAlchemyError as error:
                self.fail(error)
                raise error from whole
        for item, result in zip(self._awaited, results, strict=True):
            if isinstance(result, sa.exc.SQLAlchemyError):
                item.future.set_exception(result.error if isinstance(result, WorkFailed) else result)
            else:
                item.future.set_result(result)

    def fail(self, error: sa.exc.SQLAlchemyError) -> None:
        """Give up what was not written."""
        for item in self._awaited:
            item.future.set_exception(error)

    def write_plainly(self, connection: sa.Connection) -> list[object]:
        """Write all or nothing, and return the results of awaited work, of which no caller knows yet. Raises
        SQLAlchemyError."""
        return self._attempt(connection, _plainly)

    def _attempt(self, connection: sa.Connection, attempt: Attempt) -> list[object]:
        """Write everything in one transaction, and return the results of awaited work once committed."""
        self._chain.begin()
        with connection.begin():
            for kind in WriteKind:
                if rows := self._rows.get(kind):
                    self._write_rows(connection, kind, rows, attempt)
            results = []
            for item in self._works:
                if isinstance(item, AwaitedWork):
                    results.append(attempt(connection, item.work))
                else:
                    _complain(attempt(connection, item))
            if self._trim:
                _trim(connection)
                self._chain.trim(connection)
        self._chain.commit()
        return results

    def _write_rows(
        self, connection: sa.Connection, kind: WriteKind, rows: list[dict[str, object]], attempt: Attempt
    ) -> None:
        """Write rows at once; when that fails, one by one, so that a bad row loses no other row. Raises
        SQLAlchemyError where the database is to blame (a full disk), for the rows must not be missing."""
        write: Callable[..., None] = self._append
        if kind is not WriteKind.AUDIT:
            write = partial(_execute_all, statement(connection.dialect.name, kind))
        whole = attempt(connection, partial(write, rows=rows))
        if not isinstance(whole, sa.exc.SQLAlchemyError):
            return
        for row in rows:
            result = attempt(connection, partial(write, rows=[row]))
            if isinstance(result, DATABASE_AT_FAULT):
                raise result
            _complain(result)

    def _append(self, connection: sa.Connection, rows: list[dict[str, object]]) -> None:
        self._chain.append(connection, rows)


def _is_wanted(item: AwaitedWork | Work) -> bool:
    return not isinstance(item, AwaitedWork) or item.future.set_running_or_notify_cancel()


def _execute_all(statement: sa.Executable, connection: sa.Connection, rows: list[dict[str, object]]) -> None:
    connection.execute(statement, rows)


def _plainly(connection: sa.Connection, work: Callable[[sa.Connection], object]) -> object:
    """Do work; its error ends the transaction. Raises SQLAlchemyError, also for values that no database
    takes, and for what else the work raises."""
    try:
        return work(connection)
    except sa.exc.SQLAlchemyError:
        raise
    except (OverflowError, ValueError) as error:
        raise UnfitValues(str(error)) from error
    except Exception as error:
        raise WorkFailed(error) from error


def _apart(connection: sa.Connection, work: Callable[[sa.Connection], object]) -> object:
    """Do work in a savepoint, and return its error."""
    try:
        with connection.begin_nested():
            return _plainly(connection, work)
    except sa.exc.SQLAlchemyError as error:
        if connection.invalidated or not connection.in_transaction():
            raise
        return error


def _complain(result: object) -> None:
    if isinstance(result, sa.exc.SQLAlchemyError):
        log.error("a write to the database failed", exc_info=result)


@lru_cache
def statement(dialect: str, kind: WriteKind) -> sa.Executable:
    """Make the statement that writes rows of a kind. ``dialect``: SQLAlchemy's name of the database."""
    match kind:
        case WriteKind.JOURNAL:
            return sa.insert(journal)
        case WriteKind.AUDIT:
            raise AssertionError("AuditChain writes these")
        case WriteKind.USAGE:
            return sa.insert(usage)
        case WriteKind.JOB:
            return upsert_by(dialect, jobs, "job")
        case WriteKind.PROGRAM:
            return upsert_by(dialect, programs, "job", "segment")
        case WriteKind.FORECAST:
            return upsert_by(dialect, forecasts, "kind", "name")
        case WriteKind.LIFE:
            return upsert_by(dialect, lives, "pool")
        case WriteKind.SESSION:
            return upsert_by(dialect, sessions, "session")
        case WriteKind.RUN:
            return upsert_by(dialect, runs, "session", "serial")
        case WriteKind.RELEASE:
            return upsert_by(dialect, releases, "session", "serial")
        case WriteKind.ANSWER:
            return upsert_by(dialect, answers, "session", "slot")
        case WriteKind.TIMINGS:
            return (
                sa.update(programs)
                .where(
                    programs.c.job == sa.bindparam("of_job"), programs.c.segment == sa.bindparam("of_segment")
                )
                .values(timings=sa.bindparam("timings"))
            )


def execute(
    connection: sa.Connection, statement: sa.Executable, row: dict[str, object] | None = None
) -> None:
    connection.execute(statement, row)


def _trim(connection: sa.Connection) -> None:
    """Keep the newest rows of the journal, the programs of the newest jobs within a total and those that
    sessions may have to replay, and what was learnt of the programs that ran last."""
    newest = connection.scalar(sa.select(sa.func.max(journal.c.seq))) or 0
    connection.execute(sa.delete(journal).where(journal.c.seq <= newest - JOURNAL_ROWS_MAX))
    kept_bytes, kept_jobs = 0, 0
    sizes = sa.select(programs.c.job, sa.func.sum(programs.c.nbytes), sa.func.max(programs.c.id)).group_by(
        programs.c.job
    )
    replayed = set(connection.scalars(sa.select(runs.c.job).distinct()))
    for job, nbytes, _ in connection.execute(sizes.order_by(sa.func.max(programs.c.id).desc())).all():
        kept_bytes, kept_jobs = kept_bytes + nbytes, kept_jobs + 1
        if job not in replayed and (kept_jobs > PROGRAM_JOBS_MAX or kept_bytes > PROGRAMS_BYTES_MAX):
            connection.execute(sa.delete(programs).where(programs.c.job == job))
    learnt = sa.select(forecasts.c.at_s).where(forecasts.c.kind == PROGRAM).order_by(forecasts.c.at_s.desc())
    oldest_kept = connection.scalar(learnt.offset(FORECAST_PROGRAMS_MAX - 1).limit(1))
    if oldest_kept is not None:
        too_old = (forecasts.c.kind == PROGRAM) & (forecasts.c.at_s < oldest_kept)
        connection.execute(sa.delete(forecasts).where(too_old))
