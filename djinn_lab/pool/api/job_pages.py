"""``/v1/job-pages``: all jobs that the pool knows, filtered, one part after the other.

Records in memory have every job that is unfinished, and the newest that have ended; the database has the
others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

from fastapi import Depends, FastAPI, HTTPException, Query, Response

from djinn_lab.jobs import FINISHED, JobState
from djinn_lab.pool.api.jobs import JOBS_MAX, find_job, is_over, with_last_cuts
from djinn_lab.pool.api.responses import answer, documented, reader
from djinn_lab.pool.authentication import User
from djinn_lab.pool.context import PoolContext
from djinn_lab.pool.database.job_pages import EndedJobs, EndedQuery, JobCursor, read_ended_jobs
from djinn_lab.protocol.rest.jobs import FIND_CHARS_MAX, UNFINISHED, JobPage, JobView, matches_text

PAGE_JOBS = 200
ENDED = frozenset(state.value for state in FINISHED)
StateOfJobs = JobState | Literal["UNFINISHED"]


class JobQuery(NamedTuple):
    """What a page asks for. ``find``: without spaces around it. The rest: as in the request."""

    state: str | None
    user: str | None
    find: str
    fetches: bool


def add_job_page_routes(app: FastAPI, context: PoolContext) -> None:
    """Add the route that looks through all jobs."""

    @app.get("/v1/job-pages", responses=documented(JobPage), summary="All jobs that match, part by part")
    async def job_pages(
        _user: Annotated[User, Depends(reader)],
        state: Annotated[
            StateOfJobs | None, Query(description="UNFINISHED: every state before the end.")
        ] = None,
        user: Annotated[str | None, Query(max_length=FIND_CHARS_MAX)] = None,
        find: Annotated[
            str, Query(max_length=FIND_CHARS_MAX, description="In the user, cell, notebook or id.")
        ] = "",
        before: Annotated[
            str | None, Query(max_length=FIND_CHARS_MAX, description="A job: those behind it in the list.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=JOBS_MAX)] = PAGE_JOBS,
        fetches: Annotated[bool, Query(description="Also list fetches between cells that are done.")] = False,
    ) -> Response:
        named = state.value if isinstance(state, JobState) else state
        if "\0" in f"{find}{user or ''}{before or ''}":
            raise HTTPException(422, "The text has a character that no name has (NUL).")
        query = JobQuery(named, user, find.strip(), fetches)
        return answer(await job_page(context, query, before, limit))


async def job_page(context: PoolContext, query: JobQuery, before: str | None, limit: int) -> JobPage:
    """Return one part of the jobs that match. A job is in it once, in one state. Raises HTTPException for a
    ``before`` that is no job."""
    cursor = None
    if before is not None:
        view, _ = await find_job(context, before)
        cursor = JobCursor(view.submitted_at, view.job)
    states = _listed_states(query.state)
    stored = await _stored(context, query, states & ENDED, cursor, limit)
    notebooks = _notebooks(context)
    records, now_s = context.driver.accounting.records, context.driver.core.clock.now_s()
    known = [record.view(now_s) for record in records.values() if query.user in (None, record.user)]
    known = [view for view in known if _matches(query, view, notebooks)]
    mine = [view for view in known if view.state in states]
    newer = [] if cursor is None else [view for view in mine if _place(view) >= cursor]
    behind = [view for view in mine if cursor is None or _place(view) < cursor]
    behind += [view for view in stored.jobs if view.job not in records]
    live = [view for view in known if query.state is None and view.state not in ENDED]
    return JobPage(
        _newest(behind, limit),
        stored.matching + len(mine),
        stored.newer + len(newer),
        _newest(live, limit),
        len(live),
    )


async def _stored(
    context: PoolContext, query: JobQuery, states: frozenset[str], cursor: JobCursor | None, limit: int
) -> EndedJobs:
    """Read the part that only the database has."""
    if not states:
        return EndedJobs([], 0, 0)
    text = query.find.lower()
    sessions = [session for session, name in _notebooks(context).items() if text and text in name.lower()]
    records = context.driver.accounting.records
    in_memory = [job for job, record in records.items() if record.finished_at is not None]
    wanted = EndedQuery(states, query.user, text, sessions, query.fetches, in_memory)
    return await context.store.read(lambda connection: read_ended_jobs(connection, wanted, cursor, limit))


def _listed_states(state: str | None) -> frozenset[str]:
    if state is None:
        return ENDED
    return frozenset(one.value for one in JobState) - ENDED if state == UNFINISHED else frozenset({state})


def _notebooks(context: PoolContext) -> dict[str, str]:
    return {session.session: session.name for session in context.driver.registry if session.name}


def _matches(query: JobQuery, view: JobView, notebooks: dict[str, str]) -> bool:
    return (query.fetches or not is_over(view)) and matches_text(view, query.find, notebooks)


def _place(view: JobView) -> JobCursor:
    return JobCursor(view.submitted_at, view.job)


def _newest(views: Iterable[JobView], limit: int) -> tuple[JobView, ...]:
    return tuple(with_last_cuts(view) for view in sorted(views, key=_place, reverse=True)[:limit])
