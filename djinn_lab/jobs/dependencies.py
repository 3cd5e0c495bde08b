"""Jobs that wait for other jobs to end.

A job can only name jobs that came before it, and in its session it stands behind what came before it, so
waiting always points back in time and makes no cycle. But a cell sends its segments one after the other, and
one to come stands behind all that is there: a job that waits, along any way, for a cell of its own session
that is not sent whole would wait for ever. Such a submit is refused (:func:`check`).
"""

from __future__ import annotations

from msgspec.structs import replace

from djinn_lab.jobs.job import Job
from djinn_lab.jobs.messages import SegmentSubmitted
from djinn_lab.jobs.states import IllegalEvent, JobState, Move
from djinn_lab.jobs.tables import FINISHED_JOBS_MAX, Tables


def check(tables: Tables, event: SegmentSubmitted) -> None:
    """Raises IllegalEvent when the job would wait for what can never come."""
    for name in event.terms.after:
        if name == event.job:
            raise IllegalEvent("it waits for itself", "client")
        known = tables.find(name)
        if known is None:
            raise IllegalEvent(
                f"it waits for job {name}, which is unknown (the queue remembers the last "
                f"{FINISHED_JOBS_MAX} that ended)",
                "client",
            )
        if known.finished and known.state is not JobState.DONE and not event.terms.after_any:
            raise IllegalEvent(f"it waits for job {name}, which is {known.state}", "client")
    waits_through = _reaches_itself(tables, event)
    if waits_through is not None:
        raise IllegalEvent(
            f"it waits for job {waits_through}, which waits for this session's own cell: a cycle", "client"
        )


def unmet(tables: Tables, after: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in after if name in tables.jobs))


def job_ended(tables: Tables, ended: Job, at_s: float) -> None:
    """Those that waited for it go on, or end with it."""
    for job in [job for job in tables.jobs.values() if ended.job in job.waits_for]:
        if ended.state is not JobState.DONE and not job.terms.after_any:
            message = f"job {ended.job[:8]}, which it waits for, is {ended.state}"
            tables.answer_cancelled(job, message)
            tables.end(job, Move.CANCEL, at_s, message)
            continue
        left = tuple(name for name in job.waits_for if name != ended.job)
        tables.put(replace(job, waits_for=left))


def _reaches_itself(tables: Tables, event: SegmentSubmitted) -> str | None:
    """The first of the named jobs from which one comes back to a cell of this session that has segments to
    come, along what each waits for: the jobs it names, and those before it in its own session; of
    a job with segments to come, which stand behind all that is there, everybody in it."""
    for start in event.terms.after:
        seen: set[str] = set()
        frontier = [start]
        while frontier:
            name = frontier.pop()
            job = tables.jobs.get(name)
            if name in seen or job is None:
                continue
            seen.add(name)
            if job.session == event.session and not job.final:
                return start
            mates = tables.of_session[job.session]
            ahead = mates[: mates.index(name)] if job.final else mates
            frontier += [*job.waits_for, *ahead]
    return None
