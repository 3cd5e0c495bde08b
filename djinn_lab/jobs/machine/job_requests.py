"""Build the request of a job, which decisions read."""

from __future__ import annotations

from djinn_lab.events import MemoryRelease
from djinn_lab.jobs.conditions import jobs_in
from djinn_lab.jobs.decision import BRIEF_S
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.machine.tables import QueueTables
from djinn_lab.jobs.request import Demand, Request
from djinn_lab.jobs.states import RANKS, JobState
from djinn_lab.jobs.targets import parsed

_ANYWHERE = Demand()


def request_of(tables: QueueTables, job: Job, *, awaiting_memory: bool) -> Request:
    """Return the job's request. ``awaiting_memory``: a decision wanted to start the job without a memory
    grant, and session memory has not answered since."""
    ready = job.memory in ("free", "granted", "queued") or (
        job.memory == "deferred" and job.memory_release is MemoryRelease.PREEMPTION
    )
    only = job.assigned_device if job.settled or job.move_s is None else None
    return Request(
        job=job.job,
        account=job.account,
        rank=_inherited_rank(tables, job),
        number=job.turn,
        arrived_s=job.submitted_at_s,
        demand=_demand(job, only),
        estimate_s=job.remaining_s,
        spread=job.predicted_spread,
        attained_s=job.ran_s,
        deadline_s=job.deadline_at_s,
        home=job.assigned_device,
        move_s=job.move_s or 0.0,
        other_host_s=job.other_host_s,
        preempted=job.preemptions,
        preempted_at_s=job.preempted_at_s,
        startable=ready and not awaiting_memory,
        park_s=(job.move_s or 0.0) + job.parts_s,
        stuck=job.memory == "deferred" and job.memory_release.stuck,
        segment_at_s=job.segment_at_s,
        phase=job.phase if job.phase != "decode" or job.memory in ("free", "granted") else "",
        process=job.shared_process,
        brief=_is_brief(job),
    )


def _is_brief(job: Job) -> bool:
    """Return whether the job may run between two ops of another one: its segment is expected to be short, and
    its session's state is on its device."""
    if not job.shared_process or job.predicted_s is None or job.ops_done:
        return False
    return job.predicted_s <= BRIEF_S and job.state is JobState.QUEUED


def _inherited_rank(tables: QueueTables, job: Job) -> int:
    """Return the job's rank, or the best rank of those that cannot run before it: later jobs of its
    session, and jobs that depend on it (priority inheritance: Sha, Rajkumar, Lehoczky, IEEE TC 39(9),
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
    """``only``: the device that the job has to run on; a gang has others besides."""
    if job.gang == 1 and job.target is None and not job.terms.tolerates:
        return _ANYWHERE if only is None else Demand(nodes=frozenset({only}))
    target, alone = parsed(job.target), job.gang == 1 and only is not None
    return Demand(
        members=job.gang,
        members_min=job.gang_min,
        selector=target.labels,
        tolerates=frozenset(job.terms.tolerates),
        nodes=frozenset({only}) if alone and only is not None else target.devices,
        anchor=None if alone else only,
    )
