"""What ended jobs used, job by job: for accounting, and for trying other policies on a team's own history."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from djinn_lab.jobs.resources import ResourceForecast
from djinn_lab.pool.database import tables
from djinn_lab.protocol.rest.jobs import JobUsage, predicted_run_s

_FINISHED = ("DONE", "FAILED", "CANCELLED")


class _StoredView(msgspec.Struct, frozen=True):
    """Decode what usage needs of a job's stored view."""

    priority: str = "NORMAL"
    segments: int = 0
    predicted_s: float | None = None
    predicted: ResourceForecast | None = None
    used_j: float | None = None


def read_used(
    connection: sa.Connection, since: float, limit: int, before: str | None = None
) -> list[JobUsage]:
    """Read a page of the jobs that ended: the newest ``limit`` of those submitted after ``since`` and ahead
    of the job ``before`` (None: of all), oldest first. Costs what the page costs, however many there are."""
    job, used = tables.jobs.c, tables.usage.c
    ran = sa.exists().where(used.job == job.job)
    page = sa.select(job.job).where(job.state.in_(_FINISHED), job.submitted_at > since, ran)
    if before is not None:
        at = sa.select(job.submitted_at).where(job.job == before).scalar_subquery()
        page = page.where((job.submitted_at < at) | ((job.submitted_at == at) & (job.job < before)))
    page = page.order_by(job.submitted_at.desc(), job.job.desc()).limit(limit)
    query = (
        sa.select(
            job.job,
            job.user,
            job.view,
            job.submitted_at,
            sa.func.min(used.account).label("account"),
            sa.func.sum(used.ended_at_s - used.started_at_s).label("run_s"),
            sa.func.count().label("stretches"),
            sa.func.sum(used.memory_byte_s).label("memory_byte_s"),
            sa.func.sum(used.transfer_bytes).label("transfer_bytes"),
        )
        .join(tables.usage, used.job == job.job)
        .where(job.job.in_(page))
        .group_by(job.job, job.user, job.view, job.submitted_at)
        .order_by(job.submitted_at.desc(), job.job.desc())
    )
    return [_used(row) for row in connection.execute(query).all()][::-1]


def _used(row: sa.Row[tuple[object, ...]]) -> JobUsage:
    view = msgspec.json.decode(row.view, type=_StoredView)
    return JobUsage(
        job=row.job,
        user=row.user,
        account=row.account,
        priority=view.priority,
        submitted_at=row.submitted_at,
        run_s=row.run_s,
        stretches=row.stretches,
        memory_byte_s=row.memory_byte_s,
        transfer_bytes=row.transfer_bytes,
        predicted_s=predicted_run_s(view.predicted, view.segments, view.predicted_s),
        used_j=view.used_j,
    )
