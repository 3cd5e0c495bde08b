"""The part of the REST API that is about the queue: why and when, shares, devices that serve or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response

from djinn_lab import jobs
from djinn_lab.jobs import resources
from djinn_lab.jobs.decision import CalendarReservation, Change
from djinn_lab.jobs.fairness import AccountView
from djinn_lab.pool.api import queue_report
from djinn_lab.pool.api.jobs import find_job
from djinn_lab.pool.api.responses import admin, answer, documented, operator, reader, takes
from djinn_lab.pool.authentication import Role, User
from djinn_lab.pool.bookkeeping.operator_settings import OperatorEvent, store_setting
from djinn_lab.pool.context import PoolContext
from djinn_lab.pool.database import usage_history
from djinn_lab.pool.database.shares import write_targets
from djinn_lab.pool.scopes import lacks
from djinn_lab.protocol.rest.jobs import JobUsage, JobView
from djinn_lab.protocol.rest.queue import (
    AccountTargets,
    DeviceCordon,
    DeviceDescription,
    NewReservation,
    PolicyChoice,
    QueueView,
    StallView,
    WhatIfAnswer,
    WhyAnswer,
)
from djinn_lab.units import capitalised

Body = TypeVar("Body")
USAGE_MAX = 2000
"""A page; commits wait while one is read."""


def add_queue_routes(app: FastAPI, context: PoolContext) -> None:
    """Look, ask, apply_setting."""
    driver = context.driver
    queue, clock = driver.core.queue, driver.core.clock

    @app.get(
        "/v1/queue",
        responses=documented(QueueView),
        summary="Pending jobs and why they wait, running jobs, accounts",
    )
    async def whole_queue(user: Annotated[User, Depends(reader)]) -> Response:
        snapshot, running = queue.decision(clock.now_s()), queue.running_jobs()
        explained = [request.job for request in snapshot.cluster.waiting[: queue_report.EXPLAINED_MAX]]
        shown_as = driver.accounting.shown
        known = (*(shown_as(job) for name in explained if (job := queue.job(name))), *running)
        others = queue.waits_without_contending(queue_report.EXPLAINED_MAX - len(explained))
        found = await asyncio.to_thread(
            queue_report.report,
            known,
            snapshot,
            others,
            driver.core.decision_times(),
            context.heartbeat.lag_s,
            driver.accounting.starts.skill,
            queue.decided_s,
            driver.accounting.unusual(running),
            _accounts_of_users(context, user),
        )
        stall = driver.core.engine.stall
        shown = None if stall is None else StallView(**msgspec.structs.asdict(stall))
        return answer(msgspec.structs.replace(found, stall=shown))

    @app.get(
        "/v1/usage",
        responses=documented(list[JobUsage]),
        summary="What ended jobs used: a page of the newest, or of those before a job; oldest first",
    )
    async def usage(
        _user: Annotated[User, Depends(reader)],
        since: Annotated[float, Query(allow_inf_nan=False)] = 0.0,
        limit: Annotated[int, Query(ge=1, le=USAGE_MAX)] = USAGE_MAX,
        before: str | None = None,
    ) -> Response:
        if before is not None:
            before = (await find_job(context, before))[0].job
        return answer(await context.store.read(lambda c: usage_history.read_used(c, since, limit, before)))

    @app.get("/v1/jobs/{job}/why", responses=documented(WhyAnswer), summary="Why a job is where it is")
    async def why(job: str, _user: Annotated[User, Depends(reader)]) -> Response:
        view, _ = await find_job(context, job)
        known = queue.job(view.job)
        if known is None:
            return answer(WhyAnswer(view.job, view.state, _with_use(view.reason, view)))
        snapshot, plain = queue.decision(clock.now_s()), queue.explain(known.job)
        plain = " ".join((plain, *driver.accounting.unusual([known]).values()))
        skill = driver.accounting.starts.skill
        found = await asyncio.to_thread(
            queue_report.why, driver.accounting.shown(known), plain, snapshot, queue.decided_s, skill
        )
        contends = any(request.job == known.job for request in snapshot.cluster.waiting)
        waits = contends and driver.node_requests
        said = f"{found.sentence} {driver.node_requests}" if waits else found.sentence
        return answer(msgspec.structs.replace(found, sentence=_with_use(said, view)))

    @app.get(
        "/v1/jobs/{job}/what-if",
        responses=documented(WhatIfAnswer),
        summary="When a waiting job would start with another priority, gang or deadline",
    )
    async def what_if(
        job: str,
        _user: Annotated[User, Depends(reader)],
        priority: str | None = None,
        members: Annotated[int | None, Query(ge=1)] = None,
        deadline_s: Annotated[float | None, Query(gt=0, allow_inf_nan=False)] = None,
        anywhere: bool = False,
    ) -> Response:
        view, _ = await find_job(context, job)
        now_s = clock.now_s()
        snapshot, known = queue.decision(now_s), queue.job(view.job)
        if known is None or all(request.job != view.job for request in snapshot.cluster.waiting):
            raise HTTPException(409, f"Job {view.job} does not wait for a device ({view.state}).")
        at_s = None if deadline_s is None else now_s + deadline_s
        change = Change(priority.upper() if priority else None, members, at_s, anywhere)
        skill = driver.accounting.starts.skill
        try:
            found = await asyncio.to_thread(
                queue_report.changed, known, change, snapshot, queue.decided_s, skill
            )
        except ValueError as problem:
            raise HTTPException(422, str(problem)) from None
        return answer(found)

    _add_steering_routes(app, context)
    _add_reservation_routes(app, context)


def _accounts_of_users(context: PoolContext, reading: User) -> list[str]:
    """List the accounts of all users that may run cells, for a token that may list the users."""
    if reading.role < Role.ADMIN or lacks(reading.scopes, "GET /v1/users"):
        return []
    return [one.account for one in context.authentication.users() if one.role >= Role.USER]


def _add_steering_routes(app: FastAPI, context: PoolContext) -> None:
    driver = context.driver
    queue, clock = driver.core.queue, driver.core.clock

    @app.put(
        "/v1/accounts/{account:path}",
        openapi_extra=takes(AccountTargets),
        responses=documented(AccountView),
        summary="Weight and limits of an account, a project or an organisation (admins)",
    )
    async def set_targets(account: str, request: Request, _user: Annotated[User, Depends(admin)]) -> Response:
        targets = await _body(request, AccountTargets)
        now_s = clock.now_s()
        event = jobs.SharesChanged(now_s, account, targets.weight, targets.limits, targets.min_runtime_s)
        _apply(context, lambda: driver.apply_setting(event))
        await context.store.commit(write_targets(queue.account(account)))
        return answer(next(one for one in queue.accounts(now_s) if one.account == account))

    @app.post(
        "/v1/devices/{device}/cordon",
        openapi_extra=takes(DeviceCordon),
        status_code=204,
        summary="Start nothing new on a device (operators)",
    )
    async def cordon(device: str, request: Request, _user: Annotated[User, Depends(operator)]) -> None:
        drain = (await _body(request, DeviceCordon)).drain
        await _apply_and_store(context, jobs.DeviceCordoned(clock.now_s(), device, True, drain))

    @app.post(
        "/v1/devices/{device}/uncordon",
        status_code=204,
        summary="Let a cordoned device serve again (operators)",
    )
    async def uncordon(device: str, _user: Annotated[User, Depends(operator)]) -> None:
        await _apply_and_store(context, jobs.DeviceCordoned(clock.now_s(), device, False))

    @app.post(
        "/v1/devices/{device}/calibrate",
        status_code=204,
        summary="Measure a device again as soon as it is idle (operators)",
    )
    async def calibrate(device: str, _user: Annotated[User, Depends(operator)]) -> None:
        if device not in {status.plan.device for status in driver.fleet.statuses}:
            raise HTTPException(404, f"This pool has no device {device}.")
        driver.fleet.measure_again(device)

    @app.put(
        "/v1/devices/{device}/description",
        openapi_extra=takes(DeviceDescription),
        status_code=204,
        summary="Set a device's labels, taints, price per hour and watts (operators)",
    )
    async def describe(device: str, request: Request, _user: Annotated[User, Depends(operator)]) -> None:
        said = await _body(request, DeviceDescription)
        event = jobs.DeviceDescribed(clock.now_s(), device, said.labels, said.taints, said.price, said.watts)
        await _apply_and_store(context, event)

    @app.put(
        "/v1/queue/policy",
        openapi_extra=takes(PolicyChoice),
        status_code=204,
        summary="Change the queue's policy (admins)",
    )
    async def set_policy(request: Request, _user: Annotated[User, Depends(admin)]) -> None:
        policy = (await _body(request, PolicyChoice)).policy
        _apply(context, lambda: driver.apply_setting(jobs.PolicyChanged(clock.now_s(), policy)))


def _add_reservation_routes(app: FastAPI, context: PoolContext) -> None:
    driver, clock = context.driver, context.driver.core.clock

    @app.get("/v1/reservations", responses=documented(list[CalendarReservation]), summary="Reserved devices")
    async def reservations(_user: Annotated[User, Depends(reader)]) -> Response:
        return answer(queue_report.lasting(driver.core.queue.reservations, clock.now_s()))

    @app.put(
        "/v1/reservations/{name}",
        openapi_extra=takes(NewReservation),
        status_code=204,
        summary="Reserve devices for accounts (operators)",
    )
    async def reserve(name: str, request: Request, _user: Annotated[User, Depends(operator)]) -> None:
        wanted, now_s = await _body(request, NewReservation), clock.now_s()
        event = jobs.ReservationMade(
            now_s,
            name,
            frozenset(wanted.devices),
            now_s if wanted.begins_at is None else wanted.begins_at,
            wanted.ends_at,
            frozenset(wanted.accounts),
        )
        await _apply_and_store(context, event)

    @app.delete("/v1/reservations/{name}", status_code=204, summary="End a reservation (operators)")
    async def end_reservation(name: str, _user: Annotated[User, Depends(operator)]) -> None:
        await _apply_and_store(context, jobs.ReservationEnded(clock.now_s(), name))


def _with_use(sentence: str, view: JobView) -> str:
    """Add what a job is predicted to take, or the energy that it took once it has ended."""
    if view.state in jobs.FINISHED:
        return sentence if view.used_j is None else f"{sentence} {resources.used_energy(view.used_j)}"
    if view.predicted is None:
        return sentence
    return f"{sentence} {resources.forecast_sentence(view.predicted, view.watts)}"


async def _apply_and_store(context: PoolContext, event: OperatorEvent) -> None:
    """Apply an operator's setting, and store it for the pools that follow this one."""
    _apply(context, lambda: context.driver.apply_setting(event))
    await context.store.commit(store_setting(event))


def _apply(context: PoolContext, act: Callable[[], None]) -> None:
    try:
        act()
    except jobs.IllegalEvent as error:
        raise HTTPException(422, f"{capitalised(str(error))}.") from None


async def _body(request: Request, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(await request.body() or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise HTTPException(422, str(error)) from None
