"""``%djinn jobs`` in words."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.magics.text_table import aligned
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.units import format_seconds, whole_seconds

CELL_CHARS_MAX = 24
HEADINGS = ("job", "user", "cell", "state", "device", "submitted", "ran", "ops", "reason")


def describe_jobs(jobs: Sequence[JobView], now_s: float, find: str = "") -> str:
    """Return a table of jobs, in the order given. ``find``: the text that was looked for."""
    if not jobs and find:
        return f"no job has {find!r} in its user, cell, notebook or id"
    if not jobs:
        return "no jobs yet: run a cell that begins with %%djinn"
    return "\n".join(aligned([HEADINGS, *(job_row(job, now_s) for job in jobs)]))


def job_row(job: JobView, now_s: float) -> tuple[str, ...]:
    """Return what stands below :data:`HEADINGS`."""
    ran_s = job.run_s(now_s)
    ago_s = max(0.0, now_s - job.submitted_at)
    return (
        job.short_id,
        job.user,
        job.cell if len(job.cell) <= CELL_CHARS_MAX else f"{job.cell[: CELL_CHARS_MAX - 1]}…",
        job.state.lower(),
        job.device or "-",
        "now" if ago_s < 1 else f"{whole_seconds(ago_s)} ago",
        "" if ran_s is None else format_seconds(ran_s),
        f"{job.ops_done}/{job.ops_total}" + (" so far" if job.grows else ""),
        "" if job.state == "DONE" and job.failure is None else _in_one_line(job),
    )


def _in_one_line(job: JobView) -> str:
    """Say why the job waits, or what it ended with."""
    error = job.failure
    text = f"{error.type_name}: {error.message}" if error else job.reason.removeprefix("Failed: ")
    return " ".join(text.split())
