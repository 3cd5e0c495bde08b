"""Batch notebooks in the database."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from djinn_lab.jobs.batch import BatchNotebook
from djinn_lab.pool.database.tables import notebooks


class AcceptedSubmission(msgspec.Struct, frozen=True):
    """Hold what a submission has beside what the core decides by. ``key``: two submissions of a user with the
    same one are the same. ``folder``: where it runs, empty for a place of its own. ``digest``: of all that
    was asked for."""

    job: str
    user: str
    key: str
    folder: str
    digest: str


def insert(
    connection: sa.Connection, pool: str, accepted: AcceptedSubmission, new: BatchNotebook, source: bytes
) -> None:
    """Raises IntegrityError when the user has another with that key."""
    row = {**_columns(pool, new), "job": new.job, "user": new.user, "name": new.name, "source": source}
    row |= {"key": accepted.key, "folder": accepted.folder, "digest": accepted.digest}
    connection.execute(sa.insert(notebooks).values(row | {"submitted_at": new.submitted_at_s}))


def update(connection: sa.Connection, pool: str, changed: BatchNotebook, executed: bytes | None) -> None:
    """``executed`` None leaves what is stored."""
    values = _columns(pool, changed)
    if executed is not None:
        values["executed"] = executed
    connection.execute(sa.update(notebooks).where(notebooks.c.job == changed.job).values(values))


def forget(connection: sa.Connection, jobs: Sequence[str]) -> None:
    connection.execute(sa.delete(notebooks).where(notebooks.c.job.in_(jobs)))


def read_all(connection: sa.Connection) -> list[tuple[AcceptedSubmission, BatchNotebook]]:
    columns = [notebooks.c[name] for name in (*AcceptedSubmission.__struct_fields__, "notebook")]
    return [
        (
            AcceptedSubmission(row.job, row.user, row.key, row.folder, row.digest),
            msgspec.json.decode(row.notebook, type=BatchNotebook),
        )
        for row in connection.execute(sa.select(*columns))
    ]


def read_source(connection: sa.Connection, job: str) -> bytes | None:
    found: bytes | None = connection.scalar(sa.select(notebooks.c.source).where(notebooks.c.job == job))
    return found


def read_executed(connection: sa.Connection, job: str) -> bytes | None:
    found: bytes | None = connection.scalar(sa.select(notebooks.c.executed).where(notebooks.c.job == job))
    return found


def _columns(pool: str, notebook: BatchNotebook) -> dict[str, object]:
    return {
        "pool": pool,
        "state": notebook.state.value,
        "attempts": notebook.attempts,
        "started_at": notebook.started_at_s,
        "finished_at": notebook.finished_at_s,
        "reason": notebook.reason,
        "notebook": msgspec.json.encode(notebook).decode(),
    }
