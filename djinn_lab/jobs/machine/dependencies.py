"""Jobs that depend on others: on their ends, their checkpoints, or published data.

A job can only name jobs that came before it, and in its session it runs after earlier jobs. So
dependencies always point back in time and make no cycle, but for one case. A cell sends its segments one
after the other, and a later segment runs after all that is there. So a job that waits, along any path, for
a cell of its own session with segments to come would wait for ever. Such a submit is refused
(:func:`check`). Data has no such direction: a job that waits for data that is never published sets a limit
(``after_timeout_s``)."""

from __future__ import annotations

from msgspec.structs import replace

from djinn_lab.events import IllegalEvent
from djinn_lab.jobs import conditions
from djinn_lab.jobs.conditions import DependencyResults, DependencyState, Need, jobs_in
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.machine.tables import QueueTables
from djinn_lab.jobs.messages import (
    CheckpointAnnounced,
    DataPublished,
    ExternalDependency,
    ExternalDependencyChanged,
    SegmentSubmitted,
)
from djinn_lab.jobs.states import JobTransition

CHECKPOINTS_MAX = 1000
"""Most checkpoints of one job."""


def check(tables: QueueTables, event: SegmentSubmitted) -> None:
    """Raise IllegalEvent when the job's dependencies can never be met."""
    if not event.terms.after:
        return
    for condition in conditions.parsed(event.terms.after):
        if condition.job == event.job:
            raise IllegalEvent("it waits for itself", "client")
        known = {one.job for one in event.external}
        if condition.need is not Need.DATA and not (condition.job in known or tables.find(condition.job)):
            raise IllegalEvent(f"it waits for job {condition.job}, which is unknown", "client")
    waiting = begin(tables, event)
    if waiting.unsatisfiable is not None:
        raise IllegalEvent(f"it would wait for ever: {waiting.unsatisfiable}", "client")
    waits_through = _reaches_itself(tables, event, waiting)
    if waits_through is not None and event.notebook:
        raise IllegalEvent(
            f"it is a cell of a batch notebook, which keeps its slot, and {waits_through} may wait for one; "
            f"submit what follows as a notebook of its own, --after {waits_through}",
            "client",
        )
    if waits_through is not None:
        raise IllegalEvent(
            f"it waits for job {waits_through}, which waits for this session's own cell: a cycle", "client"
        )


def begin(tables: QueueTables, event: SegmentSubmitted) -> DependencyState:
    """Return the dependencies of a new job, without what is met already."""
    terms = event.terms
    if not terms.after:
        return DependencyState((), DependencyResults(terms.after_count))
    asked = tuple(str(one) for one in conditions.parsed(terms.after, terms.after_any))
    waiting = DependencyState(asked, DependencyResults(terms.after_count))
    for text in event.met:
        waiting = waiting.meet(text)
    for name in sorted(jobs_in(asked)):
        known = tables.find(name)
        if known is not None:
            waiting = _with_known_ends(waiting, known)
    for other in event.external:
        waiting = _followed(waiting, other)
    return waiting


def announce(tables: QueueTables, event: CheckpointAnnounced) -> None:
    """Announce a checkpoint; dependent jobs continue. One that was announced before changes nothing."""
    job = tables.active(event.job, "client")
    problem = conditions.name_problem(event.name)
    if problem is not None:
        raise IllegalEvent(f"{event.name[:80]!r} is not a name for a checkpoint: {problem}", "client")
    if event.name in job.checkpoints:
        return
    if len(job.checkpoints) >= CHECKPOINTS_MAX:
        raise IllegalEvent(f"job {event.job} has announced {CHECKPOINTS_MAX} checkpoints, the most", "client")
    tables.update(replace(job, checkpoints=(*job.checkpoints, event.name)))
    for other in _waiting(tables):
        _update_dependencies(tables, other, other.waiting.checkpoint(event.job, event.name), event.at_s)


def publish(tables: QueueTables, event: DataPublished) -> None:
    """Publish data; dependent jobs continue."""
    for job in _waiting(tables):
        if conditions.same_project(job.account, event.account):
            _update_dependencies(tables, job, job.waiting.published(event.name), event.at_s)


def follow(tables: QueueTables, event: ExternalDependencyChanged) -> None:
    """Update a batch notebook; dependent jobs continue, or end with it."""
    changed = event.external
    before = tables.external.get(changed.job)
    if before is None:
        return
    tables.external[changed.job] = replace(changed, waits_for=before.waits_for)
    for job in _waiting(tables):
        if changed.job in jobs_in(job.waits_for):
            _update_dependencies(tables, job, _followed(job.waiting, changed), event.at_s)
    if all(changed.job not in jobs_in(job.waits_for) for job in _waiting(tables)):
        del tables.external[changed.job]


def job_ended(tables: QueueTables, ended: Job, at_s: float) -> None:
    """Let the dependent jobs of an ended job continue, or end."""
    for job in _waiting(tables):
        if ended.job in jobs_in(job.waits_for):
            _update_dependencies(tables, job, _with_known_ends(job.waiting, ended), at_s)


def give_up_overdue(tables: QueueTables, at_s: float) -> None:
    """End the jobs that waited for their dependencies to their own limit."""
    for job in _waiting(tables):
        limit_s = job.terms.after_timeout_s
        if limit_s is not None and job.submitted_at_s + limit_s <= at_s:
            why = conditions.timeout_reason(job.waiting, limit_s, lambda name: _named(tables, name))
            _end(tables, job, at_s, why)


def due_s(tables: QueueTables) -> float | None:
    """Return when the next job's limit is over."""
    limits = ((job.submitted_at_s, job.terms.after_timeout_s) for job in _waiting(tables))
    return min((since_s + limit_s for since_s, limit_s in limits if limit_s is not None), default=None)


def describe(tables: QueueTables, job: Job) -> str:
    """Say what the job waits for."""

    def announced(name: str) -> tuple[str, ...]:
        known = tables.external.get(name) or tables.find(name)
        return () if known is None else known.checkpoints

    def called(name: str) -> str:
        return _named(tables, name)

    return conditions.describe(job.waiting, called, announced, job.terms.after_timeout_s)


def _with_known_ends(waiting: DependencyState, known: Job) -> DependencyState:
    """Apply what is known of one job."""
    return _with(waiting, known, _called(known.job), known.finished)


def _followed(waiting: DependencyState, other: ExternalDependency) -> DependencyState:
    """Apply what is known of one batch notebook."""
    return _with(waiting, other, f"notebook {other.name} ({other.job})", other.over)


def _with(
    waiting: DependencyState, one: Job | ExternalDependency, called: str, over: bool
) -> DependencyState:
    for name in one.checkpoints:
        waiting = waiting.checkpoint(one.job, name)
    if over:
        waiting = waiting.job_ended(one.job, f"{called}, which it waits for,", one.state, one.checkpoints)
    return waiting


def _waiting(tables: QueueTables) -> list[Job]:
    return [tables.jobs[name] for name in tables.dependent]


def _update_dependencies(tables: QueueTables, job: Job, waiting: DependencyState, at_s: float) -> None:
    if waiting == job.waiting:
        return
    if waiting.unsatisfiable is not None:
        _end(tables, job, at_s, waiting.unsatisfiable)
    else:
        tables.put(replace(job, waits_for=waiting.open, dependency_results=waiting.results))


def _end(tables: QueueTables, job: Job, at_s: float, message: str) -> None:
    tables.answer_cancelled(job, message)
    tables.end(job, JobTransition.CANCEL, at_s, message)


def _called(job: str) -> str:
    return f"job {job[:8]}"


def _named(tables: QueueTables, job: str) -> str:
    other = tables.external.get(job)
    return _called(job) if other is None else f"notebook {other.name} ({other.job}, {other.state})"


def _reaches_itself(tables: QueueTables, event: SegmentSubmitted, waiting: DependencyState) -> str | None:
    """Return the first dependency from which a path leads back to a cell of this session that has segments
    to come. Paths follow the jobs that each job names, and those before it in its own session; a job with
    segments to come runs after all jobs of its session. Of a cell of a batch notebook: the first
    dependency from which a path leads to any batch notebook, which may need the slot that this one keeps.
    """
    external = tables.external | {one.job: one for one in event.external}
    for start in (condition.job for condition in map(conditions.parse, waiting.open)):
        seen: set[str] = set()
        frontier = [start]
        while frontier:
            name = frontier.pop()
            if name in external and name not in seen:
                seen.add(name)
                if event.notebook:
                    return start
                frontier += external[name].waits_for
            job = tables.jobs.get(name)
            if name in seen or job is None:
                continue
            seen.add(name)
            if job.session == event.session and not job.final:
                return start
            mates = tables.of_session[job.session]
            ahead = mates[: mates.index(name)] if job.final else mates
            frontier += [*jobs_in(job.waits_for), *ahead]
    return None
