"""The pool's database: jobs, their programs, the journal, users, device measurements.

One background thread owns the connection. Writes are queued and committed in batches; reads are queued
behind them, so that whoever reads sees what was written before. The event loop only ever puts things into
the queue.
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
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from djinn_lab.journal import Record
from djinn_lab.pool.tables import devices, journal, metadata, programs, schema_version, usage, users
from djinn_lab.pool.tables import jobs as jobs_table

BATCH_MAX = 2000
GATHER_S = 0.2
"""Fewer, larger transactions leave the interpreter to the event loop."""
PROGRAM_JOBS_MAX = 200
PROGRAM_BYTES_MAX = 32 * 2**20
PROGRAMS_BYTES_MAX = 2**30
JOURNAL_ROWS_MAX = 200_000
TRIM_EVERY_BATCHES = 200
SCHEMA_VERSION = 2

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


_STATEMENTS: dict[Kind, sa.Executable] = {
    Kind.JOURNAL: sa.insert(journal),
    Kind.USAGE: sa.insert(usage),
    Kind.JOB: sa.insert(jobs_table).prefix_with("OR REPLACE"),
    Kind.PROGRAM: sa.insert(programs).prefix_with("OR REPLACE"),
    Kind.TIMINGS: sa.update(programs)
    .where(programs.c.job == sa.bindparam("of_job"), programs.c.segment == sa.bindparam("of_segment"))
    .values(timings=sa.bindparam("timings")),
}


class Store:
    """Open on construction of the thread; ``close`` writes what is queued."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._queue: queue.SimpleQueue[Work | Row | None] = queue.SimpleQueue()
        self._opened: Future[int] = Future()
        self._hurry = threading.Event()
        self._batches = 0
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def opened(self) -> int:
        """Wait for the database; the last journal ``seq`` in it. Raises SQLAlchemyError."""
        return self._opened.result()

    def write(self, work: Work) -> None:
        """Queue a write of its own."""
        self._queue.put(work)

    def put(self, row: Row) -> None:
        """Queue a row; rows of one kind are written together."""
        self._queue.put(row)

    def journal(self, record: Record) -> None:
        """Queue a line of the journal."""
        self._queue.put(Row(Kind.JOURNAL, msgspec.structs.asdict(record)))

    def submit(self, read: Callable[[sa.Connection], Result]) -> Future[Result]:
        """Queue a read behind all writes so far."""
        future: Future[Result] = Future()

        def perform(connection: sa.Connection) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(read(connection))
            except sa.exc.SQLAlchemyError as error:
                future.set_exception(error)

        self._queue.put(perform)
        self._hurry.set()
        return future

    async def read(self, read: Callable[[sa.Connection], Result]) -> Result:
        return await asyncio.wrap_future(self.submit(read))

    def close(self) -> None:
        """Write what is queued and end the thread."""
        self._queue.put(None)
        self._hurry.set()
        self._thread.join()

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            engine = _open_engine(self._url)
            with engine.begin() as connection:
                last = connection.scalar(sa.select(sa.func.max(journal.c.seq)))
        except sa.exc.SQLAlchemyError as error:
            self._opened.set_exception(error)
            return
        self._opened.set_result(last or 0)
        with engine.connect() as connection:
            while self._write_batch(connection):
                pass
        engine.dispose()

    def _write_batch(self, connection: sa.Connection) -> bool:
        """One transaction over what gathers in GATHER_S, or until a read hurries it; False when told to
        stop."""
        items = [self._queue.get()]
        self._hurry.wait(GATHER_S)
        self._hurry.clear()
        with contextlib.suppress(queue.Empty):
            while len(items) < BATCH_MAX:
                items.append(self._queue.get_nowait())
        with connection.begin():
            for kind in Kind:
                rows = [item.values for item in items if isinstance(item, Row) and item.kind is kind]
                if rows:
                    _write_rows(connection, kind, rows)
            for work in items:
                if callable(work):
                    _attempt(connection, work)
            if self._batches % TRIM_EVERY_BATCHES == 0:
                _trim(connection)
            self._batches += 1
        return None not in items


def _write_rows(connection: sa.Connection, kind: Kind, rows: list[dict[str, object]]) -> None:
    """All at once; when that fails, one by one, so that a bad row loses nobody else's."""
    try:
        with connection.begin_nested():
            connection.execute(_STATEMENTS[kind], rows)
    except sa.exc.SQLAlchemyError:
        for row in rows:
            _attempt(connection, partial(_execute, statement=_STATEMENTS[kind], row=row))


def _attempt(connection: sa.Connection, work: Work) -> None:
    """One failing write must not take the others with it."""
    try:
        with connection.begin_nested():
            work(connection)
    except sa.exc.SQLAlchemyError:
        log.exception("a write to the database failed")


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


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
    return lambda connection: _execute(connection, sa.insert(devices).prefix_with("OR REPLACE").values(row))


def _execute(
    connection: sa.Connection, statement: sa.Executable, row: dict[str, object] | None = None
) -> None:
    connection.execute(statement, row)


def _open_engine(url: str) -> sa.Engine:
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            connection.exec_driver_sql("PRAGMA synchronous=NORMAL")
    metadata.create_all(engine)
    with engine.begin() as connection:
        found = connection.scalar(sa.select(schema_version.c.version))
        if found is None:
            connection.execute(sa.insert(schema_version).values(version=SCHEMA_VERSION))
        elif found == 1:
            connection.execute(sa.text("ALTER TABLE users ADD COLUMN account VARCHAR"))
            connection.execute(sa.update(schema_version).values(version=SCHEMA_VERSION))
        elif found != SCHEMA_VERSION:
            raise sa.exc.InvalidRequestError(
                f"the database has schema {found}, this pool needs {SCHEMA_VERSION}"
            )
    return engine


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
