"""Why is my job where it is? One true sentence with numbers."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.jobs.job import Job
from djinn_lab.jobs.states import JobState


def explain(job: Job, running: Job | None, ahead: Sequence[Job], lost_devices: Sequence[str]) -> str:
    """``running``: what holds the job's device; ``ahead``: who is before it in line; ``lost_devices``: all
    devices that are down, which is why a SUBMITTED job has none."""
    match job.state:
        case JobState.SUBMITTED:
            return _explain_submitted(job, lost_devices)
        case JobState.QUEUED:
            return _explain_queued(job, running, ahead)
        case JobState.RUNNING if job.cancelling:
            return f"Stopping on {job.held_on} after {_ops(job)}: {job.message}."
        case JobState.RUNNING:
            return f"Running on {job.held_on}, {_ops(job)}."
        case JobState.WAITING:
            return f"Waits for the cell to send its next segment; {job.segment + 1} answered."
        case JobState.DONE:
            return "Done."
        case JobState.FAILED:
            return f"Failed: {job.message}"
        case JobState.CANCELLED:
            return f"Cancelled: {job.message}."


def estimate_s(running: Job | None, ahead: Sequence[Job]) -> float | None:
    """Predicted wait until the start in seconds, None when a run time on the way is unknown."""
    parts = [job.remaining_s for job in (*([running] if running else []), *ahead)]
    return None if None in parts else sum(part for part in parts if part is not None)


def ordinal(number: int) -> str:
    """``1`` -> ``"1st"``, ``12`` -> ``"12th"``."""
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _explain_submitted(job: Job, lost_devices: Sequence[str]) -> str:
    if job.wish is not None:
        return f"Waits for {job.wish}, which is being started again."
    if lost_devices:
        verb = "is" if len(lost_devices) == 1 else "are"
        return f"Waits for a device; {_listed(lost_devices)} {verb} being started again."
    return "Waits for the first device to be ready."


def _explain_queued(job: Job, running: Job | None, ahead: Sequence[Job]) -> str:
    parts = [] if running is None else [f"{_whose(running)} (running, {_ops(running)})"]
    parts += [f"{len(ahead) - 1} more"] if len(ahead) > 1 else []
    parts += [f"{_whose(other)} ({other.priority})" for other in ahead[-1:]]
    return f"{ordinal(len(ahead) + 1)} in line for {job.held_on}, behind {_listed(parts)}."


def _listed(parts: Sequence[str]) -> str:
    """``["a", "b", "c"]`` -> ``"a, b and c"``."""
    return " and ".join([*([", ".join(parts[:-1])] if len(parts) > 1 else []), parts[-1]])


def _whose(job: Job) -> str:
    return f"{job.user}'s job {job.job[:4]}"


def _ops(job: Job) -> str:
    return f"{job.ops_done} of {job.ops_total} ops"
