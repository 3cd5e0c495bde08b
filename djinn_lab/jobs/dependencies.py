"""Jobs that wait for others: to end, to announce a checkpoint, or for data that somebody publishes.

A job can only name jobs that came before it, and in its session it stands behind what came before it, so
waiting always points back in time and makes no cycle. But a cell sends its segments one after the other, and
one to come stands behind all that is there: a job that waits, along any way, for a cell of its own session
that is not sent whole would wait for ever. Such a submit is refused (:func:`check`). Data has no such
direction: whoever waits for some that nobody will publish sets a limit (``after_timeout_s``).
"""

from __future__ import annotations

from msgspec.structs import replace

from djinn_lab.jobs import conditions
from djinn_lab.jobs.awaited import CheckpointAnnounced, DataPublished, Elsewhere, ElsewhereChanged
from djinn_lab.jobs.conditions import Need, Waited, Waiting, jobs_in
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.messages import SegmentSubmitted
from djinn_lab.jobs.states import IllegalEvent, Move
from djinn_lab.jobs.tables import FINISHED_JOBS_MAX, Tables

CHECKPOINTS_MAX = 1000
"""Of one job."""


def check(tables: Tables, event: SegmentSubmitted) -> None:
    """Raises IllegalEvent when the job would wait for what can never come."""
    if not event.terms.after:
        return
    for condition in conditions.parsed(event.terms.after):
        if condition.job == event.job:
            raise IllegalEvent("it waits for itself", "client")
        known = {one.job for one in event.elsewhere}
        if condition.need is not Need.DATA and not (condition.job in known or tables.find(condition.job)):
            raise IllegalEvent(
                f"it waits for job {condition.job}, which is unknown (the queue remembers the last "
                f"{FINISHED_JOBS_MAX} that ended)",
                "client",
            )
    waiting = begin(tables, event)
    if waiting.hopeless is not None:
        raise IllegalEvent(f"it would wait for ever: {waiting.hopeless}", "client")
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


def begin(tables: Tables, event: SegmentSubmitted) -> Waiting:
    """What a new job waits for, less what is there already."""
    terms = event.terms
    if not terms.after:
        return Waiting((), Waited(terms.after_count))
    asked = tuple(str(one) for one in conditions.parsed(terms.after, terms.after_any))
    waiting = Waiting(asked, Waited(terms.after_count))
    for text in event.met:
        waiting = waiting.meet(text)
    for name in sorted(jobs_in(asked)):
        known = tables.find(name)
        if known is not None:
            waiting = _caught_up(waiting, known)
    for other in event.elsewhere:
        waiting = _followed(waiting, other)
    return waiting


def announce(tables: Tables, event: CheckpointAnnounced) -> None:
    """Those that wait for it go on. One that was announced before changes nothing."""
    job = tables.active(event.job, "client")
    problem = conditions.name_problem(event.name)
    if problem is not None:
        raise IllegalEvent(f"{event.name[:80]!r} is no name of a checkpoint: {problem}", "client")
    if event.name in job.checkpoints:
        return
    if len(job.checkpoints) >= CHECKPOINTS_MAX:
        raise IllegalEvent(f"job {event.job} has announced {CHECKPOINTS_MAX} checkpoints, the most", "client")
    tables.update(replace(job, checkpoints=(*job.checkpoints, event.name)))
    for other in _waiting(tables):
        _go_on(tables, other, other.waiting.checkpoint(event.job, event.name), event.at_s)


def publish(tables: Tables, event: DataPublished) -> None:
    """Those that wait for it go on."""
    for job in _waiting(tables):
        if conditions.same_circle(job.account, event.account):
            _go_on(tables, job, job.waiting.published(event.name), event.at_s)


def follow(tables: Tables, event: ElsewhereChanged) -> None:
    """Those that wait for a batch notebook go on, or end with it."""
    changed = event.elsewhere
    before = tables.elsewhere.get(changed.job)
    if before is None:
        return
    tables.elsewhere[changed.job] = replace(changed, waits_for=before.waits_for)
    for job in _waiting(tables):
        if changed.job in jobs_in(job.waits_for):
            _go_on(tables, job, _followed(job.waiting, changed), event.at_s)
    if all(changed.job not in jobs_in(job.waits_for) for job in _waiting(tables)):
        del tables.elsewhere[changed.job]


def job_ended(tables: Tables, ended: Job, at_s: float) -> None:
    """Those that waited for it go on, or end with it."""
    for job in _waiting(tables):
        if ended.job in jobs_in(job.waits_for):
            _go_on(tables, job, _caught_up(job.waiting, ended), at_s)


def give_up_overdue(tables: Tables, at_s: float) -> None:
    """Those that waited as long as they wanted to."""
    for job in _waiting(tables):
        limit_s = job.terms.after_timeout_s
        if limit_s is not None and job.submitted_at_s + limit_s <= at_s:
            why = conditions.gave_up(job.waiting, limit_s, lambda name: _named(tables, name))
            _end(tables, job, at_s, why)


def due_s(tables: Tables) -> float | None:
    """When the next one gives up."""
    limits = ((job.submitted_at_s, job.terms.after_timeout_s) for job in _waiting(tables))
    return min((since_s + limit_s for since_s, limit_s in limits if limit_s is not None), default=None)


def told(tables: Tables, job: Job) -> str:
    """What it waits for."""

    def announced(name: str) -> tuple[str, ...]:
        known = tables.elsewhere.get(name) or tables.find(name)
        return () if known is None else known.checkpoints

    def called(name: str) -> str:
        return _named(tables, name)

    return conditions.told(job.waiting, called, announced, job.terms.after_timeout_s)


def _caught_up(waiting: Waiting, known: Job) -> Waiting:
    """With what is known of one job."""
    return _with(waiting, known, _called(known.job), known.finished)


def _followed(waiting: Waiting, other: Elsewhere) -> Waiting:
    """With what is known of one batch notebook."""
    return _with(waiting, other, f"notebook {other.name} ({other.job})", other.over)


def _with(waiting: Waiting, one: Job | Elsewhere, called: str, over: bool) -> Waiting:
    for name in one.checkpoints:
        waiting = waiting.checkpoint(one.job, name)
    if over:
        waiting = waiting.job_ended(one.job, f"{called}, which it waits for,", one.state, one.checkpoints)
    return waiting


def _waiting(tables: Tables) -> list[Job]:
    return [tables.jobs[name] for name in tables.dependent]


def _go_on(tables: Tables, job: Job, waiting: Waiting, at_s: float) -> None:
    if waiting == job.waiting:
        return
    if waiting.hopeless is not None:
        _end(tables, job, at_s, waiting.hopeless)
    else:
        tables.put(replace(job, waits_for=waiting.open, waited=waiting.waited))


def _end(tables: Tables, job: Job, at_s: float, message: str) -> None:
    tables.answer_cancelled(job, message)
    tables.end(job, Move.CANCEL, at_s, message)


def _called(job: str) -> str:
    return f"job {job[:8]}"


def _named(tables: Tables, job: str) -> str:
    other = tables.elsewhere.get(job)
    return _called(job) if other is None else f"notebook {other.name} ({other.job}, {other.state})"


def _reaches_itself(tables: Tables, event: SegmentSubmitted, waiting: Waiting) -> str | None:
    """The first of the awaited jobs from which one comes back to a cell of this session that has segments to
    come, along what each waits for: the jobs it names, and those before it in its own session; of
    a job with segments to come, which stand behind all that is there, everybody in it. Of a cell of a batch
    notebook: the first from which one comes to any batch notebook, which may need the slot that this one
    keeps."""
    elsewhere = tables.elsewhere | {one.job: one for one in event.elsewhere}
    for start in (condition.job for condition in map(conditions.parse, waiting.open)):
        seen: set[str] = set()
        frontier = [start]
        while frontier:
            name = frontier.pop()
            if name in elsewhere and name not in seen:
                seen.add(name)
                if event.notebook:
                    return start
                frontier += elsewhere[name].waits_for
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
