"""When pools served on this database: without that, a time without cells could as well be one without a pool.

A life is written again every :data:`WRITTEN_EVERY_S` seconds while its pool serves, and when it stops.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from djinn_lab.pool.database.batch import Row, WriteKind
from djinn_lab.pool.database.tables import lives

WRITTEN_EVERY_S = 30.0
_decode_devices = msgspec.json.Decoder(tuple[str, ...]).decode


class PoolLife(msgspec.Struct, frozen=True):
    """A run of a pool: it began to serve at ``began_at`` with ``devices``, and was last known to at
    ``seen_at``; seconds since the epoch."""

    pool: str
    began_at: float
    seen_at: float
    devices: tuple[str, ...]


class LifeWriter:
    """Make the rows of this pool's life."""

    def __init__(self, pool: str, began_at: float, devices: Sequence[str]) -> None:
        self._life = PoolLife(pool, began_at, began_at, tuple(devices))
        self._written_at: float | None = None

    def at(self, now_s: float) -> PoolLife:
        """Return the life until now."""
        return msgspec.structs.replace(self._life, seen_at=now_s)

    def row(self, now_s: float) -> Row:
        """Make the row that replaces the earlier one."""
        self._written_at = now_s
        life = msgspec.structs.asdict(self.at(now_s))
        devices = msgspec.json.encode(self._life.devices).decode()
        return Row(WriteKind.LIFE, {**life, "devices": devices})

    def due(self, now_s: float) -> bool:
        """Return whether the row should be written again."""
        return self._written_at is None or not 0 <= now_s - self._written_at < WRITTEN_EVERY_S


def read_lives(connection: sa.Connection, since: float, until: float) -> list[PoolLife]:
    """Read the lives that have a part between two times, the oldest first."""
    column = lives.c
    query = sa.select(lives).where(column.seen_at > since, column.began_at < until)
    return [
        PoolLife(row.pool, row.began_at, row.seen_at, _decode_devices(row.devices))
        for row in connection.execute(query.order_by(column.began_at))
    ]
