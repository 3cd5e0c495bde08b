"""Explain where a job is, and for which job a victim is preempted, in true sentences with numbers."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

import msgspec

from djinn_lab.jobs.decision import CalendarReservation, Cause
from djinn_lab.jobs.fairness import ShareTree
from djinn_lab.jobs.job import Job, UnavailableDevices
from djinn_lab.jobs.machine.eligibility import reserved_for
from djinn_lab.jobs.states import JobState
from djinn_lab.units import capitalised, counted, listed

POSITIONS_MAX = 128
"""With more pending jobs, only the first get positions and memory orders at every event, so that the cost
of an event does not depend on how many wait."""


class QueuePosition(msgspec.Struct, frozen=True):
    """A position in a device's queue. ``position`` counts from 1; ``previous``: the job right ahead;
    ``running``: the job that holds the device."""

    position: int
    running: Job | None
    previous: Job | None


def queue_positions(
    line: Sequence[Job], running: Job | None, of: Container[str] | None = None
) -> Iterator[tuple[Job, QueuePosition]]:
    """Yield the position of every job in one device's queue; ``of``: only those of these jobs."""
    previous = None
    for position, job in enumerate(line, 1):
        if of is None or job.job in of:
            yield job, QueuePosition(position, running, previous)
        previous = job


def explain(
    job: Job, queue_position: QueuePosition | None, unavailable: UnavailableDevices, eligibility: str = ""
) -> str:
    """Say why the job is where it is. ``queue_position``: of a pending job, None where too many are.
    ``unavailable``: the devices that a SUBMITTED job cannot get. ``eligibility``: why a pending job is
    ineligible on its device."""
    match job.state:
        case JobState.SUBMITTED:
            return _explain_submitted(job, unavailable)
        case JobState.RESTORING:
            return capitalised(job.memory_reason) or f"Waits for memory on {job.assigned_device}."
        case JobState.QUEUED:
            return _explain_queued(job, queue_position, unavailable, eligibility)
        case JobState.PREEMPTED:
            why = f": {job.message}" if job.message else ""
            queued = _explain_queued(job, queue_position, unavailable, eligibility)
            return f"Preempted after {_ops(job)}{why}. {queued}"
        case JobState.RUNNING if job.cancelling:
            return f"Stopping on {listed(job.holds)} after {_ops(job)}: {job.message}."
        case JobState.RUNNING if job.interleaved and not job.ops_done:
            return _explain_interleaved(job)
        case JobState.RUNNING if job.preempting:
            return f"Being preempted on {listed(job.holds)} after {_ops(job)}: {job.message}."
        case JobState.RUNNING:
            why = f" {job.devices_why}" if job.devices_why else ""
            if job.batch_members > 1:
                why = f" It runs in one batch with {counted(job.batch_members - 1, 'other session')}."
            return f"Running on {listed(job.holds)}, {_ops(job)}.{why}"
        case JobState.WAITING:
            return f"Waits for the cell to send its next segment; {job.segment + 1} answered."
        case JobState.DONE:
            return "Done."
        case JobState.FAILED:
            return f"Failed: {job.message}"
        case JobState.CANCELLED:
            return f"Cancelled: {job.message}."


def _explain_interleaved(job: Job) -> str:
    """Of one that may not have begun: its worker computes an op of the longer job."""
    where = listed(job.holds)
    if job.preempting:
        return f"Being preempted on {where}, once the op under way there has ended: {job.message}."
    return f"Runs between two ops of a longer job on {where}, once the op under way there has ended."


def ordinal(number: int) -> str:
    """Return ``"1st"`` for 1, ``"12th"`` for 12."""
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _explain_submitted(job: Job, unavailable: UnavailableDevices) -> str:
    if job.target in unavailable.cordoned:
        return f"Waits for {job.target}, which is cordoned.{_uncordon((job.target,))}"
    if job.target in unavailable.lost:
        return f"Waits for {job.target}, which is being started again."
    if job.target in unavailable.silent:
        return f"Waits for {job.target}, whose worker does not answer."
    if job.target is not None:
        why = "cordoned, silent, being started again or tainted"
        advice = _uncordon(unavailable.cordoned)
        return f"Waits for {job.target}: every device that suits it is {why}.{advice}"
    parts = [(unavailable.cordoned, "cordoned"), (unavailable.lost, "being started again")]
    parts.append((unavailable.silent, "silent (no answer from the worker)"))
    shut = [f"{listed(names)} {'is' if len(names) == 1 else 'are'} {why}" for names, why in parts if names]
    if not shut:
        return "Waits for the first device to be ready."
    return f"Waits for a device; {listed(shut)}.{_uncordon(unavailable.cordoned)}"


def _uncordon(devices: Sequence[str]) -> str:
    """Say what an operator can do about cordoned devices, in a sentence that follows another."""
    if not devices:
        return ""
    which = "it" if len(devices) == 1 else "one"
    return f" An operator lets {which} serve again with `djinn-lab uncordon {devices[0]}`."


def _explain_queued(
    job: Job, queue_position: QueuePosition | None, unavailable: UnavailableDevices, eligibility: str
) -> str:
    shut = " (cordoned)" if job.assigned_device in unavailable.cordoned else ""
    shut = " (its worker does not answer)" if job.assigned_device in unavailable.silent else shut
    why = f"; {eligibility}" if eligibility else ""
    needs = f", for {job.gang_min} devices at once" if job.gang_min > 1 else ""
    if queue_position is None:
        more = f"where more than {POSITIONS_MAX} cells wait in all"
        return f"Pending in the queue of {job.assigned_device}{shut}{needs}, {more}{why}."
    running, previous, between = queue_position.running, queue_position.previous, queue_position.position - 2
    parts = [] if running is None else [f"{_whose(running)} (running, {_ops(running)})"]
    parts += [f"{between} more"] if between > 0 else []
    parts += [] if previous is None else [f"{_whose(previous)} ({previous.priority})"]
    behind = f", behind {listed(parts)}" if parts else ""
    return (
        f"{ordinal(queue_position.position)} in the queue of {job.assigned_device}{shut}{needs}{behind}{why}."
    )


def _whose(job: Job) -> str:
    return f"{job.user}'s job {job.job[:8]}"


def _ops(job: Job) -> str:
    """Count the ops of all segments so far, so that no later segment begins at 0 again."""
    return f"{job.ops_before + job.ops_done} of {job.ops_before + job.ops_total} ops"


def preemption_message(
    by: Job, victim: Job, cause: Cause, shares: ShareTree, calendar: Mapping[str, CalendarReservation]
) -> str:
    """Return ``for bob's job 1fdb02aa (NORMAL)``, with the rule that allows it where priority does not."""
    right = None
    match cause:
        case "guarantee":
            right = _guarantee(by, victim, shares)
        case "reservation":
            right = _reservation(by, victim, calendar)
        case "fairness":
            right = f"{by.account} is further below its share than {victim.account}"
        case "shorter":
            right = "it is expected to need less time than this one has left"
        case "decode":
            right = "a decode step goes before a prefill"
        case "attained":
            right = "it has attained less device time"
        case "rank":
            pass
    preemptor = f"for {by.user}'s job {by.job[:8]} ({by.priority})"
    return preemptor if right is None else f"{preemptor}: {right}"


def _guarantee(by: Job, victim: Job, shares: ShareTree) -> str | None:
    met = shares.guarantee_met(by.account, victim.account)
    if met is None:
        return None
    return f"{met[0]} is within its {met[1]:g} guaranteed device{'' if met[1] == 1 else 's'}"


def _reservation(by: Job, victim: Job, calendar: Mapping[str, CalendarReservation]) -> str | None:
    for _, entry in sorted(calendar.items()):
        there = sorted(entry.nodes.intersection(victim.holds))
        if there and entry.admits(by.account) and not entry.admits(victim.account):
            return reserved_for(entry, tuple(there))
    return None
