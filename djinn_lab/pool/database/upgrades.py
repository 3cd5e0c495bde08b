"""What a database of an older version needs to become one of this.

What older tables lack is found by comparing them with those of this version, not by the number of their
schema: a table that was just made lacks nothing, and two branches of development once had one number."""

from __future__ import annotations

import time

import sqlalchemy as sa

from djinn_lab.pool.authentication import FIRST_TOKEN, expiry
from djinn_lab.pool.database.audit import chain_old_rows
from djinn_lab.pool.database.tables import metadata, tokens, users

CHAINED_SINCE, TOKENS_SINCE = 3, 4


def upgrade_from(connection: sa.Connection, version: int) -> None:
    """Change the tables of an older ``version`` into those of this one. Tables that were missing are there
    already. Raises SQLAlchemyError."""
    _add_columns_and_indexes(connection)
    if version < CHAINED_SINCE:
        chain_old_rows(connection)
    if version < TOKENS_SINCE:
        _give_tokens_a_table(connection)


def _add_columns_and_indexes(connection: sa.Connection) -> None:
    found = sa.inspect(connection)
    for table in metadata.sorted_tables:
        there = {column["name"] for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                definition = sa.schema.CreateColumn(column).compile(connection)
                connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {definition}"))
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def _give_tokens_a_table(connection: sa.Connection) -> None:
    """Every user had one token, which never ended. It stays valid as the user's first, and ends as a new one
    would. (SQLite cannot drop a column that is unique.)"""
    found = connection.execute(sa.text("SELECT name, role, account, token_digest FROM users")).all()
    connection.execute(sa.text("DROP TABLE users"))
    users.create(connection)
    now_s = time.time()
    for row in found:
        connection.execute(sa.insert(users).values(name=row.name, role=row.role, account=row.account))
        values = {"digest": row.token_digest, "user": row.name, "name": FIRST_TOKEN, "role": row.role}
        connection.execute(
            sa.insert(tokens).values(**values, created_at=now_s, expires_at=expiry(None, now_s))
        )
