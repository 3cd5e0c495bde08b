"""What SQLite needs to be quick and exact: its own transactions, a short way for few rows, checkpoints."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

BUSY_S = 30.0
"""How long another program, such as a backup, may keep the file locked."""


def sqlite_engine(url: str) -> sa.Engine:
    """Make an engine whose transactions begin where we say so: Python's driver begins none for a savepoint,
    whose release then commits. A commit waits for no disk, which makes a difference only when power is
    lost; :func:`checkpoint` does."""
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_S, "check_same_thread": False})

    @sa.event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint=0")

    @sa.event.listens_for(engine, "begin")
    def begins(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def checkpoint(engine: sa.Engine) -> None:
    """Move what was committed from the log into the file. Writers may continue meanwhile. Raises
    SQLAlchemyError."""
    borrowed = engine.raw_connection()
    try:
        connection = borrowed.driver_connection
        assert isinstance(connection, sqlite3.Connection)
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    except sqlite3.Error as error:
        raise sa.exc.OperationalError("PRAGMA wal_checkpoint", {}, error) from error
    finally:
        borrowed.close()


def keep_copy(connection: sa.Connection, schema: int) -> Path:
    """Copy the file of a database with this ``schema`` beside it, and return the copy's path. Raises
    SQLAlchemyError, with no copy left."""
    file = Path(str(connection.engine.url.database))
    copy = file.with_name(f"{file.name}.schema-{schema}-{time.strftime('%Y%m%d-%H%M%S')}")
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    try:
        with contextlib.closing(sqlite3.connect(copy)) as target:
            driver.backup(target)
    except sqlite3.Error as error:
        copy.unlink(missing_ok=True)
        raise sa.exc.OperationalError("a copy before the upgrade", {}, error) from error
    return copy


class QuickWriter:
    """Write few rows in half the time that SQLAlchemy takes, without waiting for other writers."""

    def __init__(self, engine: sa.Engine) -> None:
        self._borrowed = engine.raw_connection()
        driver = self._borrowed.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.execute("PRAGMA busy_timeout=0")
        self._driver = driver
        self._dialect = engine.dialect
        self._compiled: dict[sa.Executable, tuple[str, list[str]]] = {}

    def write(self, rows: Iterable[tuple[sa.Executable, Mapping[str, object]]]) -> None:
        """Write all rows or none. Raises sqlite3.Error, also when another writer has the file."""
        self._driver.execute("BEGIN IMMEDIATE")
        try:
            for statement, values in rows:
                sql, names = self._sql(statement, values)
                self._driver.execute(sql, [values[name] for name in names])
            self._driver.execute("COMMIT")
        finally:
            if self._driver.in_transaction:
                self._driver.execute("ROLLBACK")

    def close(self) -> None:
        self._driver.close()
        self._borrowed.invalidate()

    def _sql(self, statement: sa.Executable, values: Mapping[str, object]) -> tuple[str, list[str]]:
        """Rows of one statement have one set of columns."""
        found = self._compiled.get(statement)
        if found is None:
            assert isinstance(statement, sa.Insert)
            compiled: Any = statement.compile(dialect=self._dialect, column_keys=list(values))
            found = self._compiled[statement] = (str(compiled), list(compiled.positiontup))
        return found
