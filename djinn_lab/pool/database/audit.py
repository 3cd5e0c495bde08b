"""The audit in the database: a chain of rows, written by the store's thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from djinn_lab.pool.database.tables import audit, audit_chain
from djinn_lab.protocol.rest.audit import ROOT, AuditRow, ChainHead, link

AUDIT_ROWS_MAX = 100_000
TRIMMED_AT_ONCE = 1000
PAGE_ROWS = 1000
THE_CHAIN = 1


class AuditChain:
    """Append rows. The head is kept in memory: rows that are removed from the database while the pool runs
    leave a break. For the store's thread alone."""

    def __init__(self) -> None:
        self._committed: ChainHead | None = None
        self._head: ChainHead | None = None

    def begin(self) -> None:
        """Forget what a transaction appended that was not committed."""
        self._head = self._committed

    def commit(self) -> None:
        self._committed = self._head

    def append(self, connection: sa.Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows within a transaction. Raises SQLAlchemyError; then the chain has none of them."""
        head = self._head or read_head(connection)
        linked = []
        for values in rows:
            row = AuditRow(**values, row=head.row + 1)
            head = msgspec.structs.replace(head, row=row.row, hash=link(head.hash, row))
            linked.append({**values, "id": row.row, "hash": head.hash})
        connection.execute(sa.insert(audit), linked)
        _write_head(connection, head)
        self._head = head

    def trim(self, connection: sa.Connection) -> None:
        """Drop the oldest rows, some at a time."""
        head = self._head or read_head(connection)
        oldest = connection.scalar(sa.select(sa.func.min(audit.c.id)))
        if oldest is None or head.row - oldest < AUDIT_ROWS_MAX + TRIMMED_AT_ONCE:
            return
        last = head.row - AUDIT_ROWS_MAX
        root = connection.scalar(sa.select(audit.c.hash).where(audit.c.id == last))
        connection.execute(sa.delete(audit).where(audit.c.id <= last))
        self._head = msgspec.structs.replace(head, root=root or ROOT)
        _write_head(connection, self._head)


def read_head(connection: sa.Connection) -> ChainHead:
    """Read where the chain begins and ends."""
    row = connection.execute(sa.select(audit_chain)).first()
    return ChainHead() if row is None else ChainHead(row.head_row, row.head_hash, row.root_hash)


def read_audit(
    connection: sa.Connection,
    limit: int,
    *,
    after: int | None = None,
    user: str | None = None,
    action: str | None = None,
    refused: bool = False,
    since: float | None = None,
) -> list[AuditRow]:
    """Read the newest rows first, or those behind row ``after``, oldest first. ``action``: part of a name.
    ``refused``: only what was refused. ``since``: seconds since the epoch."""
    table = audit.c
    query = sa.select(audit).limit(limit)
    query = query.order_by(table.id.desc()) if after is None else query.order_by(table.id)
    if after is not None:
        query = query.where(table.id > after)
    if user is not None:
        query = query.where(table.user == user)
    if action is not None:
        query = query.where(table.action.contains(action, autoescape=True))
    if refused:
        query = query.where(table.status >= 400)
    if since is not None:
        query = query.where(table.at >= since)
    return [_row(row) for row in connection.execute(query)]


def read_chain(connection: sa.Connection) -> Iterator[AuditRow]:
    """Read all kept rows, oldest first."""
    last = 0
    while rows := read_audit(connection, PAGE_ROWS, after=last):
        yield from rows
        last = rows[-1].row


def chain_old_rows(connection: sa.Connection) -> None:
    """Link the rows of a pool that kept no chain, as they are now."""
    head = ChainHead()
    for row in read_chain(connection):
        head = ChainHead(row.row, link(head.hash, row))
        connection.execute(sa.update(audit).where(audit.c.id == row.row).values(hash=head.hash))
    _write_head(connection, head)


def _write_head(connection: sa.Connection, head: ChainHead) -> None:
    values = {"head_row": head.row, "head_hash": head.hash, "root_hash": head.root}
    if not connection.execute(sa.update(audit_chain).values(values)).rowcount:
        connection.execute(sa.insert(audit_chain).values(chain=THE_CHAIN, **values))


def _row(row: sa.Row[Any]) -> AuditRow:
    return AuditRow(row.at, row.pool, row.user, row.action, row.status, row.body, row.id, row.hash)
