"""The part of the REST API that is about batch notebooks."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import sqlalchemy as sa
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from msgspec.structs import replace

from djinn_lab.jobs import RANKS, IllegalEvent
from djinn_lab.jobs.batch import BatchNotebook, NotebookState, Submission
from djinn_lab.jobs.conditions import Need, parse
from djinn_lab.pool.api.jobs import find_job
from djinn_lab.pool.api.responses import answer, documented, reader, runner, takes
from djinn_lab.pool.authentication import Role, User
from djinn_lab.pool.context import PoolContext
from djinn_lab.pool.notebooks.attempt_files import EXECUTED_BYTES_MAX
from djinn_lab.pool.notebooks.store import AcceptedSubmission
from djinn_lab.pool.notebooks.views import (
    content_of,
    digest_of,
    notebook_views,
    parameterised,
    problem_of,
)
from djinn_lab.protocol.notebooks import ID_CHARACTERS, ID_PREFIX, NOTEBOOK_BYTES_MAX
from djinn_lab.protocol.rest.notebooks import NewNotebook, NotebookView
from djinn_lab.units import capitalised, format_bytes

NOTEBOOKS_MAX = 1000
CANCEL_WAIT_S = 8.0
RESUME_WAIT_S = 30.0


def add_notebook_routes(app: FastAPI, context: PoolContext) -> None:
    """Submit, list, look into, fetch and cancel."""
    service = context.notebooks

    @app.post(
        "/v1/notebooks",
        openapi_extra=takes(NewNotebook),
        status_code=201,
        responses={**documented(NotebookView, 201), **documented(NotebookView, 200)},
        summary="Run a notebook as a batch job; 200 when a submission with this key was accepted before",
    )
    async def submit(request: Request, user: Annotated[User, Depends(runner)]) -> Response:
        _check_may_submit(context, user)
        new = await _read(request)
        await _served(context)
        document = bytes(new.notebook)
        problem = await asyncio.to_thread(problem_of, document)
        if problem is not None:
            raise HTTPException(422, problem)
        try:
            document = await asyncio.to_thread(parameterised, document, new.parameters)
        except ValueError as error:
            raise HTTPException(422, f"{capitalised(str(error))}.") from None
        digest = await asyncio.to_thread(digest_of, new)
        known = service.job_with_key(user.name, new.key)
        if known is None:
            content = await asyncio.to_thread(content_of, document, new.parameters)
            asked, accepted = await _asked(context, new, user, digest)
            asked = replace(asked, content=content)
            known = await _accept(context, asked, accepted, document)
            if known is accepted:
                return answer(_view(context, known.job, user), 201)
        if known.digest != digest:
            raise HTTPException(
                409,
                f"The key {new.key!r} belongs to {known.job}, which was submitted with another content or "
                "other options. Give another key to run this one, too.",
            )
        return answer(_view(context, known.job, user))

    @app.get(
        "/v1/notebooks", responses=documented(list[NotebookView]), summary="Batch notebooks, newest first"
    )
    async def notebooks(
        asking: Annotated[User, Depends(reader)],
        state: NotebookState | None = None,
        user: str | None = None,
        limit: Annotated[int, Query(ge=1, le=NOTEBOOKS_MAX)] = 100,
    ) -> Response:
        await _served(context)
        found = [one for one in service.core if user in (None, one.user) and state in (None, one.state)]
        now_s = context.driver.core.clock.now_s()
        return answer(notebook_views(service.core, found[-limit:][::-1], now_s, asking))

    @app.get("/v1/notebooks/{job}", responses=documented(NotebookView), summary="One batch notebook")
    async def notebook(job: str, user: Annotated[User, Depends(reader)]) -> Response:
        return answer(_view(context, (await _find(context, job)).job, user))

    @app.get("/v1/notebooks/{job}/result", summary="The executed notebook, as far as it is")
    async def result(job: str, user: Annotated[User, Depends(reader)]) -> Response:
        found = await _find(context, job)
        if found.user != user.name and user.role < Role.ADMIN:
            raise HTTPException(403, f"Notebook {found.job} belongs to another user.")
        executed = await service.executed(found.job)
        if executed is None:
            raise HTTPException(404, _without_result(found))
        return Response(executed, media_type="application/x-ipynb+json")

    @app.post(
        "/v1/notebooks/{job}/cancel", responses=documented(NotebookView), summary="Cancel a batch notebook"
    )
    async def cancel(job: str, user: Annotated[User, Depends(runner)]) -> Response:
        found = await _find(context, job)
        if found.user != user.name and user.role < Role.OPERATOR:
            raise HTTPException(403, f"Notebook {found.job} belongs to another user.")
        try:
            service.cancel(found.job, f"by {user.name}")
        except IllegalEvent:
            raise HTTPException(409, f"Notebook {found.job} is already {found.state}.") from None
        await service.until_over(found.job, CANCEL_WAIT_S)
        return answer(_view(context, found.job, user))


def _without_result(found: BatchNotebook) -> str:
    if not found.over:
        return f"Notebook {found.job} has no executed cell yet ({found.state})."
    return (
        f"Notebook {found.job} ({found.state}) left no executed notebook: no cell of it ran, or it became "
        f"larger than {format_bytes(EXECUTED_BYTES_MAX)}, the most that is kept."
    )


def _check_may_submit(context: PoolContext, user: User) -> None:
    if context.notebooks.rules.open_to != "owner" or user.name == context.authentication.owner:
        return
    raise HTTPException(
        403,
        f"Only {context.authentication.owner}, whose pool this is, may submit notebooks: they are code that "
        "runs under that account. `djinn-lab pool start --notebooks-for users` lets every user do so.",
    )


async def _read(request: Request) -> NewNotebook:
    """Read a submission, if it is not too large. Raises HTTPException."""
    too_large = HTTPException(
        413,
        f"A notebook may have at most {format_bytes(NOTEBOOK_BYTES_MAX)}. Clear its outputs, or load its "
        "data from files.",
    )
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > NOTEBOOK_BYTES_MAX:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > NOTEBOOK_BYTES_MAX:
            raise too_large
    try:
        return await asyncio.to_thread(msgspec.json.decode, bytes(body), type=NewNotebook)
    except msgspec.DecodeError as error:
        raise HTTPException(422, str(error)) from None


async def _asked(
    context: PoolContext, new: NewNotebook, user: User, digest: str
) -> tuple[Submission, AcceptedSubmission]:
    """Validate a new notebook. Raises HTTPException when it cannot run here, or depends on something
    unknown."""
    if new.folder and not (Path(new.folder).is_absolute() and Path(new.folder).is_dir()):
        raise HTTPException(
            422,
            f"There is no folder {new.folder} on the pool's machine to run it in. Name one that is there "
            "with --folder.",
        )
    _check_priority(context, user, new.priority.upper())
    job = ID_PREFIX + uuid.uuid4().hex[:ID_CHARACTERS]
    now_s = context.driver.core.clock.now_s()
    asked = Submission(
        now_s,
        job,
        user.name,
        new.name,
        new.priority.upper(),
        restart=new.restart,
        timeout_s=new.timeout_s,
        deadline_s=new.deadline_s,
        account=user.account,
        after_count=new.after_count,
        after_timeout_s=new.after_timeout_s,
        parameters=new.parameters,
        memory_bytes=None if new.anyway else _largest_device_bytes(context),
        target=new.target,
        tolerates=new.tolerates,
    )
    _check_target(context, asked)
    asked = await _with_dependencies(context, asked, new.after)
    return asked, AcceptedSubmission(job, user.name, new.key, new.folder, digest)


def _largest_device_bytes(context: PoolContext) -> int | None:
    """Find the largest device's memory; None while no worker is ready."""
    return max((info.memory_bytes for info in context.driver.fleet.infos()), default=0) or None


async def _with_dependencies(context: PoolContext, asked: Submission, after: Sequence[str]) -> Submission:
    """Resolve the submission's dependencies to whole ids, with what is known of them. Raises
    HTTPException."""
    conditions, cells, ended = [], [], []
    for text in after:
        try:
            condition = parse(text)
        except ValueError as error:
            raise HTTPException(422, f"It depends on {error}.") from None
        if condition.need is Need.DATA:
            conditions.append(condition)
            continue
        if condition.job.startswith(ID_PREFIX):
            job = (await _find(context, condition.job)).job
        else:
            job = (await find_job(context, condition.job))[0].job
            end = await context.notebooks.dependencies.ended(job, asked.at_s)
            cells += [job] if end is None else []
            ended += [] if end is None else [end]
        conditions.append(replace(condition, job=job))
    texts = tuple(map(str, conditions))
    met = context.notebooks.dependencies.met(asked.account, texts)
    return replace(asked, after=texts, met=met, cells=tuple(cells), ended=tuple(ended))


def _check_priority(context: PoolContext, user: User, priority: str) -> None:
    """Limits of accounts count for slots as they do for cells. Raises HTTPException."""
    core = context.driver.core
    for account in core.queue.accounts(core.clock.now_s()):
        best = account.limits.rank_min
        over = user.account == account.account or user.account.startswith(f"{account.account}/")
        if over and RANKS.get(priority, best) < best:
            limit = list(RANKS)[best]
            raise HTTPException(
                422, f"Priority {priority} is above the limit of account {account.account}, {limit}."
            )


def _check_target(context: PoolContext, asked: Submission) -> None:
    """Refuse a target that suits no device, as its cells would be. Raises HTTPException."""
    if asked.target is None and not asked.tolerates:
        return  # its cells may say more, or have nothing to compute
    try:
        context.driver.core.queue.check_target(asked.target, asked.tolerates)
    except IllegalEvent as error:
        raise _refused(error) from None


def _refused(error: IllegalEvent) -> HTTPException:
    return HTTPException(422, f"{capitalised(str(error))}.")


async def _accept(
    context: PoolContext, asked: Submission, accepted: AcceptedSubmission, document: bytes
) -> AcceptedSubmission:
    try:
        return await context.notebooks.submit(asked, accepted, document)
    except IllegalEvent as error:
        raise _refused(error) from None
    except sa.exc.SQLAlchemyError as error:
        raise HTTPException(503, f"The notebook could not be stored, and was not accepted: {error}") from None


async def _served(context: PoolContext) -> None:
    """Wait until the pool has resumed the notebooks of the server before it. Raises HTTPException."""
    try:
        await asyncio.wait_for(context.notebooks.started.wait(), RESUME_WAIT_S)
    except TimeoutError:
        raise HTTPException(
            503, "The pool has not loaded its notebooks yet. Try again; if that lasts, see its log."
        ) from None


async def _find(context: PoolContext, job: str) -> BatchNotebook:
    """Find a notebook by its id, or by a unique prefix of the id. Raises HTTPException 404 or 409."""
    await _served(context)
    core = context.notebooks.core
    exact = core.get(job)
    if exact is not None:
        return exact
    matching = [one for one in core if one.job.startswith(job)]
    if len(matching) > 1:
        raise HTTPException(409, f"{job!r} is the start of several notebooks' ids; give a longer one.")
    if not matching:
        raise HTTPException(404, f"There is no notebook {job[:80]!r}. djinn-lab notebooks lists them.")
    return matching[0]


def _view(context: PoolContext, job: str, user: User) -> NotebookView:
    core = context.notebooks.core
    notebook = core.get(job)
    assert notebook is not None
    return notebook_views(core, [notebook], context.driver.core.clock.now_s(), user)[0]
