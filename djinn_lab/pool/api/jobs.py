"""The part of the REST API that is about jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Query, Response

from djinn_lab.jobs import FINISHED, IllegalEvent, JobState
from djinn_lab.pool.api.responses import ROW_MAX, answer, documented, reader, runner
from djinn_lab.pool.authentication import Role, User
from djinn_lab.pool.context import PoolContext
from djinn_lab.pool.database import history
from djinn_lab.pool.database.history import StoredProgram
from djinn_lab.protocol.devices import device_profile
from djinn_lab.protocol.messages import DeviceInfo
from djinn_lab.protocol.rest.jobs import JobDetail, JobView, job_events
from djinn_lab.scheduler import SESSION_BOUND, ExecutionSchedule, Scheduler
from djinn_lab.srg.export import to_json
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.merging import merge_programs
from djinn_lab.srg.program import Program, decode_program, encode_program, encode_programs

JOBS_MAX = 1000
CUTS_LISTED_MAX = 32
Segment = Annotated[int | None, Query(ge=-ROW_MAX, le=ROW_MAX)]


def add_job_routes(app: FastAPI, context: PoolContext) -> None:
    """Add the routes that list, show, cancel and preempt jobs."""

    @app.get("/v1/jobs", responses=documented(list[JobView]), summary="Jobs of all users, newest first")
    async def jobs(
        _user: Annotated[User, Depends(reader)],
        state: JobState | None = None,
        user: str | None = None,
        limit: Annotated[int, Query(ge=1, le=JOBS_MAX)] = 100,
        fetches: Annotated[bool, Query(description="Also list fetches between cells that are done.")] = False,
    ) -> Response:
        return answer(await list_jobs(context, state, user, limit, fetches=fetches))

    @app.get("/v1/jobs/{job}", responses=documented(JobDetail), summary="A job with its code and events")
    async def job_detail(job: str, user: Annotated[User, Depends(reader)]) -> Response:
        view, code = await find_job(context, job)
        own = view.user == user.name or user.role >= Role.ADMIN
        story = context.driver.core.queue.story(view.job) if own else ()
        events = job_events(view.job, story)
        return answer(JobDetail(**msgspec.structs.asdict(view), code=code if own else "", events=events))

    @app.post("/v1/jobs/{job}/cancel", responses=documented(JobView), summary="Cancel a job")
    async def cancel(job: str, user: Annotated[User, Depends(runner)]) -> Response:
        view = await _stoppable(context, job, user)
        try:
            context.driver.cancel(view.job, f"by {user.name}")
        except IllegalEvent:
            raise HTTPException(409, f"Job {view.job} is already {view.state}.") from None
        return answer(context.driver.accounting.records[view.job].view(context.driver.core.clock.now_s()))

    @app.post(
        "/v1/jobs/{job}/preempt",
        responses=documented(JobView),
        summary="Preempt a running job: it resumes behind all that are pending now",
    )
    async def preempt(job: str, user: Annotated[User, Depends(runner)]) -> Response:
        view = await _stoppable(context, job, user)
        try:
            context.driver.preempt(view.job, f"{user.name} asked for its preemption")
        except IllegalEvent:
            raise HTTPException(409, f"Job {view.job} does not run ({view.state}).") from None
        return answer(context.driver.accounting.records[view.job].view(context.driver.core.clock.now_s()))

    _add_program_routes(app, context)


def _add_program_routes(app: FastAPI, context: PoolContext) -> None:
    @app.get(
        "/v1/jobs/{job}/program", summary="A job's encoded program of what was recorded between two cuts"
    )
    async def program(job: str, user: Annotated[User, Depends(reader)], segment: Segment = None) -> Response:
        stored = await _own_program(context, job, segment, user)
        encoded = await asyncio.to_thread(lambda: encoded_program(stored))
        return Response(encoded, media_type="application/octet-stream")

    @app.get(
        "/v1/jobs/{job}/programs", summary="A job's encoded programs, from each cut to the next, in order"
    )
    async def programs(job: str, user: Annotated[User, Depends(reader)]) -> Response:
        stored = await _own_parts(context, job, user)
        encoded = await asyncio.to_thread(lambda: encode_programs([program_of(part) for part in stored]))
        return Response(encoded, media_type="application/octet-stream")

    @app.get("/v1/jobs/{job}/graph", summary="A job's semantically rich graph")
    async def graph(job: str, user: Annotated[User, Depends(reader)], segment: Segment = None) -> Response:
        stored = await _own_program(context, job, segment, user)
        return await _computed(lambda: graph_json(stored))

    @app.get("/v1/jobs/{job}/schedule", summary="A job's execution schedule")
    async def schedule(
        job: str,
        user: Annotated[User, Depends(reader)],
        segment: Segment = None,
        whole: Annotated[bool, Query(description="Of all parts of the cell, as one.")] = False,
    ) -> Response:
        if whole:
            parts = await _own_parts(context, job, user)
            stored = StoredProgram(parts[-1].segment, [one for part in parts for one in part.parts])
        else:
            stored = await _own_program(context, job, segment, user)
        view, _ = await find_job(context, job)
        infos = context.driver.fleet.infos()
        return await _computed(lambda: schedule_json(stored, view, infos))


async def list_jobs(
    context: PoolContext, state: JobState | None, user: str | None, limit: int, *, fetches: bool
) -> list[JobView]:
    """List jobs, newest first; fetches that are done only where asked. Records in memory are the newest, and
    fresher than their rows."""
    records = context.driver.accounting.records
    wanted = state.value if state else None
    found = _in_memory(context, wanted, user, limit, fetches=fetches)
    if len(found) < limit:
        rows = await context.store.read(
            lambda connection: history.read_jobs(
                connection, wanted, user, limit + len(records), lambda view: fetches or not is_over(view)
            )
        )
        found += [view for view in rows if view.job not in records]
    newest = sorted(found, key=lambda view: -view.submitted_at)[:limit]
    return [with_last_cuts(view) for view in newest]


def with_newest(context: PoolContext, listed: Sequence[JobView], limit: int) -> tuple[JobView, ...]:
    """Bring a list of jobs up to this moment. ``listed``: as :func:`list_jobs` gave it."""
    records = context.driver.accounting.records
    current = map(with_last_cuts, _in_memory(context, None, None, limit, fetches=False))
    older = (view for view in listed if view.job not in records)
    return tuple(sorted((*current, *older), key=lambda view: -view.submitted_at)[:limit])


def _in_memory(
    context: PoolContext, state: str | None, user: str | None, limit: int, *, fetches: bool
) -> list[JobView]:
    records = reversed(context.driver.accounting.records.values())
    matching = (one for one in records if user in (None, one.user) and state in (None, one.state))
    views = (record.view(context.driver.core.clock.now_s()) for record in matching)
    return list(islice((view for view in views if fetches or not is_over(view)), limit))


def is_over(view: JobView) -> bool:
    """Return whether the job is a fetch between cells, and done."""
    return view.is_fetch and view.state == "DONE"


def with_last_cuts(view: JobView) -> JobView:
    """Keep the last cuts only: a list of jobs would be mostly cuts."""
    if len(view.cuts) <= CUTS_LISTED_MAX:
        return view
    return msgspec.structs.replace(view, cuts=view.cuts[-CUTS_LISTED_MAX:])


async def find_job(context: PoolContext, job: str) -> tuple[JobView, str]:
    """Return view and code of a job by its id, or by a unique prefix of the id. Raises HTTPException 404 or
    409."""
    records = context.driver.accounting.records
    live = [job] if job in records else [other for other in records if other.startswith(job)]
    if len(live) == 1:
        record = records[live[0]]
        if record.state not in FINISHED:
            record.reason = context.driver.core.queue.explain(record.job)
        return record.view(context.driver.core.clock.now_s()), record.code
    rows = [] if live else await context.store.read(lambda connection: history.read_job(connection, job))
    if len(live) + len(rows) > 1:
        raise HTTPException(409, f"{job!r} is the start of several jobs' ids; give a longer one.")
    if not rows:
        listed = "Ids are listed by djinn-lab jobs and, in a notebook, by %djinn jobs."
        raise HTTPException(404, f"There is no job {job[:80]!r}. {listed}")
    return rows[0]


async def _stoppable(context: PoolContext, job: str, user: User) -> JobView:
    """Find a job that the user may stop. Raises HTTPException."""
    view, _ = await find_job(context, job)
    if view.user != user.name and user.role < Role.OPERATOR:
        raise HTTPException(403, f"Job {job} belongs to another user.")
    return view


async def _own_program(
    context: PoolContext, job: str, segment: int | None, user: User
) -> history.StoredProgram:
    view, ends = await _own_job(context, job, user)
    stored = await context.store.read(
        lambda connection: history.read_program(connection, view.job, segment, ends)
    )
    if stored is None:
        raise _not_kept(job)
    return stored


async def _own_parts(context: PoolContext, job: str, user: User) -> list[StoredProgram]:
    view, ends = await _own_job(context, job, user)
    stored = await context.store.read(lambda connection: history.read_parts(connection, view.job, ends))
    if not stored:
        raise _not_kept(job)
    return stored


async def _own_job(context: PoolContext, job: str, user: User) -> tuple[JobView, list[int]]:
    """Find a job whose graphs the user may read, and which segments end with a cut. Raises HTTPException."""
    view, _ = await find_job(context, job)
    if view.user != user.name and user.role < Role.ADMIN:
        raise HTTPException(403, f"Job {job} belongs to another user.")
    return view, [cut.segment for cut in view.cuts]


def _not_kept(job: str) -> HTTPException:
    return HTTPException(
        404, f"The pool keeps no such program of job {job} (only those of the last 200 jobs)."
    )


async def _computed(compute: Callable[[], bytes]) -> Response:
    return Response(await asyncio.to_thread(compute), media_type="application/json")


def program_of(stored: StoredProgram) -> Program:
    """Merge all parts into one program."""
    return merge_programs([decode_program(part.program) for part in stored.parts])


def encoded_program(stored: StoredProgram) -> bytes:
    """Return the program of all parts, of a single one as it is kept."""
    return stored.parts[0].program if len(stored.parts) == 1 else encode_program(program_of(stored))


def _with_timings(schedule: ExecutionSchedule, stored: StoredProgram) -> ExecutionSchedule:
    """Add the parts' timings: per node, seconds on the device since the first part began, without pauses
    between parts. Nothing is added until all parts have run."""
    starts: list[float] = []
    ends: list[float] = []
    devices: list[str] = []
    for part in stored.parts:
        if part.timings is None:
            return schedule
        before = max(ends, default=0.0)
        starts += [before + start for start in part.timings[0]]
        ends += [before + end for end in part.timings[1]]
        devices += part.node_devices or (schedule.device.device,) * len(part.timings[1])
    several = any(device != schedule.device.device for device in devices)
    return schedule.with_measured(starts, ends, devices if several else ())


def graph_json(stored: StoredProgram) -> bytes:
    """Encode the SRG, with the number of its last segment, as JSON."""
    document = to_json(SRG.from_program(program_of(stored)))
    return msgspec.json.encode({**document, "segment": stored.segment})


def schedule_json(stored: StoredProgram, view: JobView, infos: Sequence[DeviceInfo]) -> bytes:
    """Encode the schedule on the device that ran it (else the first), with measured times, as JSON. Of a gang
    it is the one that its home alone would have had."""
    info = next((info for info in infos if info.device == view.device), infos[0])
    scheduler = Scheduler(devices=[device_profile(info)], bound_by=SESSION_BOUND)
    schedule = scheduler.schedule_program(program_of(stored))
    schedule = _with_timings(schedule, stored)
    if view.gang:
        schedule = msgspec.structs.replace(schedule, decisions=(*schedule.decisions, view.gang))
    return msgspec.json.encode({**schedule.to_json(), "segment": stored.segment})
