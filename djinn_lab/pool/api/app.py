"""The REST API. Everything but ``/v1/alive`` and ``/v1/login`` needs a bearer token."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Annotated

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response, WebSocket
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from djinn_lab.errors import Refused
from djinn_lab.pool.api.announcements import add_announcement_routes
from djinn_lab.pool.api.audited import Audited
from djinn_lab.pool.api.history import add_history_routes
from djinn_lab.pool.api.job_pages import add_job_page_routes
from djinn_lab.pool.api.jobs import JOBS_MAX, add_job_routes, list_jobs, with_newest
from djinn_lab.pool.api.notebooks import add_notebook_routes
from djinn_lab.pool.api.queue import add_queue_routes
from djinn_lab.pool.api.read_limits import ReadLimiter
from djinn_lab.pool.api.request_limits import BodyLimiter
from djinn_lab.pool.api.responses import ROW_MAX, admin, answer, documented, reader, runner, takes
from djinn_lab.pool.api.status import memory_view, plan_cache_usage, pool_status, session_view
from djinn_lab.pool.api.tokens import add_token_routes
from djinn_lab.pool.api.transfers import add_transfer_routes
from djinn_lab.pool.api.users import add_user_routes
from djinn_lab.pool.authentication import Role, User
from djinn_lab.pool.context import PoolContext
from djinn_lab.pool.database import history
from djinn_lab.pool.database.audit import read_audit, read_head
from djinn_lab.pool.database.durability import CommittedAnswers
from djinn_lab.pool.identity.admission import AdmitTokens
from djinn_lab.pool.sessions.endpoint import SessionEndpoint
from djinn_lab.pool.user_limits import OverLimit, RequestRates
from djinn_lab.protocol.configured_start import forget_start
from djinn_lab.protocol.messages import PhaseAnswered, SignalPhase
from djinn_lab.protocol.rest.audit import AuditRow, ChainHead
from djinn_lab.protocol.rest.costs import CostView
from djinn_lab.protocol.rest.login import TOKEN, LoginWay
from djinn_lab.protocol.rest.sessions import MemoryView, SessionView
from djinn_lab.protocol.rest.snapshot import PoolSnapshot
from djinn_lab.protocol.rest.status import JournalLine, PoolStatus
from djinn_lab.protocol.version import VERSION
from djinn_lab.units import format_seconds

EVENTS_MAX = 1000


def create_app(context: PoolContext) -> FastAPI:
    """Make the pool's ASGI application."""
    app = FastAPI(title="Djinn Lab pool", version=VERSION, openapi_url=None, docs_url=None, redoc_url=None)
    accounting = context.driver.accounting
    app.add_middleware(BodyLimiter)
    rates = RequestRates(context.limits.requests_per_s)
    app.add_middleware(ReadLimiter, authentication=context.authentication, rates=rates)
    app.add_middleware(Audited, authentication=context.authentication, audit=accounting.audit)
    app.add_middleware(CommittedAnswers, durability=accounting.durability)
    app.add_middleware(AdmitTokens, admission=context.admission)
    app.state.context = context
    endpoint = SessionEndpoint(context.driver, context.authentication, context.blobs, context.limits, rates)

    @app.websocket("/v1/session")
    async def session_socket(websocket: WebSocket) -> None:
        await endpoint.serve(websocket)

    @app.get("/v1/alive", summary="Whether a pool listens here, leads, and can write; needs no token")
    async def alive() -> dict[str, bool]:
        return {"alive": True, "leads": True, "writes": not context.store.full}

    @app.get("/v1/login", responses=documented(list[LoginWay]), summary="Ways to get in; needs no token")
    async def login() -> Response:
        return answer([LoginWay(TOKEN), *(one.way() for one in context.admission.providers)])

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi(_user: Annotated[User, Depends(reader)]) -> JSONResponse:
        return JSONResponse(app.openapi())

    @app.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> JSONResponse:
        status = error.status if isinstance(error, OverLimit) else 422
        return JSONResponse({"detail": str(error)}, status_code=status)

    @app.exception_handler(RecursionError)
    async def too_deep(_request: Request, _error: RecursionError) -> JSONResponse:
        return JSONResponse({"detail": "The body is nested too deeply."}, status_code=422)

    @app.exception_handler(UnicodeDecodeError)
    async def no_text(_request: Request, error: UnicodeDecodeError) -> JSONResponse:
        return JSONResponse({"detail": f"The body is not UTF-8: {error.reason}."}, status_code=422)

    @app.exception_handler(ClientDisconnect)
    async def gone(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=400)

    _add_status_routes(app, context)
    _add_session_routes(app, context)
    add_transfer_routes(app, context)
    add_user_routes(app, context)
    add_token_routes(app, context)
    add_job_routes(app, context)
    add_job_page_routes(app, context)
    add_queue_routes(app, context)
    add_history_routes(app, context)
    add_notebook_routes(app, context)
    add_announcement_routes(app, context)
    return app


def _add_status_routes(app: FastAPI, context: PoolContext) -> None:
    @app.get("/v1/status", responses=documented(PoolStatus), summary="Devices, load, versions")
    async def status(user: Annotated[User, Depends(reader)]) -> Response:
        lag_s = context.heartbeat.lag_s
        users = len(context.authentication.users())
        return answer(pool_status(context.driver, user, context.started_at, context.ready, lag_s, users))

    @app.get(
        "/v1/snapshot",
        responses=documented(PoolSnapshot),
        summary="Status, sessions, session memory and the newest jobs of one moment",
    )
    async def snapshot(
        user: Annotated[User, Depends(reader)], jobs: Annotated[int, Query(ge=0, le=JOBS_MAX)] = 100
    ) -> Response:
        listed = await list_jobs(context, None, None, jobs, fetches=False)
        driver, users = context.driver, len(context.authentication.users())
        lag_s = context.heartbeat.lag_s
        return answer(
            PoolSnapshot(
                pool_status(driver, user, context.started_at, context.ready, lag_s, users),
                tuple(session_view(driver, session, context.detached) for session in driver.registry),
                with_newest(context, listed, jobs),
                memory_view(driver),
            )
        )

    @app.get("/v1/events", responses=documented(list[JournalLine]), summary="The journal")
    async def events(
        _user: Annotated[User, Depends(reader)],
        after: Annotated[int | None, Query(ge=-ROW_MAX, le=ROW_MAX)] = None,
        limit: Annotated[int, Query(ge=1, le=EVENTS_MAX)] = 200,
    ) -> Response:
        pool = context.driver.core.pool
        return answer(await context.store.read(lambda c: history.read_events(c, pool, after, limit)))

    @app.get("/v1/audit", responses=documented(list[AuditRow]), summary="Changes and refusals (admins)")
    async def audit(
        _user: Annotated[User, Depends(admin)],
        limit: Annotated[int, Query(ge=1, le=EVENTS_MAX)] = 200,
        after: Annotated[int | None, Query(ge=0, le=ROW_MAX)] = None,
        user: Annotated[str | None, Query(max_length=100)] = None,
        action: Annotated[str | None, Query(max_length=100)] = None,
        refused: bool = False,
        since: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    ) -> Response:
        read = partial(
            read_audit, limit=limit, after=after, user=user, action=action, refused=refused, since=since
        )
        return answer(await context.store.read(read))

    @app.get("/v1/audit/head", responses=documented(ChainHead), summary="Last row of the audit (admins)")
    async def audit_head(_user: Annotated[User, Depends(admin)]) -> Response:
        return answer(await context.store.read(read_head))

    @app.get("/metrics", summary="Prometheus metrics")
    async def metrics(_user: Annotated[User, Depends(reader)]) -> Response:
        context.metrics.note_notebooks(context.notebooks.core)
        content, content_type = context.metrics.render(context.driver)
        return Response(content, media_type=content_type)

    @app.post("/v1/shutdown", status_code=202, summary="Stop the pool (admins)")
    async def shutdown(_user: Annotated[User, Depends(admin)]) -> Response:
        await asyncio.to_thread(forget_start)
        context.stop()
        return answer({"detail": "The pool stops."}, 202)


def _add_session_routes(app: FastAPI, context: PoolContext) -> None:
    driver = context.driver

    @app.get("/v1/sessions", responses=documented(list[SessionView]), summary="All sessions")
    async def sessions(_user: Annotated[User, Depends(reader)]) -> Response:
        return answer([session_view(driver, session, context.detached) for session in driver.registry])

    @app.get("/v1/costs", responses=documented(CostView), summary="What run times are predicted from")
    async def costs(_user: Annotated[User, Depends(reader)], details: bool = False) -> Response:
        return answer(driver.accounting.costs.view(plan_cache_usage(driver), details))

    @app.get("/v1/memory", responses=documented(MemoryView), summary="Memory tier of every session")
    async def session_memory(
        _user: Annotated[User, Depends(reader)],
        settled: Annotated[
            str | None, Query(description="A session: its releases are counted first, within seconds.")
        ] = None,
    ) -> Response:
        if settled is not None:
            await driver.transfers.settle_releases(settled)
        return answer(memory_view(driver))

    @app.post(
        "/v1/sessions/{session}/phase",
        openapi_extra=takes(SignalPhase),
        responses=documented(PhaseAnswered),
        summary="Signal what a session does",
    )
    async def signal_phase(
        session: str, request: Request, user: Annotated[User, Depends(runner)]
    ) -> Response:
        known = driver.registry.get(session)
        if known is None:
            raise HTTPException(404, f"There is no session {session!r}.")
        if known.user != user.name and user.role < Role.OPERATOR:
            raise HTTPException(403, f"Session {session} belongs to another user.")
        try:
            message = msgspec.json.decode(await request.body(), type=SignalPhase)
        except msgspec.DecodeError as error:
            raise HTTPException(422, str(error)) from None
        now_s = driver.core.clock.now_s()
        wait_s = known.pace.signals.wait_s(now_s)
        if wait_s > 0:
            raise HTTPException(
                429,
                f"Session {session} signals too often. Signal again in {format_seconds(wait_s)}.",
                {"Retry-After": str(math.ceil(wait_s))},
            )
        known.pace.take(message, now_s)
        answered: asyncio.Future[PhaseAnswered] = asyncio.get_running_loop().create_future()

        def resolve(said: PhaseAnswered) -> None:
            if not answered.done():  # the client that asked may have gone
                answered.set_result(said)

        driver.signals.put(known, message, resolve)
        said = await answered
        return answer(said)

    @app.delete(
        "/v1/sessions/{session}", status_code=204, summary="Close a session and free all that it holds"
    )
    async def delete_session(session: str, user: Annotated[User, Depends(runner)]) -> None:
        known = driver.registry.get(session)
        if known is None:
            raise HTTPException(404, f"There is no session {session!r}.")
        if known.user != user.name and user.role < Role.OPERATOR:
            raise HTTPException(403, f"Session {session} belongs to another user.")
        driver.close(known, f"by {user.name}, with `djinn-lab close` or over the API")
