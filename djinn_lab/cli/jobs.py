"""``djinn-lab jobs`` and ``djinn-lab cancel``."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from djinn_lab.cli.options import AsJson, JobId
from djinn_lab.cli.output import print_found, print_line
from djinn_lab.errors import OptionError
from djinn_lab.jobs.resources import predicted_energy
from djinn_lab.units import SHORT_ID_CHARS, format_bytes, format_joules, format_seconds

if TYPE_CHECKING:
    from djinn_lab.protocol.rest.jobs import JobView


HEADINGS = ("job", "user", "cell", "state", "device", "ops", "waited", "ran", "predicted", "reason")


def show_jobs(
    state: Annotated[str | None, typer.Option(help="Only jobs in this state, or UNFINISHED.")] = None,
    user: Annotated[str | None, typer.Option(help="Only this user's jobs.")] = None,
    find: Annotated[str, typer.Option(help="Only jobs with this text in user, cell, notebook or id.")] = "",
    before: Annotated[str | None, typer.Option(help="Only jobs older than this one.", metavar="JOB")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many to list, newest first.")] = 20,
    fetches: Annotated[
        bool, typer.Option("--fetches", help="Also list fetches of values between cells that are done.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first: one per cell that ran on the pool. With --find or --before, all that the pool
    knows are looked through: those that run or wait come first."""
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.protocol.rest.jobs import UNFINISHED

    state = None if state is None else _state(state.upper())
    pool = PoolClient.find()
    if not find and before is None and state != UNFINISHED:
        found, page = pool.jobs(state=state, user=user, limit=limit, fetches=fetches), None
    else:
        page = pool.job_page(state, user, find, before, limit, fetches)
        found = [*page.unfinished, *page.jobs]
    none = "No jobs. A job appears when a %%djinn cell runs."
    asked = page is not None or user is not None or state is not None
    row = partial(_row, now_s=time.time())
    print_found(found, as_json, "Jobs", HEADINGS, row, "No job matches." if asked else none)
    if page is not None and page.older and not as_json:
        print_line(f"{page.older:,} more match: --before {page.jobs[-1].short_id}")


def cancel_job(job: JobId) -> None:
    """Cancel a pending or running job. Its memory is freed; the notebook's variables stay."""
    from djinn_lab.client.rest import PoolClient

    answer = PoolClient.find().cancel(job)
    stops = "" if answer.finished_at is not None else ", and stops after the op that it is in"
    print_line(f"Job {answer.job} is {answer.state}{stops}.")


def _state(name: str) -> str:
    from djinn_lab.jobs.states import JobState
    from djinn_lab.protocol.rest.jobs import UNFINISHED

    known = (*(state.value for state in JobState), UNFINISHED)
    if name not in known:
        raise OptionError(f"There is no state {name!r}.", f"States are {', '.join(known)}.")
    return name


def _row(job: JobView, now_s: float) -> tuple[str, ...]:
    ran_s = job.run_s(now_s)
    error = job.failure
    return (
        job.job[:SHORT_ID_CHARS],
        job.user,
        job.cell,
        job.state,
        job.device or "",
        f"{job.ops_done}/{job.ops_total}" + (" so far" if job.grows else ""),
        _waited(job, now_s),
        "" if ran_s is None else _ran(ran_s, job.used_j),
        _forecast_text(job),
        f"{error.type_name}: {error.message}" if error else job.reason,
    )


def _waited(job: JobView, now_s: float) -> str:
    waited_s = job.waited_s(now_s)
    preempted = f"{format_seconds(job.preempted_s)} preempted" if job.preempted_s else ""
    return ", ".join(filter(None, ("" if waited_s is None else format_seconds(waited_s), preempted)))


def _ran(seconds: float, joules: float | None) -> str:
    """Return the run time, with the energy where that can be estimated."""
    return format_seconds(seconds) + ("" if joules is None else f", ~{format_joules(joules)}")


def _forecast_text(job: JobView) -> str:
    """Return the predicted seconds on devices of the whole cell, energy where that can be predicted, and peak
    bytes; nothing where only parts of the cell were predicted."""
    found, seconds = job.predicted, job.predicted_run_s
    if found is None or (job.finished and seconds is None):
        return ""
    energy = predicted_energy(seconds, job.watts)
    parts = (
        None if seconds is None else format_seconds(seconds),
        None if energy is None else f"~{energy}",
        format_bytes(found.peak_bytes),
    )
    return ", ".join(filter(None, parts))
