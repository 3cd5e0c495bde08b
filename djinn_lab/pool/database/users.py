"""Users and their tokens in the database."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from djinn_lab.pool.authentication import Role, Token
from djinn_lab.pool.database.batch import Work
from djinn_lab.pool.database.tables import tokens, users
from djinn_lab.pool.scopes import checked_scopes


def read_users(connection: sa.Connection) -> list[tuple[str, str, str | None]]:
    """Read name, role and the account above of all users."""
    rows = connection.execute(sa.select(users))
    return [(row.name, row.role, row.account) for row in rows]


def read_tokens(connection: sa.Connection) -> list[Token]:
    """Read all tokens, those that have ended, too."""
    return [
        Token(
            row.digest,
            row.user,
            row.name,
            Role[row.role.upper()],
            row.created_at,
            row.expires_at,
            scopes=checked_scopes(row.scopes.split(",")) if row.scopes else None,
        )
        for row in connection.execute(sa.select(tokens))
    ]


def write_user(name: str, role: str, account: str | None) -> Work:
    row = {"name": name, "role": role, "account": account}

    def write(connection: sa.Connection) -> None:
        connection.execute(sa.insert(users).values(row))

    return write


def write_role(name: str, role: str) -> Work:
    def write(connection: sa.Connection) -> None:
        connection.execute(sa.update(users).where(users.c.name == name).values(role=role))

    return write


def delete_user(name: str) -> Work:
    """Delete a user with all tokens."""

    def delete(connection: sa.Connection) -> None:
        connection.execute(sa.delete(users).where(users.c.name == name))
        connection.execute(sa.delete(tokens).where(tokens.c.user == name))

    return delete


def write_tokens(user: str, current: Sequence[Token]) -> Work:
    """Write a user's tokens in place of those that are stored."""
    rows = [
        {
            "digest": one.digest,
            "user": one.user,
            "name": one.name,
            "role": one.role.label,
            "created_at": one.created_at,
            "expires_at": one.expires_at,
            "scopes": None if one.scopes is None else ",".join(sorted(one.scopes)),
        }
        for one in current
    ]

    def write(connection: sa.Connection) -> None:
        connection.execute(sa.delete(tokens).where(tokens.c.user == user))
        if rows:
            connection.execute(sa.insert(tokens), rows)

    return write
