"""The database behind a URL: SQLite or PostgreSQL, with the tables of this version."""

from __future__ import annotations

import logging
import sqlite3
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from djinn_lab.errors import CannotStartNow, PoolError
from djinn_lab.pool.database.address import DATABASE_VARIABLE, plain_name, shown
from djinn_lab.pool.database.sqlite_file import keep_copy, sqlite_engine
from djinn_lab.pool.database.tables import metadata, schema_version
from djinn_lab.pool.database.upgrades import upgrade_from

SCHEMA_VERSION = 7
DATABASE_FILE = "pool.sqlite3"
CONNECT_TIMEOUT_S = 5
LOST_AFTER_MS = 10_000
"""A connection on which nothing arrives any more is given up by both sides, so that another may lead."""
SERVER_OPTIONS = (
    "-c tcp_keepalives_idle=4 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 "
    f"-c tcp_user_timeout={LOST_AFTER_MS}"
)
SQLITE_NO_SPACE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
POSTGRESQL_DISK_FULL = "53100"
SQLITE_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
SQLITE_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

log = logging.getLogger(__name__)


class LeadTaken(sa.exc.InvalidRequestError):
    """Another pool has the database."""


class DatabaseLost(PoolError):
    """A pool that served cannot use its database any more."""


class DiskFull(Exception):
    """The database has no space to write. ``error``: as the driver says it. Nothing was written."""

    def __init__(self, error: sa.exc.SQLAlchemyError) -> None:
        super().__init__(str(getattr(error, "orig", error)))
        self.error = error


def is_full(error: sa.exc.SQLAlchemyError) -> bool:
    """Return whether the disk, or a quota, of the database is full."""
    cause = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", None)
        return code in SQLITE_NO_SPACE
    return getattr(cause, "sqlstate", None) == POSTGRESQL_DISK_FULL


class SchemaMismatch(sa.exc.InvalidRequestError):
    """The tables are those of another version."""


def unusable(url: str, error: Exception) -> PoolError:
    """Why the database cannot be used, and what to do; CannotStartNow where that may pass. No advice loses
    what is in it."""
    reason = _reason(url, error)
    kind: type[PoolError] = CannotStartNow if isinstance(error, sa.exc.OperationalError) else PoolError
    if isinstance(error, ImportError):
        reason = "the driver of PostgreSQL is not installed"
        advice = "Run: pip install 'djinn-lab[postgresql]'"
    elif isinstance(error, LeadTaken):
        advice = "Stop that pool, or start this one with --standby: it waits, and takes over."
    elif isinstance(error, SchemaMismatch):
        advice = "Use the version of djinn-lab that made it, or another database."
    elif plain_name(url) == "sqlite":
        advice = _sqlite_advice(url, error)
    elif "authentication" in reason or "password" in reason:
        advice = f"Check user and password in {DATABASE_VARIABLE}."
    elif "does not exist" in reason:
        advice = "Make it with: createdb NAME"
    else:
        advice = "Is the server up, and may this machine connect to it?"
    return kind(f"The database {shown(url)} cannot be used: {reason}", advice)


def _sqlite_advice(url: str, error: Exception) -> str:
    cause = getattr(error, "orig", None)
    code = getattr(cause, "sqlite_errorcode", None)
    folder = Path(str(sa.make_url(url).database)).parent
    if isinstance(error, sa.exc.SQLAlchemyError) and is_full(error):
        return f"Free some space, or raise the quota, of {folder} (see: df -h {folder}; df -i {folder})."
    if isinstance(code, int) and code & 0xFF in SQLITE_BUSY:
        return "Another program holds it, such as a backup: wait for it, or end it (see: fuser on the file)."
    if isinstance(code, int) and code & 0xFF in SQLITE_DAMAGED:
        return (
            "It stays as it is. Put back a copy of it (an upgrade keeps one, FILE.schema-*), or try "
            "`sqlite3 FILE .recover`; --database names another one meanwhile."
        )
    return (
        f"It stays as it is. See that {folder} and the files in it can be written by this user; --database "
        "names another one meanwhile."
    )


def lost(url: str, error: Exception) -> DatabaseLost:
    """Say that the pool lost its database."""
    return DatabaseLost(
        f"The pool lost its database {shown(url)}, and stops: {_reason(url, error)}",
        "All that clients received is in it. Start the pool again when the database answers.",
    )


def _reason(url: str, error: Exception) -> str:
    reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    secret = sa.make_url(url).password
    return reason.replace(secret, "***") if secret else reason


def make_engine(url: str, name: str = "djinn-lab") -> sa.Engine:
    """Connects to nothing yet. ``name``: what the database's own tools call the connection."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return sqlite_engine(url)
    arguments: dict[str, object] = {
        "application_name": name,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": 4,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": LOST_AFTER_MS,
        "options": SERVER_OPTIONS,
    }
    given = {key: value for key, value in arguments.items() if key not in parsed.query}
    return sa.create_engine(url, connect_args=given)


def make_tables(connection: sa.Connection) -> None:
    """Make the missing tables, and change those of an older version in one transaction. A copy of the SQLite
    file is kept before. Raises SQLAlchemyError with nothing changed, also for a schema of another version."""
    with connection.begin():
        found = _schema(connection)
    if found is not None and not 1 <= found <= SCHEMA_VERSION:
        raise SchemaMismatch(f"the database has schema {found}, this pool needs {SCHEMA_VERSION}")
    if found is not None and found < SCHEMA_VERSION:
        kept = keep_copy(connection, found) if connection.dialect.name == "sqlite" else "none"
        log.info("the database is changed from schema %d to %d; its copy: %s", found, SCHEMA_VERSION, kept)
    with connection.begin():
        metadata.create_all(connection)
        if found is None:
            connection.execute(sa.insert(schema_version).values(version=SCHEMA_VERSION))
        elif found < SCHEMA_VERSION:
            upgrade_from(connection, found)
            connection.execute(sa.update(schema_version).values(version=SCHEMA_VERSION))


def _schema(connection: sa.Connection) -> int | None:
    """Return the version of the tables, None for an empty database."""
    if not sa.inspect(connection).has_table(schema_version.name):
        return None
    return connection.scalar(sa.select(schema_version.c.version))


def upsert(connection: sa.Connection, table: sa.Table, *keys: str) -> sa.Insert:
    """Make an insert for this connection's database that replaces the row with the same unique ``keys``. A
    generated number stays."""
    return upsert_by(connection.dialect.name, table, *keys)


@lru_cache
def upsert_by(dialect: str, table: sa.Table, *keys: str) -> sa.Insert:
    """Make the same insert for the database that SQLAlchemy calls ``dialect``."""
    generated = table.autoincrement_column
    replaced = [
        column.name for column in table.columns if column is not generated and column.name not in keys
    ]
    insert: Any = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    statement: sa.Insert = insert.on_conflict_do_update(
        index_elements=keys, set_={name: insert.excluded[name] for name in replaced}
    )
    return statement
