"""The pool's database: jobs, their programs, the journal, users, device measurements.

One background thread owns the connection. What is queued is committed in batches, in one transaction each;
reads are queued behind writes, so that a reader sees what was written before, and is answered when that
is committed. The event loop only ever puts things into the queue.

What cells wait for (jobs and usage) is committed as soon as a client waits, where the database is a file and
the thread is idle even by the event loop itself: two changes of threads take longer than the commit. The
journal and the programs follow within GATHER_S, in larger transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from djinn_lab.journal import Handled
from djinn_lab.pool.database.audit import AuditChain
from djinn_lab.pool.database.batch import (
    DEFERRED,
    AwaitedWork,
    Batch,
    Row,
    Work,
    WriteKind,
    execute,
    statement,
)
from djinn_lab.pool.database.engine import DiskFull, LeadTaken, is_full, make_tables, upsert
from djinn_lab.pool.database.leadership import LeaderCandidate
from djinn_lab.pool.database.sqlite_file import QuickWriter, checkpoint
from djinn_lab.pool.database.tables import device_profiles

BATCH_MAX = 2000
GATHER_S = 0.2
"""Fewer, larger transactions leave the interpreter to the event loop."""
PROGRAM_BYTES_MAX = 32 * 2**20
TRIM_EVERY_S = 60.0
CHECKPOINT_EVERY_S = 5.0
TRY_FULL_S = 0.5
"""To write again where the database had no space."""
CHECK_EVERY_S = 1.0
"""Whether this still leads, when nothing is written."""
TRY_EVERY_S = 0.25
"""To lead."""
REFUSE_AFTER_S = 3.0
"""A pool that was just killed may lead for a moment more."""
DEFERRED_ROWS_MAX = 64
"""In one transaction: while the event loop is busy, the thread gets the interpreter for a row at a time, and
clients wait for the transaction's end."""

Result = TypeVar("Result")
Queued = TypeVar("Queued")
log = logging.getLogger(__name__)


class Store:
    """Opens on construction, in its thread; ``close`` writes what is queued.

    ``url``: as :func:`djinn_lab.pool.database.address.checked_url` gives it. ``name``: for other pools that
    want to lead on this database. ``standby``: wait while another one leads. ``leads``: the last journal
    ``seq``, once this leads. ``waits``: done once it waits; ``leader``: the pool that leads. ``ended``: None
    once closed, or why nothing can be written any more. ``full``: that writes wait for space, as the database
    says it; empty where they do not. ``on_full`` is called with that in the thread when it changes.
    ``queued``: how many rows and writes so far, by the event loop."""

    def __init__(
        self,
        url: str,
        name: str = "a pool",
        standby: bool = False,
        on_full: Callable[[str], None] | None = None,
    ) -> None:
        self._url = url
        self._name = name
        self._standby = standby
        self.leader: str | None = None
        self._closing = threading.Event()
        self._queue: queue.SimpleQueue[AwaitedWork | Work | None] = queue.SimpleQueue()
        self.leads: Future[int] = Future()
        self.waits: Future[None] = Future()
        self.ended: Future[None] = Future()
        self.queued = 0
        self.full = ""
        self._on_full = on_full
        self._hurry = threading.Event()
        self._prompt: deque[Row] = deque()
        self._later: deque[Row | Handled] = deque()
        self._group: list[Row] | None = None
        self.deferred = self.deferred_written = 0
        """How many of DEFERRED kinds were put, and how many of these are committed."""
        self._writing = threading.Lock()
        self._chain = AuditChain()
        self._quick: QuickWriter | None = None
        self._later_due_s = self._trim_due_s = self._checkpoint_due_s = 0.0
        self._checked_s = 0.0
        self._written = False
        self._checkpointing: Future[None] | None = None
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def opened(self) -> int:
        """Wait until this leads; the last journal ``seq`` in the database. Raises SQLAlchemyError, or
        ImportError without a driver."""
        return self.leads.result()

    def write(self, work: Work) -> None:
        """Queue a write of its own. No caller learns when it fails."""
        self.queued += 1
        self._queue.put(work)

    def write_noted(self, work: Work) -> Future[None]:
        """Queue a write of its own, as soon as others. Done once it is committed."""
        self.queued += 1
        future: Future[None] = Future()
        self._queue.put(AwaitedWork(work, future, everything=False))
        return future

    def put(self, row: Row) -> None:
        """Queue a row; rows of one kind are written together."""
        self.queued += 1
        if row.deferred or row.kind in DEFERRED:
            self._defer(row)
        elif self._group is not None:
            self._group.append(row)
        else:
            self._prompt.append(row)

    @contextlib.contextmanager
    def together(self, collect: Callable[[], None]) -> Iterator[None]:
        """Write the rows that are put meanwhile, if any, in one transaction, with those that ``collect`` puts
        at the end. For the event loop's thread alone; one within another belongs to the outer one."""
        if self._group is not None:
            yield
            return
        self._group = []
        try:
            yield
            if self._group:
                collect()
        finally:
            rows, self._group = self._group, None
            self._prompt.extend(rows)  # at once: the thread takes what is there

    def _defer(self, one: Row | Handled) -> None:
        self.deferred += 1
        self._later.append(one)

    def journal(self, handled: Handled) -> None:
        """Queue a line of the journal. The thread makes it, for it takes as long as many events do."""
        self.queued += 1
        self._defer(handled)

    def submit(self, work: Callable[[sa.Connection], Result]) -> Future[Result]:
        """Queue a read or a write behind all writes so far, and hurry. Its result, SQLAlchemyError, or what
        it raises itself, comes when the transaction that holds it and them is committed."""
        return self._await(work, everything=True)

    def flush(self, everything: bool = False) -> Future[None]:
        """Done when all rows so far are committed; those of DEFERRED kinds only if ``everything``."""
        if not everything and self._flush_here():
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._await(_nothing, everything)

    async def read(self, read: Callable[[sa.Connection], Result]) -> Result:
        """Read what is committed. Raises SQLAlchemyError."""
        return await asyncio.wrap_future(self.submit(read))

    async def commit(self, work: Work) -> None:
        """Write, and wait until it is committed, with all that was queued before. Raises SQLAlchemyError when
        it is not; the others in its transaction do not suffer."""
        await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Write what is queued, give up the lead and end the thread."""
        self._closing.set()
        self._queue.put(None)
        self._hurry.set()
        self._thread.join()

    def _await(self, work: Callable[[sa.Connection], Result], everything: bool) -> Future[Result]:
        future: Future[Result] = Future()
        self._queue.put(AwaitedWork(work, future, everything))
        self._hurry.set()
        if self.ended.done():
            self._refuse_queued()
        return future

    def _flush_here(self) -> bool:
        """Write the rows that clients wait for at once, in the caller's thread, and return whether that
        worked."""
        if self._quick is None or not self._writing.acquire(blocking=False):
            return False
        rows, written = _taken(self._prompt), False
        try:
            if self._quick is not None:
                self._quick.write((statement("sqlite", row.kind), row.values) for row in rows)
                written = True
        except (sqlite3.Error, OverflowError, ValueError):
            log.debug("left to the thread", exc_info=True)  # which finds out what is wrong
        finally:
            if not written:  # before the thread may write what was queued behind them
                self._prompt.extendleft(reversed(rows))
            self._writing.release()
        return written

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            try:
                candidate = self._wait_for_lead(stack)
                last = candidate.last_seq()
            except (sa.exc.SQLAlchemyError, ImportError, OSError) as error:
                self.leads.set_exception(error)
                self._end(error)
                return
            if candidate.engine.dialect.name == "sqlite":
                self._quick = QuickWriter(candidate.engine)
            self.leads.set_result(last)
            ended_by: Exception | None = None
            beside = stack.enter_context(ThreadPoolExecutor(1, "checkpoint"))
            try:
                while self._write_batch(candidate):
                    self._checkpoint(candidate.engine, beside)
            except sa.exc.SQLAlchemyError as error:
                log.critical("the database cannot be written any more: %s", error)
                ended_by = error
            except Exception as error:
                log.critical("the store has a fault, and writes nothing any more", exc_info=error)
                ended_by = error
            with self._writing:
                quick, self._quick = self._quick, None
            if quick is not None:
                quick.close()
            self._end(ended_by)

    def _wait_for_lead(self, stack: contextlib.ExitStack) -> LeaderCandidate:
        """Wait for the lead; ``stack`` closes the candidate. A standby pool also waits for a database that is
        away. Raises SQLAlchemyError, or ImportError without a driver."""
        reached = False
        while True:
            try:
                with contextlib.ExitStack() as tried:
                    candidate = LeaderCandidate(self._url, self._name)
                    tried.callback(candidate.close)
                    reached = True
                    self._lead(candidate)
                    stack.enter_context(tried.pop_all())
                    return candidate
            except sa.exc.OperationalError as error:
                if not (self._standby and reached):
                    raise
                self.leader = None
                log.warning("the database does not answer: %s", error.orig)
            self._pause()

    def _lead(self, candidate: LeaderCandidate) -> None:
        """Wait until it leads. Raises SQLAlchemyError."""
        deadline_s = time.monotonic() + REFUSE_AFTER_S
        while not candidate.take():
            self.leader = candidate.leader()
            if not self.waits.done():
                self.waits.set_result(None)
            if not self._standby and time.monotonic() > deadline_s:
                raise LeadTaken(f"{self.leader} uses it")
            self._pause()
        make_tables(candidate.connection)

    def _pause(self) -> None:
        if self._closing.wait(TRY_EVERY_S):
            raise sa.exc.InvalidRequestError("the database was closed before this pool led")

    def _write_batch(self, candidate: LeaderCandidate) -> bool:
        """Write what gathers in GATHER_S, or until a client waits, and then what no client waits for; False
        when asked to stop. Raises SQLAlchemyError when the database is lost, after the writes that callers
        wait for have failed."""
        self._hurry.wait(GATHER_S)
        self._hurry.clear()
        items: list[AwaitedWork | Work | None] = []
        with contextlib.suppress(queue.Empty):
            while len(items) < BATCH_MAX:
                items.append(self._queue.get_nowait())
        stopping = None in items
        works = [item for item in items if item is not None]
        everything = stopping or any(isinstance(item, AwaitedWork) and item.everything for item in works)
        now_s = time.monotonic()
        trim = now_s >= self._trim_due_s
        if trim:
            self._trim_due_s = now_s + TRIM_EVERY_S
        try:
            awaited = self._take_later(now_s, everything) if everything else []
            self._write(candidate, awaited, works, trim)
        except Exception as error:
            _fail(works, error)
            raise
        if not everything:
            self._write(candidate, self._take_later(now_s, everything), [], trim=False)
        if now_s > self._checked_s + CHECK_EVERY_S:
            self._checked_s = now_s
            candidate.check()
        if not self._queue.empty() or (self._later and now_s >= self._later_due_s):
            self._hurry.set()
        return not stopping

    def _write(
        self, candidate: LeaderCandidate, later: list[Row], works: list[AwaitedWork | Work], trim: bool
    ) -> None:
        """Write them and the rows that clients wait for, in one transaction."""
        with self._writing:
            rows = [*_taken(self._prompt), *later]
            if rows or works:
                self._written = True
                self._checked_s = time.monotonic()
                self._write_with_patience(Batch(rows, works, trim, self._chain), candidate.connection)
                self.deferred_written += len(later)

    def _write_with_patience(self, batch: Batch, connection: sa.Connection) -> None:
        """Write a batch, as soon as there is space for it. Raises SQLAlchemyError, also when the pool is
        stopped meanwhile."""
        while True:
            try:
                batch.write(connection)
                break
            except DiskFull as full:
                if not self.full:
                    log.critical("the database has no space, and everything waits for it: %s", full)
                    self._note_full(str(full))
                if self._closing.wait(TRY_FULL_S):
                    batch.fail(full.error)
                    raise full.error from full
        if self.full:
            log.critical("the database has space again")
            self._note_full("")

    def _note_full(self, full: str) -> None:
        self.full = full
        if self._on_full is not None:
            self._on_full(full)

    def _checkpoint(self, engine: sa.Engine, beside: ThreadPoolExecutor) -> None:
        """Checkpoint beside the writers, since it waits for the disk. Then the little that they wrote
        meanwhile, so that the log can begin anew. Raises SQLAlchemyError."""
        if (under_way := self._checkpointing) is not None:
            if under_way.done():
                self._checkpointing = None
                try:
                    under_way.result()
                    with self._writing:
                        checkpoint(engine)
                except sa.exc.OperationalError as error:
                    if not is_full(error):
                        raise
                    log.warning("the database's log was not moved into its file: %s", error.orig)
                    self._written = True  # to be tried again
            return
        now_s = time.monotonic()
        if self._quick is not None and self._written and now_s >= self._checkpoint_due_s:
            self._checkpoint_due_s, self._written = now_s + CHECKPOINT_EVERY_S, False
            self._checkpointing = beside.submit(checkpoint, engine)

    def _take_later(self, now_s: float, everything: bool) -> list[Row]:
        """Take the rows of DEFERRED kinds that are due."""
        if not everything and now_s < self._later_due_s:
            return []
        taken = _taken(self._later, None if everything else DEFERRED_ROWS_MAX)
        if len(taken) < DEFERRED_ROWS_MAX:
            self._later_due_s = now_s + GATHER_S
        return [one if isinstance(one, Row) else _journal_row(one) for one in taken]

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
                if isinstance(item, AwaitedWork):
                    item.future.set_exception(error)


def _fail(works: Iterable[AwaitedWork | Work], error: Exception) -> None:
    """Give an error to the callers that were given neither a result nor an error."""
    for item in works:
        if isinstance(item, AwaitedWork) and not item.future.done():
            item.future.set_exception(error)


def _journal_row(handled: Handled) -> Row:
    return Row(WriteKind.JOURNAL, msgspec.structs.asdict(handled.record))


def _taken(rows: deque[Queued], count: int | None = None) -> list[Queued]:
    """Take at most ``count`` rows off the left; other threads may append meanwhile."""
    return [rows.popleft() for _ in range(len(rows) if count is None else min(len(rows), count))]


def _nothing(_connection: sa.Connection) -> None:
    """Write nothing: the caller waits for the commit only."""


def program_row(job: str, segment: int, program: bytes, deferred: bool = False) -> Row:
    values = {"job": job, "segment": segment, "nbytes": len(program), "program": program}
    return Row(WriteKind.PROGRAM, values, deferred)


class StoredTimes(msgspec.Struct, frozen=True):
    """When a segment's nodes ran, packed by :func:`~djinn_lab.protocol.worker.pack_times`, and on which
    device each did, where a gang ran them on several."""

    node_times: bytes
    node_devices: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        """Return MessagePack: of the times alone where one device ran all, as earlier pools read it."""
        return msgspec.msgpack.encode(self if self.node_devices else self.node_times)


def timings_row(job: str, segment: int, timings: bytes) -> Row:
    """``timings``: encoded :class:`StoredTimes`."""
    return Row(WriteKind.TIMINGS, {"of_job": job, "of_segment": segment, "timings": timings})


def write_measurement(name: str, threads: int, torch_version: str, curves: bytes) -> Work:
    """``curves``: in MessagePack."""
    row = {"name": name, "threads": threads, "torch_version": torch_version, "curves": curves}
    names = ("name", "threads", "torch_version")
    return lambda connection: execute(connection, upsert(connection, device_profiles, *names), row)
