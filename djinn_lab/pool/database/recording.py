"""A pool's database as a recording: its journal leads a fresh engine through every state that the pool had.

The file is only read, also while its pool runs. It may be damaged: what can be read of it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec
import sqlalchemy as sa

from djinn_lab.engine import PoolOpened
from djinn_lab.errors import UserError
from djinn_lab.journal import CORE, Record
from djinn_lab.pool.database.tables import jobs, journal
from djinn_lab.protocol.rest.jobs import JobView

ADVICE = "Give a pool's database: pool.sqlite3 in DJINN_RUNTIME_DIR, or in ~/.local/share/djinn-lab."
_decode_view = msgspec.json.Decoder(JobView).decode


class RecordedEvents(msgspec.Struct, frozen=True):
    """The journal of one run of a pool, from its beginning. ``broken``: why there is nothing after the last
    record, empty where nothing is known to be missing."""

    pool: str
    records: tuple[Record, ...]
    broken: str = ""


class Recording(msgspec.Struct, frozen=True):
    """The runs of pools on one database, the oldest first; at least one."""

    path: Path
    runs: tuple[RecordedEvents, ...]


@contextmanager
def opened(path: Path) -> Iterator[sa.Connection]:
    """Connect to a recording, to read. Raises UserError where that fails."""
    engine = sa.create_engine("sqlite://", creator=lambda: _connect(path), poolclass=sa.pool.NullPool)
    try:
        with engine.connect() as connection:
            yield connection
    except sa.exc.SQLAlchemyError as error:
        raise no_recording(path, f"{getattr(error, 'orig', None) or error}") from None
    finally:
        engine.dispose()


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
    connection.execute("PRAGMA writable_schema=ON")  # else SQLite reads nothing of a file that was cut off
    return connection


def no_recording(path: Path, reason: str) -> UserError:
    """Say that a file is no recording that can be shown."""
    return UserError(f"{path} cannot be shown as a recording of a pool: {reason}.", ADVICE)


def read_recording(path: Path) -> Recording:
    """Read all runs whose beginning is there, each as far as it can be read. Raises UserError for a file that
    has none."""
    by_pool: dict[str, list[Record]] = {}
    damage = ""
    with opened(path) as connection:
        query = sa.select(journal).order_by(journal.c.seq)
        try:
            for row in connection.execution_options(yield_per=1).execute(query):  # all before the damage
                by_pool.setdefault(row.pool, []).append(Record(**row._mapping))
        except sa.exc.DatabaseError as error:
            damage = f"{error.orig}"
    runs = [_run(pool, records, damage) for pool, records in by_pool.items() if _begins(records[0])]
    if not runs:
        raise no_recording(path, _why_none(by_pool, damage))
    return Recording(path, tuple(runs))


def read_recorded_jobs(path: Path, submitted_until: float, limit: int) -> dict[str, tuple[JobView, str]]:
    """Read views and code of the newest jobs as the file has them at its end, by job, newest first. Raises
    UserError where it cannot be read."""
    query = sa.select(jobs.c.job, jobs.c.view, jobs.c.code).where(jobs.c.submitted_at <= submitted_until)
    with opened(path) as connection:
        try:
            rows = connection.execute(query.order_by(jobs.c.submitted_at.desc()).limit(limit)).all()
        except sa.exc.DatabaseError as error:
            raise UserError(f"The names of cells and their code cannot be read: {error.orig}.") from None
    return {row.job: (_decode_view(row.view), row.code) for row in rows}


def _begins(record: Record) -> bool:
    return record.core == CORE and record.event == PoolOpened.__name__


def _run(pool: str, records: list[Record], damage: str) -> RecordedEvents:
    """Keep the records up to the first that is missing. ``damage``: what ended the reading, of any run."""
    for number, record in enumerate(records):
        expected = records[0].seq + number
        if record.seq != expected:
            return RecordedEvents(pool, tuple(records[:number]), f"event {expected} is missing")
    return RecordedEvents(pool, tuple(records), damage)


def _why_none(by_pool: dict[str, list[Record]], damage: str) -> str:
    if not by_pool:
        return damage or "its journal is empty"
    first = next(iter(by_pool.values()))[0]
    if first.core != CORE:
        return "an earlier version wrote its journal"
    return f"its journal begins with event {first.seq}, and only the newest 200,000 events are kept"
