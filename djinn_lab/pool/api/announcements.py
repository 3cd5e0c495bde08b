"""The part of the REST API by which jobs say how far they are: checkpoints, and data that others wait for."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa
from fastapi import Depends, FastAPI, HTTPException, Request, Response

from djinn_lab import jobs
from djinn_lab.jobs import IllegalEvent, batch
from djinn_lab.jobs.conditions import name_problem
from djinn_lab.pool.api.responses import answer, documented, reader, runner, takes
from djinn_lab.pool.authentication import Role, User
from djinn_lab.pool.context import PoolContext
from djinn_lab.pool.database.published import (
    OF_USER_MAX,
    forget_published,
    write_published,
)
from djinn_lab.protocol.rest.announcements import Announced, Announcement, Published


def add_announcement_routes(app: FastAPI, context: PoolContext) -> None:
    """Say, look and take back."""
    driver, data = context.driver, context.driver.accounting.published
    clock = driver.core.clock

    @app.post(
        "/v1/checkpoints",
        openapi_extra=takes(Announcement),
        responses=documented(Announced),
        summary="Announce a checkpoint of a running cell or batch notebook; repeating a name changes nothing",
    )
    async def checkpoint(request: Request, user: Annotated[User, Depends(runner)]) -> Response:
        said = await _read(request)
        of = _own_jobs(context, user, said.job)
        if not of:
            raise HTTPException(
                422,
                "A checkpoint is announced by a running batch notebook, or by a running cell that has sent "
                "torch work to the pool; this is neither. Publish as data what outlives its job.",
            )
        try:
            for job in of:
                if job == user.notebook:
                    await context.notebooks.announce(batch.CheckpointAnnounced(clock.now_s(), job, said.name))
                else:
                    driver.announce(job, said.name)
                    context.notebooks.handle(batch.CheckpointAnnounced(clock.now_s(), job, said.name))
        except IllegalEvent as error:
            raise HTTPException(422, f"The checkpoint cannot be announced: {error}.") from None
        except sa.exc.SQLAlchemyError as error:
            raise HTTPException(503, f"The checkpoint could not be stored: {error}") from None
        return answer(Announced(said.name, of))

    @app.post(
        "/v1/data",
        openapi_extra=takes(Announcement),
        responses=documented(Published),
        summary="Publish data for the jobs of the user and project; repeating a name changes nothing",
    )
    async def publish(request: Request, user: Annotated[User, Depends(runner)]) -> Response:
        said = await _read(request)
        known = data.of(user.name, said.name)
        if known is None:
            if data.count(user.name) >= OF_USER_MAX:
                raise HTTPException(
                    422,
                    f"{user.name} has published {OF_USER_MAX} names, which is the limit. "
                    "Withdraw some first: djinn-lab data forget NAME.",
                )
            of = _own_jobs(context, user, said.job)
            known = Published(user.name, user.account, said.name, of[0] if of else "", clock.now_s())
            try:
                await context.store.commit(write_published(known))
            except sa.exc.SQLAlchemyError as error:
                raise HTTPException(503, f"The data could not be stored: {error}") from None
            data.add(known)
            driver.publish(user.account, said.name)
            context.notebooks.handle(batch.DataPublished(clock.now_s(), user.account, said.name))
        return answer(known)

    @app.get(
        "/v1/data", responses=documented(list[Published]), summary="What was published for this user's jobs"
    )
    async def published(user: Annotated[User, Depends(reader)]) -> Response:
        return answer(data.visible(user.account))

    @app.delete("/v1/data/{name:path}", status_code=204, summary="Withdraw published data")
    async def forget(name: str, user: Annotated[User, Depends(runner)]) -> None:
        known = data.of(user.name, name)
        if known is None:
            raise HTTPException(404, f"{user.name} has published no data {name[:80]!r}.")
        await context.store.commit(forget_published(known))
        if data.of(user.name, name) is not None:
            data.remove(known)


async def _read(request: Request) -> Announcement:
    """Raises HTTPException."""
    try:
        said = msgspec.json.decode(await request.body(), type=Announcement)
    except msgspec.DecodeError as error:
        raise HTTPException(422, str(error)) from None
    problem = name_problem(said.name)
    if problem is not None:
        raise HTTPException(422, f"{said.name[:80]!r} cannot be announced: {problem}.")
    return said


def _own_jobs(context: PoolContext, user: User, job: str | None) -> tuple[str, ...]:
    """Find the running batch notebook and cell that an announcement comes from. Raises
    HTTPException."""
    found: tuple[str, ...] = (user.notebook,) if user.notebook else ()
    known = None if job is None else context.driver.core.queue.job(job)
    if known is not None and known.user != user.name and user.role < Role.ADMIN:
        raise HTTPException(403, f"Job {job} belongs to another user.")
    if known is not None and known.state not in jobs.FINISHED:
        found += (known.job,)
    return found
