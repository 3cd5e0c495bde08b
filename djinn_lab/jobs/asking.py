"""What a job asks of decisions."""

from __future__ import annotations

from djinn_lab.jobs.conditions import jobs_in
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.request import Demand, Request
from djinn_lab.jobs.states import RANKS, JobState
from djinn_lab.jobs.tables import Tables
from djinn_lab.jobs.targets import parsed

_ANYWHERE = Demand()


def request_of(tables: Tables, job: Job, *, passed_over: bool) -> Request:
    """``passed_over``: memory was not ready when a decision wanted it to start, and has said no more."""
    ready = job.memory in ("free", "granted", "line") or (job.memory == "held" and job.memory_room)
    only = job.held_on if job.settled or job.move_s is None else None
    return Request(
        job=job.job,
        account=job.account,
        rank=_inherited_rank(tables, job),
        number=job.turn,
        arrived_s=job.submitted_at_s,
        demand=_demand(job, only),
        estimate_s=job.remaining_s,
        attained_s=job.ran_s,
        deadline_s=job.deadline_at_s,
        home=job.held_on,
        move_s=job.move_s or 0.0,
        preempted=job.preemptions,
        preempted_at_s=job.preempted_at_s,
        startable=ready and not passed_over,
        park_s=(job.move_s or 0.0) + job.parts_s,
        stuck=job.memory == "held" and job.memory_stuck,
    )


def _inherited_rank(tables: Tables, job: Job) -> int:
    """Its own, or the best of those that cannot run before it: what stands behind it in its session, and
    what comes after it by its own wish (priority inheritance: Sha, Rajkumar, Lehoczky, IEEE TC 39(9),
    1990)."""
    mates = tables.of_session[job.session]
    if len(mates) == 1 and not tables.of_state[JobState.SUBMITTED]:
        return RANKS[job.priority]
    behind = [tables.jobs[name] for name in mates]
    submitted = tables.in_state(JobState.SUBMITTED)
    after = [other for other in submitted if other.waits_for and job.job in jobs_in(other.waits_for)]
    waiting = (other for other in (*behind, *after) if other.state is not JobState.WAITING)
    return min((RANKS[other.priority] for other in waiting), default=RANKS[job.priority])


def _demand(job: Job, only: str | None) -> Demand:
    """``only``: the device that it has to run on; a gang has others besides."""
    if job.gang == 1 and job.wish is None and not job.terms.tolerates:
        return _ANYWHERE if only is None else Demand(nodes=frozenset({only}))
    target, alone = parsed(job.wish), job.gang == 1 and only is not None
    return Demand(
        members=job.gang,
        members_min=job.gang_min,
        selector=target.labels,
        tolerates=frozenset(job.terms.tolerates),
        nodes=frozenset({only}) if alone and only is not None else target.devices,
        anchor=None if alone else only,
    )
