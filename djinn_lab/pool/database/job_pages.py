"""Ended jobs of the database that match a query: how many, and one part of them.

The state, the user and the time have columns. The cell's name is in ``view``, the job in JSON, near its
beginning, where the pool writes ``cell`` between ``user`` and ``priority``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from djinn_lab.pool.database.tables import jobs
from djinn_lab.protocol.messages import FETCH_CELL
from djinn_lab.protocol.rest.jobs import JobView

HEAD_CHARS = 800
"""Of ``view``, so many hold the names of job, session, user and cell."""
FETCH_CHARS = 400
"""So many hold them where the cell is that of a fetch."""
_decode_view = msgspec.json.Decoder(JobView).decode


class JobCursor(NamedTuple):
    """Where a part of a list begins: behind this job."""

    submitted_at: float
    job: str


class EndedJobs(NamedTuple):
    """``jobs``: newest first. ``matching``: how many match; ``newer``: how many of them are before the
    cursor, the job at the cursor among them."""

    jobs: list[JobView]
    matching: int
    newer: int


class EndedQuery(NamedTuple):
    """``states``: some of those in which a job has ended. ``find``: a text in lower case that is in the user,
    the cell or the id; ``sessions``: whose jobs match that text, too. ``left_out``: jobs by id."""

    states: Collection[str]
    user: str | None
    find: str
    sessions: Collection[str]
    fetches: bool
    left_out: Collection[str]


def read_ended_jobs(
    connection: sa.Connection, query: EndedQuery, before: JobCursor | None, limit: int
) -> EndedJobs:
    """Read one part of the ended jobs that match."""
    matches = _matches(query)
    count = sa.select(sa.func.count()).select_from(jobs).where(matches)
    matching = connection.scalar(count) or 0
    newest = sa.select(jobs.c.view).where(matches).order_by(jobs.c.submitted_at.desc(), jobs.c.job.desc())
    newer = 0
    if before is not None:
        behind = (jobs.c.submitted_at < before.submitted_at) | (
            (jobs.c.submitted_at == before.submitted_at) & (jobs.c.job < before.job)
        )
        newer = connection.scalar(count.where(~behind)) or 0
        newest = newest.where(behind)
    found = [_decode_view(view) for view in connection.scalars(newest.limit(limit))]
    return EndedJobs(found, matching, newer)


def _matches(query: EndedQuery) -> sa.ColumnElement[bool]:
    state: sa.ColumnElement[str] = jobs.c.state
    if "DONE" in query.states:  # nearly all are: the newest are found by the index of times, not of states
        state = state.concat("")
    parts: list[sa.ColumnElement[bool]] = [state.in_(query.states), jobs.c.job.not_in(query.left_out)]
    head = sa.func.substr(jobs.c.view, 1, HEAD_CHARS)
    if query.user is not None:
        parts.append(jobs.c.user == query.user)
    if query.find:
        parts.append(_has_text(query, head))
    if not query.fetches:
        fetch = sa.func.substr(jobs.c.view, 1, FETCH_CHARS).like(f'%"cell":"{FETCH_CELL}"%')
        parts.append(~((jobs.c.state == "DONE") & fetch))
    return sa.and_(*parts)


def _has_text(query: EndedQuery, head: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    text = query.find
    in_json = msgspec.json.encode(text).decode()[1:-1]
    escaped = in_json.replace("/", "//").replace("%", "/%").replace("_", "/_")
    in_cell = head.ilike(f'%"cell":"%{escaped}%"priority":%', escape="/")
    return sa.or_(
        jobs.c.user.icontains(text, autoescape=True),
        jobs.c.job.icontains(text, autoescape=True),
        in_cell,
        jobs.c.session.in_(query.sessions),
    )
