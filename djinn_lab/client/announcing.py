"""``djinn_lab.checkpoint`` and ``djinn_lab.publish``: announce how far a cell or notebook is, for jobs that
depend on it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from djinn_lab.client.rest import PoolClient

if TYPE_CHECKING:
    from djinn_lab.client.session import Session


def checkpoint(name: str) -> None:
    """The running cell, or batch notebook, has come to a checkpoint: jobs with ``--after JOB:checkpoint`` or
    ``--after JOB:checkpoint=NAME`` may start. What the cell recorded before has run by then. The same name
    again changes nothing. Raises OptionError outside of both, or for a bad name, and PoolError."""
    where = _where("checkpoint")
    if where is not None:
        pool, job = where
        pool.announce_checkpoint(name, job)


def publish(name: str) -> None:
    """Data called ``name`` is there, such as a file: jobs of the same user or project with
    ``--after data:NAME`` may start, now and later. What the cell recorded before has run by then. The same
    name again changes nothing. Raises OptionError for a bad name, and PoolError."""
    where = _where("publish")
    if where is not None:
        pool, job = where
        pool.publish(name, job)


def _where(cause: str) -> tuple[PoolClient, str | None] | None:
    """The pool and the running cell's job, None in a cell that is only rehearsed."""
    session = _capturing_session()
    if session is None:
        return PoolClient.find(), None
    if session.rehearses:
        return None
    session.recorder.finish(cause)
    cell = session.executor.cell
    return session.pool, None if cell is None else cell.identifier


def _capturing_session() -> Session | None:
    """Return the session of the cell that runs. Where torch is not loaded yet, there is none."""
    if "djinn_lab.client.session" not in sys.modules:
        return None
    from djinn_lab.capture.recorders import capturing_recorder
    from djinn_lab.client.session import Session

    recorder = capturing_recorder()
    owner = None if recorder is None else recorder.owner
    return owner if isinstance(owner, Session) else None
