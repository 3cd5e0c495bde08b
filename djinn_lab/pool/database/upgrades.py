"""What a database of an older version needs to become one of this."""

from __future__ import annotations

import time

import sqlalchemy as sa

from djinn_lab.pool.authentication import FIRST_TOKEN, expiry
from djinn_lab.pool.database.audit import chain_old_rows
from djinn_lab.pool.database.tables import tokens, users


def upgrade_to(connection: sa.Connection, version: int) -> None:
    """Change the tables of the version before into those of ``version``; new tables are there already.
    Raises SQLAlchemyError."""
    match version:
        case 2:
            connection.execute(sa.text("ALTER TABLE users ADD COLUMN account VARCHAR"))
        case 3:
            connection.execute(sa.text("ALTER TABLE audit ADD COLUMN hash VARCHAR NOT NULL DEFAULT ''"))
            chain_old_rows(connection)
        case 4:
            _give_tokens_a_table(connection)
        case 5:
            _let_tokens_have_scopes(connection)
        case 6:
            connection.execute(sa.text("ALTER TABLE jobs ADD COLUMN resume TEXT NOT NULL DEFAULT ''"))
        case 7:
            connection.execute(
                sa.text("CREATE INDEX IF NOT EXISTS ix_usage_ended_at_s ON usage (ended_at_s)")
            )
        case _:
            raise AssertionError(version)


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


def _let_tokens_have_scopes(connection: sa.Connection) -> None:
    """Tokens so far have no limit. A database from before the table of tokens got it with the column."""
    if "scopes" not in {column["name"] for column in sa.inspect(connection).get_columns("tokens")}:
        connection.execute(sa.text("ALTER TABLE tokens ADD COLUMN scopes VARCHAR"))
