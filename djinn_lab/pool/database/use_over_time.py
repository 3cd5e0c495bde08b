"""Use of devices and waits of cells over time, summed up by the database.

A stretch of the usage ledger may lie in several buckets: the query cuts it at their edges. A long time is
read in parts, so that commits do not wait for all of it. Each stretch belongs to the part in which it
*ended*, and its seconds still go to the buckets in which they passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa

from djinn_lab.pool.database.tables import jobs, usage
from djinn_lab.protocol.messages import FETCH_CELL
from djinn_lab.protocol.rest.history import HistorySpan

PART_BUCKETS = 8


class HistoryPart(NamedTuple):
    """Buckets from ``first`` to before ``end`` of a span; ``last``: no bucket comes after them."""

    first: int
    end: int
    last: bool


class BucketUse(NamedTuple):
    """What a user's cells used of a device in a bucket."""

    bucket: int
    device: str
    account: str
    user: str
    seconds: float


class BucketWaits(NamedTuple):
    """How long the cells that were submitted in a bucket waited; ``cells``: how many have begun to run."""

    bucket: int
    cells: int
    median_s: float
    p90_s: float


def parts_of(span: HistorySpan) -> Iterator[HistoryPart]:
    """Divide a span into what is read at once."""
    for first in range(0, span.count, PART_BUCKETS):
        end = min(first + PART_BUCKETS, span.count)
        yield HistoryPart(first, end, end == span.count)


def read_use(
    connection: sa.Connection, span: HistorySpan, part: HistoryPart, now_s: float
) -> list[BucketUse]:
    """Sum the stretches that ended in a part; in the last part also those that ended later, up to ``now_s``:
    what ended after that was still running then, and the caller counts it."""
    used = usage.c
    began = sa.case((used.started_at_s < span.since, span.since), else_=used.started_at_s)
    ended = sa.case((used.ended_at_s > span.until, span.until), else_=used.ended_at_s)
    wanted = (
        used.ended_at_s > span.begins(part.first),
        used.ended_at_s <= (now_s if part.last else span.begins(part.end)),
        used.started_at_s < span.until,
    )
    who = (used.device, used.account, used.user)
    first = sa.select(
        _bucket(connection, span, began).label("bucket"),
        sa.cast(began, sa.Double).label("began"),
        sa.cast(ended, sa.Double).label("ended"),
        *who,
    )
    piece = first.where(*wanted).cte("piece", recursive=True)
    edge = sa.cast(span.since + (piece.c.bucket + 1) * span.bucket_s, sa.Double)
    whose = (piece.c.device, piece.c.account, piece.c.user)
    rest = sa.select(piece.c.bucket + 1, edge, piece.c.ended, *whose).where(piece.c.ended > edge)
    piece = piece.union_all(rest)
    whose = (piece.c.device, piece.c.account, piece.c.user)
    end = span.since + (piece.c.bucket + 1) * span.bucket_s
    seconds = sa.case((piece.c.ended > end, end), else_=piece.c.ended) - piece.c.began
    query = sa.select(piece.c.bucket, *whose, sa.func.sum(seconds)).group_by(piece.c.bucket, *whose)
    return [BucketUse(*row) for row in connection.execute(query)]


def read_waits(connection: sa.Connection, span: HistorySpan, part: HistoryPart) -> list[BucketWaits]:
    """Take median and ninetieth percentile, by nearest rank, of the waits of cells that were submitted in a
    part and have begun to run. Fetches between cells do not count."""
    job, view = jobs.c, _json(connection, jobs.c.view)
    queued_s, restoring_s = (view["stages", stage].as_float() for stage in ("queued", "restoring"))
    started_at = view["started_at"].as_float()
    wait_s = sa.case(
        (queued_s.is_not(None), queued_s + sa.func.coalesce(restoring_s, 0.0)),
        else_=started_at - job.submitted_at,
    )
    bucket = _bucket(connection, span, job.submitted_at).label("bucket")
    until = span.until if part.last else span.begins(part.end)
    found = sa.select(bucket, wait_s.label("wait_s")).where(
        job.submitted_at >= span.begins(part.first),
        job.submitted_at < until,
        started_at.is_not(None),
        view["cell"].as_string() != FETCH_CELL,
    )
    cell = found.subquery().c
    ranked = (
        sa.select(
            cell.bucket,
            cell.wait_s,
            sa.func.row_number().over(partition_by=cell.bucket, order_by=cell.wait_s).label("rank"),
            sa.func.count().over(partition_by=cell.bucket).label("cells"),
        )
        .subquery()
        .c
    )
    median_s = sa.func.min(sa.case((ranked.rank * 2 >= ranked.cells, ranked.wait_s)))
    p90_s = sa.func.min(sa.case((ranked.rank * 10 >= ranked.cells * 9, ranked.wait_s)))
    query = sa.select(ranked.bucket, sa.func.max(ranked.cells), median_s, p90_s).group_by(ranked.bucket)
    return [BucketWaits(*row) for row in connection.execute(query)]


def _bucket(
    connection: sa.Connection, span: HistorySpan, moment: sa.ColumnElement[float]
) -> sa.ColumnElement[int]:
    """Number the bucket of a moment that is not before the span. A cast cuts in SQLite, and rounds in
    PostgreSQL."""
    number = (moment - span.since) / span.bucket_s
    return sa.cast(number if _is_sqlite(connection) else sa.func.trunc(number), sa.Integer)


def _json(connection: sa.Connection, text: sa.ColumnElement[str]) -> sa.ColumnElement[sa.JSON]:
    """Read a text as JSON. SQLite reads texts as they are, and would make a number of a cast."""
    return sa.type_coerce(text, sa.JSON) if _is_sqlite(connection) else sa.cast(text, sa.JSON)


def _is_sqlite(connection: sa.Connection) -> bool:
    return connection.dialect.name == "sqlite"
