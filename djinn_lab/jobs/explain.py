"""Why is my job where it is? One true sentence with numbers."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import msgspec

from djinn_lab.jobs.job import Closed, Job
from djinn_lab.jobs.states import JobState
from djinn_lab.units import listed

PLACES_MAX = 128
"""Where more are in line, only the first are given places at every event, and looked at for which turns are
near: what an event costs does not depend on how many wait."""


class Place(msgspec.Struct, frozen=True):
    """A place in a device's line.

    ``position`` counts from 1; ``previous`` is the job right ahead; ``running`` is what holds the device.
    """

    position: int
    running: Job | None
    previous: Job | None


def places_in(
    line: Sequence[Job], running: Job | None, of: Container[str] | None = None
) -> Iterator[tuple[Job, Place]]:
    """The place of every job in one device's line; ``of``: only those of these jobs."""
    previous = None
    for position, job in enumerate(line, 1):
        if of is None or job.job in of:
            yield job, Place(position, running, previous)
        previous = job


def explain(job: Job, place: Place | None, closed: Closed, kept_back: str = "") -> str:
    """``place``: of a job in line, None where too many are. ``closed``: the devices that a SUBMITTED job has
    not, which waits for nothing else. ``kept_back``: what keeps one in line from starting there, whoever is
    before it."""
    match job.state:
        case JobState.SUBMITTED:
            return _explain_submitted(job, closed)
        case JobState.RESTORING:
            return job.memory_reason or f"Waits for memory on {job.held_on}."
        case JobState.QUEUED:
            return _explain_queued(job, place, closed, kept_back)
        case JobState.PREEMPTED:
            why = f": {job.message}" if job.message else ""
            return f"Moved aside after {_ops(job)}{why}. {_explain_queued(job, place, closed, kept_back)}"
        case JobState.RUNNING if job.preempting:
            return f"Moving aside on {listed(job.holds)} after {_ops(job)}: {job.message}."
        case JobState.RUNNING if job.cancelling:
            return f"Stopping on {listed(job.holds)} after {_ops(job)}: {job.message}."
        case JobState.RUNNING:
            why = f" {job.devices_why}" if job.devices_why else ""
            return f"Running on {listed(job.holds)}, {_ops(job)}.{why}"
        case JobState.WAITING:
            return f"Waits for the cell to send its next segment; {job.segment + 1} answered."
        case JobState.DONE:
            return "Done."
        case JobState.FAILED:
            return f"Failed: {job.message}"
        case JobState.CANCELLED:
            return f"Cancelled: {job.message}."


def ordinal(number: int) -> str:
    """``1`` -> ``"1st"``, ``12`` -> ``"12th"``."""
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _explain_submitted(job: Job, closed: Closed) -> str:
    if job.wish in (*closed.cordoned, *closed.lost):
        why = "cordoned" if job.wish in closed.cordoned else "being started again"
        return f"Waits for {job.wish}, which is {why}."
    if job.wish is not None:
        return f"Waits for {job.wish}: what suits it is cordoned, being started again or kept for others."
    parts = [(closed.cordoned, "cordoned"), (closed.lost, "being started again")]
    shut = [f"{listed(names)} {'is' if len(names) == 1 else 'are'} {why}" for names, why in parts if names]
    return f"Waits for a device; {listed(shut)}." if shut else "Waits for the first device to be ready."


def _explain_queued(job: Job, place: Place | None, closed: Closed, kept_back: str) -> str:
    shut = " (cordoned)" if job.held_on in closed.cordoned else ""
    why = f"; {kept_back}" if kept_back else ""
    needs = f", for {job.gang_min} devices at once" if job.gang_min > 1 else ""
    if place is None:
        return f"In line for {job.held_on}{shut}{needs}, where more than {PLACES_MAX} cells wait in all{why}."
    running, previous, between = place.running, place.previous, place.position - 2
    parts = [] if running is None else [f"{_whose(running)} (running, {_ops(running)})"]
    parts += [f"{between} more"] if between > 0 else []
    parts += [] if previous is None else [f"{_whose(previous)} ({previous.priority})"]
    behind = f", behind {listed(parts)}" if parts else ""
    return f"{ordinal(place.position)} in line for {job.held_on}{shut}{needs}{behind}{why}."


def _whose(job: Job) -> str:
    return f"{job.user}'s job {job.job[:4]}"


def _ops(job: Job) -> str:
    return f"{job.ops_done} of {job.ops_total} ops"
