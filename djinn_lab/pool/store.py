"""The pool's database: jobs, their programs, the journal, users, device measurements.

One background thread owns the connection. What is queued is committed in batches, in one transaction each;
reads are queued behind writes, so that whoever reads sees what was written before, and is answered when that
is committed. The event loop only ever puts things into the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from djinn_lab.journal import Record
from djinn_lab.pool.database import open_engine, upsert
from djinn_lab.pool.tables import devices, journal, programs, usage, users
from djinn_lab.pool.tables import jobs as jobs_table

BATCH_MAX = 2000
GATHER_S = 0.2
"""Fewer, larger transactions leave the interpreter to the event loop."""
PROGRAM_JOBS_MAX = 200
PROGRAM_BYTES_MAX = 32 * 2**20
PROGRAMS_BYTES_MAX = 2**30
JOURNAL_ROWS_MAX = 200_000
TRIM_EVERY_BATCHES = 200

Result = TypeVar("Result")
Work = Callable[[sa.Connection], None]
log = logging.getLogger(__name__)


class Kind(Enum):
    """Rows that are written together, in this order."""

    JOURNAL = auto()
    USAGE = auto()
    JOB = auto()
    PROGRAM = auto()
    TIMINGS = auto()


class Row(NamedTuple):
    kind: Kind
    values: dict[str, object]


class Awaited(NamedTuple):
    """Work whose result, or error, somebody gets once it is committed."""

    work: Callable[[sa.Connection], Any]
    future: Future[Any]


Item = Row | Awaited | Work


class Store:
    """Opens on construction, in its thread; ``close`` writes what is queued. ``ended``: None once closed, or
    why nothing can be written any more."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._opened: Future[int] = Future()
        self.ended: Future[None] = Future()
        self._hurry = threading.Event()
        self._batches = 0
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def opened(self) -> int:
        """Wait for the database; the last journal ``seq`` in it. Raises SQLAlchemyError."""
        return self._opened.result()

    def write(self, work: Work) -> None:
        """Queue a write of its own. Nobody hears when it fails."""
        self._queue.put(work)

    def put(self, row: Row) -> None:
        """Queue a row; rows of one kind are written together."""
        self._queue.put(row)

    def journal(self, record: Record) -> None:
        """Queue a line of the journal."""
        self._queue.put(Row(Kind.JOURNAL, msgspec.structs.asdict(record)))

    def submit(self, work: Callable[[sa.Connection], Result]) -> Future[Result]:
        """Queue a read or a write behind all writes so far, and hurry. Its result, or SQLAlchemyError, comes
        when the transaction that holds it and them is committed."""
        future: Future[Result] = Future()
        self._queue.put(Awaited(work, future))
        self._hurry.set()
        if self.ended.done():
            self._refuse_queued()
        return future

    async def read(self, read: Callable[[sa.Connection], Result]) -> Result:
        """What is read is committed. Raises SQLAlchemyError."""
        return await asyncio.wrap_future(self.submit(read))

    async def commit(self, work: Work) -> None:
        """Write, and wait until it is committed, with all that was queued before. Raises SQLAlchemyError when
        it is not; the others in its transaction do not suffer."""
        await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Write what is queued and end the thread."""
        self._queue.put(None)
        self._hurry.set()
        self._thread.join()

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            engine = open_engine(self._url)
            with engine.begin() as connection:
                last = connection.scalar(sa.select(sa.func.max(journal.c.seq)))
        except (sa.exc.SQLAlchemyError, ImportError) as error:
            self._opened.set_exception(error)
            self._end(error)
            return
        self._opened.set_result(last or 0)
        try:
            with engine.connect() as connection:
                while self._write_batch(connection):
                    pass
        except sa.exc.SQLAlchemyError as error:
            log.critical("the database cannot be written any more", exc_info=error)
            self._end(error)
        else:
            self._end(None)
        engine.dispose()

    def _write_batch(self, connection: sa.Connection) -> bool:
        """One transaction over what gathers in GATHER_S, or until somebody waits; False when told to stop.
        Raises SQLAlchemyError when the database is lost, after telling those who wait."""
        items = [self._queue.get()]
        self._hurry.wait(GATHER_S)
        self._hurry.clear()
        with contextlib.suppress(queue.Empty):
            while len(items) < BATCH_MAX:
                items.append(self._queue.get_nowait())
        if not self._queue.empty():
            self._hurry.set()  # whoever waits may be behind
        trim = self._batches % TRIM_EVERY_BATCHES == 0
        self._batches += 1
        batch = Batch([item for item in items if item is not None], trim)
        batch.write(connection)
        return None not in items

    def _end(self, error: Exception | None) -> None:
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
        self._refuse_queued()

    def _refuse_queued(self) -> None:
        error = self.ended.exception() or sa.exc.InvalidRequestError("the database is closed")
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if isinstance(item, Awaited):
                    item.future.set_exception(error)


class Batch:
    """What one transaction writes."""

    def __init__(self, items: list[Item], trim: bool) -> None:
        self._rows: dict[Kind, list[dict[str, object]]] = {}
        for item in items:
            if isinstance(item, Row):
                self._rows.setdefault(item.kind, []).append(item.values)
        self._works = [item for item in items if not isinstance(item, Row | Awaited)]
        awaited = (item for item in items if isinstance(item, Awaited))
        self._awaited = [item for item in awaited if item.future.set_running_or_notify_cancel()]
        self._trim = trim

    def write(self, connection: sa.Connection) -> None:
        """All or nothing; when that fails, all but what is wrong. Then tell those who wait."""
        try:
            results = self._attempt(connection, _plainly)
        except sa.exc.SQLAlchemyError:
            try:
                results = self._attempt(connection, _apart)
            except sa.exc.SQLAlchemyError as error:
                for item in self._awaited:
                    item.future.set_exception(error)
                raise
        for item, result in zip(self._awaited, results, strict=True):
            if isinstance(result, sa.exc.SQLAlchemyError):
                item.future.set_exception(result)
            else:
                item.future.set_result(result)

    def _attempt(self, connection: sa.Connection, attempt: Attempt) -> list[Any]:
        """What the awaited ones returned, once committed."""
        with connection.begin():
            for kind in Kind:
                if rows := self._rows.get(kind):
                    self._write_rows(connection, kind, rows, attempt)
            for work in self._works:
                _complain(attempt(connection, work))
            results = [attempt(connection, item.work) for item in self._awaited]
            if self._trim:
                _trim(connection)
        return results

    def _write_rows(
        self, connection: sa.Connection, kind: Kind, rows: list[dict[str, object]], attempt: Attempt
    ) -> None:
        """All at once; when that fails, one by one, so that a bad row loses nobody else's."""
        statement = _statement(connection, kind)
        whole = attempt(connection, lambda connection: connection.execute(statement, rows))
        if isinstance(whole, sa.exc.SQLAlchemyError):
            for row in rows:
                _complain(attempt(connection, partial(_execute, statement=statement, row=row)))


Attempt = Callable[[sa.Connection, Callable[[sa.Connection], Any]], Any]


def _plainly(connection: sa.Connection, work: Callable[[sa.Connection], Any]) -> Any:
    """Its error ends the transaction."""
    return work(connection)


def _apart(connection: sa.Connection, work: Callable[[sa.Connection], Any]) -> Any:
    """Its error is its own, and returned."""
    try:
        with connection.begin_nested():
            return work(connection)
    except sa.exc.SQLAlchemyError as error:
        if connection.invalidated or not connection.in_transaction():
            raise
        return error


def _complain(result: Any) -> None:
    if isinstance(result, sa.exc.SQLAlchemyError):
        log.error("a write to the database failed", exc_info=result)


def _statement(connection: sa.Connection, kind: Kind) -> sa.Executable:
    match kind:
        case Kind.JOURNAL:
            return sa.insert(journal)
        case Kind.USAGE:
            return sa.insert(usage)
        case Kind.JOB:
            return upsert(connection, jobs_table, "job")
        case Kind.PROGRAM:
            return upsert(connection, programs, "job", "segment")
        case Kind.TIMINGS:
            return (
                sa.update(programs)
                .where(
                    programs.c.job == sa.bindparam("of_job"), programs.c.segment == sa.bindparam("of_segment")
                )
                .values(timings=sa.bindparam("timings"))
            )


def program_row(job: str, segment: int, program: bytes) -> Row:
    return Row(Kind.PROGRAM, {"job": job, "segment": segment, "nbytes": len(program), "program": program})


def timings_row(job: str, segment: int, timings: bytes) -> Row:
    """``timings``: MessagePack of two lists, node starts and ends in seconds."""
    return Row(Kind.TIMINGS, {"of_job": job, "of_segment": segment, "timings": timings})


def write_user(name: str, role: str, digest: str, account: str | None) -> Work:
    row = {"name": name, "role": role, "token_digest": digest, "account": account}
    return lambda connection: _execute(connection, sa.insert(users).values(row))


def delete_user(name: str) -> Work:
    return lambda connection: _execute(connection, sa.delete(users).where(users.c.name == name))


def write_measurement(name: str, threads: int, measured: dict[str, float]) -> Work:
    row = {"name": name, "threads": threads, **measured}
    return lambda connection: _execute(connection, upsert(connection, devices, "name", "threads"), row)


def _execute(
    connection: sa.Connection, statement: sa.Executable, row: dict[str, object] | None = None
) -> None:
    connection.execute(statement, row)


def _trim(connection: sa.Connection) -> None:
    """Keep the newest journal rows, and the programs of the newest jobs within a total."""
    newest = connection.scalar(sa.select(sa.func.max(journal.c.seq))) or 0
    connection.execute(sa.delete(journal).where(journal.c.seq <= newest - JOURNAL_ROWS_MAX))
    kept_bytes, kept_jobs = 0, 0
    sizes = sa.select(programs.c.job, sa.func.sum(programs.c.nbytes), sa.func.max(programs.c.id)).group_by(
        programs.c.job
    )
    for job, nbytes, _ in connection.execute(sizes.order_by(sa.func.max(programs.c.id).desc())).all():
        kept_bytes, kept_jobs = kept_bytes + nbytes, kept_jobs + 1
        if kept_jobs > PROGRAM_JOBS_MAX or kept_bytes > PROGRAMS_BYTES_MAX:
            connection.execute(sa.delete(programs).where(programs.c.job == job))
