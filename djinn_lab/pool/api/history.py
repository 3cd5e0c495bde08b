"""The part of the REST API about times gone by: use of devices and accounts, and waits, bucket by bucket."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Query, Response

from djinn_lab.jobs import Job
from djinn_lab.pool.api.responses import answer, documented, reader
from djinn_lab.pool.authentication import User
from djinn_lab.pool.context import PoolContext
from djinn_lab.pool.database.pool_lives import PoolLife, read_lives
from djinn_lab.pool.database.use_over_time import (
    BucketUse,
    BucketWaits,
    parts_of,
    read_use,
    read_waits,
)
from djinn_lab.protocol.rest.history import (
    AccountHistory,
    DeviceHistory,
    HistorySpan,
    PoolHistory,
    WaitHistory,
)

SPAN_S = 86_400.0
BUCKET_S = 900.0


def add_history_routes(app: FastAPI, context: PoolContext) -> None:
    """Add the route that shows a time gone by."""
    core, store = context.driver.core, context.store

    @app.get(
        "/v1/history",
        responses=documented(PoolHistory),
        summary="Use of devices and accounts, and waits of cells, over time",
    )
    async def pool_history(
        _user: Annotated[User, Depends(reader)],
        since: Annotated[
            float | None,
            Query(
                description="Seconds since the epoch; without it a day before ``until``.", allow_inf_nan=False
            ),
        ] = None,
        until: Annotated[
            float | None, Query(description="Seconds since the epoch, at most now.", allow_inf_nan=False)
        ] = None,
        bucket_s: Annotated[float, Query(description="Seconds of a bucket.")] = BUCKET_S,
    ) -> Response:
        now_s = core.clock.now_s()
        ends = now_s if until is None else min(until, now_s)
        try:
            span = HistorySpan.of(ends - SPAN_S if since is None else since, ends, bucket_s)
        except ValueError as problem:
            raise HTTPException(422, str(problem)) from None
        use = list(running_use(span, core.queue.running_jobs(), now_s))
        waits: list[BucketWaits] = []
        lives = await store.read(partial(read_lives, since=span.since, until=span.until))
        lives = [*(life for life in lives if life.pool != core.pool), context.life.at(now_s)]
        for part in parts_of(span):  # one after the other: commits go in between
            use += await store.read(partial(read_use, span=span, part=part, now_s=now_s))
            waits += await store.read(partial(read_waits, span=span, part=part))
        return answer(await asyncio.to_thread(history_of, span, lives, use, waits))


def running_use(span: HistorySpan, running: Sequence[Job], now_s: float) -> Iterable[BucketUse]:
    """Yield what jobs have used that still run, and are not in the ledger yet. Jobs of one batch share their
    device."""
    held = [(device, job) for job in running for device in (job.assigned_device, *job.members)]
    sharing = Counter(device for device, _ in held)
    for device, job in held:
        if device is None or job.running_since_s is None:
            continue
        for bucket, seconds in buckets_between(span, job.running_since_s, now_s):
            yield BucketUse(bucket, device, job.account, job.user, seconds / sharing[device])


def buckets_between(span: HistorySpan, begins: float, ends: float) -> Iterable[tuple[int, float]]:
    """Yield the buckets that have a part of a time, each with the seconds of that part."""
    begins, ends = max(begins, span.since), min(ends, span.until)
    if begins >= ends:
        return
    for bucket in range(int((begins - span.since) // span.bucket_s), span.count):
        seconds = min(ends, span.ends(bucket)) - max(begins, span.begins(bucket))
        if seconds > 0:
            yield bucket, seconds
        if span.ends(bucket) >= ends:
            return


def history_of(
    span: HistorySpan, lives: Iterable[PoolLife], use: Iterable[BucketUse], waits: Iterable[BucketWaits]
) -> PoolHistory:
    """Put together what was read; devices and accounts by name."""
    count = span.count
    up: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * count)
    busy: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * count)
    used: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * count)
    for life in lives:
        for bucket, seconds in buckets_between(span, life.began_at, life.seen_at):
            for device in life.devices:
                up[device][bucket] += seconds
    for one in use:
        bucket = min(one.bucket, count - 1)  # rounded up at the very end
        busy[one.device][bucket] += one.seconds
        used[one.account, one.user][bucket] += one.seconds
    return PoolHistory(
        span.since,
        span.until,
        span.bucket_s,
        devices=tuple(
            DeviceHistory(device, tuple(up[device]), tuple(busy[device])) for device in sorted({*up, *busy})
        ),
        accounts=tuple(AccountHistory(*who, tuple(seconds)) for who, seconds in sorted(used.items())),
        waits=_wait_history(count, waits),
    )


def _wait_history(count: int, waits: Iterable[BucketWaits]) -> WaitHistory:
    cells = [0] * count
    median_s: list[float | None] = [None] * count
    p90_s: list[float | None] = [None] * count
    for one in waits:
        cells[one.bucket], median_s[one.bucket], p90_s[one.bucket] = one.cells, one.median_s, one.p90_s
    return WaitHistory(tuple(cells), tuple(median_s), tuple(p90_s))
