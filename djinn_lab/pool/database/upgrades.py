"""What a database of an older version needs to become one of this."""

from __future__ import annotations

import sqlalchemy as sa

from djinn_lab.pool.database.audit import chain_old_rows


def upgrade_to(connection: sa.Connection, version: int) -> None:
    """Change the tables of the version before into those of ``version``; new tables are there already.
    Raises SQLAlchemyError."""
    match version:
        case 2:
            connection.execute(sa.text("ALTER TABLE users ADD COLUMN account VARCHAR"))
        case 3:
            connection.execute(sa.text("ALTER TABLE audit ADD COLUMN hash VARCHAR NOT NULL DEFAULT ''"))
            chain_old_rows(connection)
        case _:
            raise AssertionError(version)
