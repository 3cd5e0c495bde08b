"""Leadership: one pool may write to a database.

On PostgreSQL the lead is an advisory lock of the very connection that writes. A pool that loses the
connection loses both at once, so it cannot write without the lead, whatever it believes. On SQLite it is a
lock of the operating system on a file beside the database, which ends with the process that holds it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import IO

import sqlalchemy as sa

from djinn_lab.pool.database.engine import make_engine
from djinn_lab.pool.database.tables import journal
from djinn_lab.system.locks import try_lock

LOCK = int.from_bytes(b"djinnlab", "big")
LOCK_SUFFIX = ".lock"
NAME_MAX = 63
"""PostgreSQL cuts longer names of connections."""

log = logging.getLogger(__name__)


class LeaderCandidate:
    """Try to become the leader. ``name``: how standby pools name this one. Raises SQLAlchemyError, or
    ImportError without a driver."""

    def __init__(self, url: str, name: str) -> None:
        self.engine = make_engine(url, name[:NAME_MAX])
        self._name = name
        self._file: IO[bytes] | None = None
        self._connection: sa.Connection | None = None
        if self.engine.dialect.name == "sqlite":
            path = Path(str(sa.make_url(url).database) + LOCK_SUFFIX)
            try:
                self._file = path.open("a+b")
            except OSError as error:
                raise sa.exc.OperationalError("", {}, error) from error
        else:
            _connect_once(self.engine)
            self._connection = self.engine.connect()

    @property
    def connection(self) -> sa.Connection:
        """Return the connection that may write while this pool leads."""
        if self._connection is None:
            self._connection = self.engine.connect()
        return self._connection

    def take(self) -> bool:
        """Try to take the lead, and return whether this pool leads. Raises SQLAlchemyError."""
        if self._file is not None:
            if not try_lock(self._file):
                return False
            try:
                os.ftruncate(self._file.fileno(), 0)
                os.write(self._file.fileno(), self._name.encode())
            except OSError as error:  # the lock holds; only the name for others is missing
                log.warning("%s cannot name this pool: %s", self._file.name, error)
            return True
        with self.connection.begin():
            return bool(self.connection.scalar(sa.select(sa.func.pg_try_advisory_lock(LOCK))))

    def leader(self) -> str:
        """Name the pool that leads. Raises SQLAlchemyError."""
        if self._file is not None:
            self._file.seek(0)
            found: str | None = self._file.read().decode(errors="replace")
        else:
            with self.connection.begin():
                found = self.connection.scalar(_HOLDER, {"high": LOCK >> 32, "low": LOCK & 0xFFFFFFFF})
        return found or "another pool"

    def last_seq(self) -> int:
        """Read the journal's last number. Raises SQLAlchemyError."""
        with self.connection.begin():
            return self.connection.scalar(sa.select(sa.func.max(journal.c.seq))) or 0

    def check(self) -> None:
        """Raises SQLAlchemyError when the lead is lost."""
        if self._file is None:
            with self.connection.begin():
                self.connection.execute(sa.select(1))

    def close(self) -> None:
        """Give the lead up, if this has it."""
        if self._connection is not None:
            self._connection.close()
        self.engine.dispose()
        if self._file is not None:
            self._file.close()


def _connect_once(engine: sa.Engine) -> None:
    """Allow one connection only: in place of a lost one SQLAlchemy would open another, and write without the
    lock."""
    connected = False

    @sa.event.listens_for(engine, "do_connect")
    def connects(*_arguments: object) -> None:
        nonlocal connected
        if connected:
            lost = ConnectionError("the connection, and so the lead, was lost")
            raise sa.exc.OperationalError("", {}, lost)
        connected = True


_HOLDER = sa.text(
    "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' "
    "AND granted AND classid = :high AND objid = :low AND objsubid = 1 "
    "AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
