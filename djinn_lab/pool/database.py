"""The database behind a URL: SQLite or PostgreSQL, opened with the tables of this version."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from djinn_lab.pool.sqlite_file import sqlite_engine
from djinn_lab.pool.tables import metadata, schema_version

SCHEMA_VERSION = 2


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def open_engine(url: str) -> sa.Engine:
    """With all tables. Raises SQLAlchemyError, also for a schema of another version."""
    engine = sqlite_engine(url) if sa.make_url(url).get_backend_name() == "sqlite" else sa.create_engine(url)
    metadata.create_all(engine)
    with engine.begin() as connection:
        found = connection.scalar(sa.select(schema_version.c.version))
        if found is None:
            connection.execute(sa.insert(schema_version).values(version=SCHEMA_VERSION))
        elif found == 1:
            connection.execute(sa.text("ALTER TABLE users ADD COLUMN account VARCHAR"))
            connection.execute(sa.update(schema_version).values(version=SCHEMA_VERSION))
        elif found != SCHEMA_VERSION:
            raise sa.exc.InvalidRequestError(
                f"the database has schema {found}, this pool needs {SCHEMA_VERSION}"
            )
    return engine


def upsert(connection: sa.Connection, table: sa.Table, *keys: str) -> sa.Insert:
    """An insert for this connection's database whose row takes the place of the one with the same ``keys``,
    which are unique. A generated number stays."""
    return upsert_by(connection.dialect.name, table, *keys)


@lru_cache
def upsert_by(dialect: str, table: sa.Table, *keys: str) -> sa.Insert:
    """The same for the database of that name in SQLAlchemy."""
    generated = table.autoincrement_column
    replaced = [
        column.name for column in table.columns if column is not generated and column.name not in keys
    ]
    insert: Any = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    statement: sa.Insert = insert.on_conflict_do_update(
        index_elements=keys, set_={name: insert.excluded[name] for name in replaced}
    )
    return statement
