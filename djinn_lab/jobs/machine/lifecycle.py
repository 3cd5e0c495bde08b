"""The life of an admitted job: memory, runs, stops, ends. Each event is validated before anything changes."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from djinn_lab.events import IllegalEvent, MemoryRelease
from djinn_lab.jobs.commands import CancelSegment, EndSegment, PlaceSegment, PreemptSegment
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.machine.tables import OUTCOME_TRANSITIONS, QueueTables, moved
from djinn_lab.jobs.messages import (
    DeviceHeard,
    DeviceLost,
    JobFinished,
    MemberLeft,
    MemoryDeferred,
    MemoryGranted,
    MemoryNeed,
    MemoryRefused,
    MoveRefused,
    PreemptRequested,
    SegmentFinished,
    SegmentPreempted,
    SegmentProgressed,
)
from djinn_lab.jobs.states import PENDING_STATES, JobState, JobTransition
from djinn_lab.jobs.targets import suits
from djinn_lab.units import format_seconds

RUNS_MAX = 2
"""A segment whose worker is lost under it this often fails: perhaps its own op ends the worker."""
ALONE = "It runs on one device, since its worker was lost before."

# -- session memory ----------------------------------------------------------------------------------------


def defer(tables: QueueTables, event: MemoryDeferred) -> None:
    if _is_outdated(tables, event):
        return
    job = _waiting_for_memory(tables, event.job)
    if event.queued:
        tables.put(_back_in_queue(job, "queued"))
        return
    deferred = moved(job, JobTransition.DEFER) if job.state in PENDING_STATES else job
    tables.put(
        replace(
            deferred,
            memory="deferred",
            memory_reason=event.reason,
            memory_wait_s=event.wait_s,
            memory_release=event.release,
        )
    )


def grant(tables: QueueTables, event: MemoryGranted) -> None:
    if _is_outdated(tables, event):
        return
    tables.put(_back_in_queue(_waiting_for_memory(tables, event.job), "granted"))


def refuse_memory(tables: QueueTables, event: MemoryRefused) -> None:
    job = _waiting_for_memory(tables, event.job)
    deferred = moved(job, JobTransition.DEFER) if job.state in PENDING_STATES else job
    tables.out.append(EndSegment(job.job, job.segment, "refused", 0, job.assigned_device, event.message))
    tables.settle(deferred, "failed", event.at_s, event.message)


def _is_outdated(tables: QueueTables, event: MemoryGranted | MemoryDeferred) -> bool:
    """Return whether the event is about a device that the job's session has left, or a job that is over."""
    known = tables.jobs.get(event.job)
    return event.device is not None and (known is None or known.assigned_device != event.device)


def _back_in_queue(job: Job, memory: MemoryNeed) -> Job:
    back = moved(job, JobTransition.GRANT) if job.state is JobState.RESTORING else job
    return replace(
        back,
        memory=memory,
        memory_reason="",
        memory_wait_s=None,
        memory_release=MemoryRelease.COPIES,
    )


def _waiting_for_memory(tables: QueueTables, job: str) -> Job:
    known = tables.active(job, "pool")
    tables.memory_answered.add(job)
    asked = known.state is JobState.PREEMPTED and known.memory == "ask"
    if known.state is not JobState.RESTORING and known.memory != "queued" and not asked:
        raise IllegalEvent(f"job {job} does not wait for memory ({known.state})", "pool")
    return known


# -- running -----------------------------------------------------------------------------------------------


def progress(tables: QueueTables, event: SegmentProgressed) -> None:
    job = tables.running_segment(event.job, event.segment)
    _check_ops(job, event.ops_done)
    tables.update(replace(job, ops_done=event.ops_done))


def finish_segment(tables: QueueTables, event: SegmentFinished) -> None:
    job = tables.running_segment(event.job, event.segment)
    if event.outcome not in OUTCOME_TRANSITIONS:
        raise IllegalEvent(f"unknown outcome {event.outcome!r}", "pool")
    done = replace(_stopped(tables, job, event.at_s, max(job.ops_done, event.ops_done)), losses=0)
    tables.used[job.job] = (event.memory_byte_s, event.transfer_bytes)
    tables.replayed_s[job.job] = event.replayed_s
    tables.device_s[job.job] = event.device_s
    cancelled = event.outcome == "cancelled" or (
        job.cancelling and not (job.final and event.outcome == "done")
    )
    message = job.message if job.cancelling else event.message
    if event.continues:
        done = replace(done, final=False)
    tables.settle(done, "cancelled" if cancelled else event.outcome, event.at_s, message)


def leave_gang(tables: QueueTables, event: MemberLeft) -> None:
    job = tables.running_segment(event.job, event.segment)
    if event.device not in job.members:
        raise IllegalEvent(
            f"job {event.job} does not hold {event.device} beside {job.assigned_device}", "pool"
        )
    _without(tables, job, event.device)


def _without(tables: QueueTables, job: Job, device: str) -> None:
    tables.devices[device].running.remove(job.job)
    tables.put(replace(job, members=tuple(name for name in job.members if name != device)))


def check_preempted(tables: QueueTables, event: SegmentPreempted) -> Job:
    """Return the job whose segment runs. Raises IllegalEvent, with nothing changed."""
    job = tables.running_segment(event.job, event.segment)
    _check_ops(replace(job, ops_done=0) if event.undone else job, event.ops_done)
    return job


def preempt(tables: QueueTables, event: SegmentPreempted) -> None:
    job = check_preempted(tables, event)
    device = job.assigned_device
    assert device is not None
    stopped = _stopped(tables, job, event.at_s, event.ops_done)
    tables.replayed_s[job.job] = event.replayed_s
    tables.preemptions += not event.undone
    if job.cancelling:
        tables.answer_cancelled(stopped, job.message)
        tables.end(stopped, JobTransition.CANCEL, event.at_s, job.message)
        return
    memory = _needs_again(job)
    turn = job.turn
    if job.yields:
        turn = tables.jobs_seen
        tables.jobs_seen += 1
    tables.put(
        replace(
            moved(stopped, JobTransition.PREEMPT),
            turn=turn,
            memory=memory,
            preemptions=job.preemptions + (not event.undone),
            preempted_at_s=event.at_s,
            move_s=event.move_s,
            other_host_s=event.other_host_s,
            parts_s=event.parts_s,
            devices=event.devices,
            devices_why=_why_fewer(job, event.devices),
        )
    )
    if memory == "ask":
        tables.out.append(PlaceSegment(job.job, job.segment, job.session, device))


def _why_fewer(job: Job, devices: int) -> str:
    """Say how many devices the job can use when it resumes."""
    if devices == job.devices or job.terms.gang == 1:
        return job.devices_why
    return f"It resumes where it stopped, on {'one device' if devices == 1 else f'up to {devices} devices'}."


def refuse_move(tables: QueueTables, event: MoveRefused) -> None:
    """Leave the session where it was, with all its pending jobs, until its segment ran there."""
    job = tables.active(event.job, "pool")
    device = tables.devices.get(event.device)
    mates = [tables.jobs[name] for name in tables.of_session[job.session]]
    runs = any(mate.state is JobState.RUNNING for mate in mates)
    if job.assigned_device is None or runs or device is None or not device.alive:
        raise IllegalEvent(f"job {event.job} ({job.state}) cannot stay on {event.device}", "pool")
    tables.bind(job.session, event.device)
    reason = f"it stays on {event.device}: {event.reason}"
    for mate in mates:
        if mate.state is not JobState.WAITING and not suits(mate.target, mate.terms.tolerates, device):
            _refuse_target(tables, mate, event, reason)
        elif mate.job == event.job or mate.assigned_device not in (None, event.device):
            tables.memory_answered.add(mate.job)
            tables.put(replace(mate, settled=True, assigned_device=event.device, memory_reason=reason))


def _refuse_target(tables: QueueTables, job: Job, event: MoveRefused, reason: str) -> None:
    """Fail a segment that may not run where its session has to stay."""
    where = f"has the target {job.target}" if job.target is not None else f"is not eligible on {event.device}"
    message = f"it {where}, and its session cannot be moved there: {reason}"
    deferred = moved(job, JobTransition.DEFER) if job.state in PENDING_STATES else job
    tables.out.append(EndSegment(job.job, job.segment, "refused", 0, job.assigned_device, message))
    tables.settle(deferred, "failed", event.at_s, message)


def unsettle_ineligible(tables: QueueTables, device: str) -> None:
    """Let settled jobs that are not eligible on the device any more move to another."""
    for job in tables.of_device(device):
        if job.settled and not suits(job.target, job.terms.tolerates, tables.devices[device]):
            tables.put(replace(job, settled=False))


def cordon(tables: QueueTables, device: str) -> None:
    """Let settled jobs move to another device after all."""
    for job in tables.of_device(device):
        if job.settled:
            tables.put(replace(job, settled=False))


def _stopped(tables: QueueTables, job: Job, at_s: float, ops_done: int) -> Job:
    """Return the job off its device, with its run time."""
    for device in job.holds:
        tables.devices[device].running.remove(job.job)
        tables.devices[device].riders.discard(job.job)
    assert job.running_since_s is not None
    return replace(
        job,
        ops_done=ops_done,
        preempting=False,
        yields=False,
        running_since_s=None,
        ran_s=job.ran_s + max(0.0, at_s - job.running_since_s),
        members=(),
        leader="",
        interleaved=False,
    )


def _check_ops(job: Job, ops_done: int) -> None:
    if not job.ops_done <= ops_done <= job.ops_total:
        raise IllegalEvent(f"progress {ops_done} is not between {job.ops_done} and {job.ops_total}", "pool")


# -- preempting, cancelling, ending --------------------------------------------------------------------------


def request_preemption(tables: QueueTables, event: PreemptRequested) -> None:
    job = tables.active(event.job, "client")
    if job.state is not JobState.RUNNING:
        raise IllegalEvent(f"job {event.job} is not running ({job.state})", "client")
    begin_preemption(tables, replace(job, yields=True), event.message)


def begin_preemption(tables: QueueTables, job: Job, message: str) -> None:
    if job.cancelling or job.preempting:
        return
    assert job.assigned_device is not None
    tables.put(replace(moved(job, JobTransition.ASK_STOP), preempting=True, message=message))
    tables.out.append(PreemptSegment(job.job, job.segment, job.assigned_device))


def finish_job(tables: QueueTables, event: JobFinished) -> None:
    job = tables.active(event.job, "client")
    if event.outcome not in OUTCOME_TRANSITIONS:
        raise IllegalEvent(f"unknown outcome {event.outcome!r}; it is done, failed or cancelled", "client")
    if job.state is JobState.WAITING:
        tables.end(job, OUTCOME_TRANSITIONS[event.outcome], event.at_s, event.message or job.message)
    elif event.outcome == "done":
        tables.update(replace(job, final=True))
    else:
        cancel(
            tables, job, event.at_s, event.message or "the cell is over", OUTCOME_TRANSITIONS[event.outcome]
        )


def cancel(
    tables: QueueTables, job: Job, at_s: float, message: str, move: JobTransition = JobTransition.CANCEL
) -> None:
    if job.state is JobState.RUNNING:
        if not job.cancelling:
            assert job.assigned_device is not None
            tables.put(replace(moved(job, JobTransition.ASK_STOP), cancelling=True, message=message))
            tables.out.append(CancelSegment(job.job, job.assigned_device))
        return
    if job.state is not JobState.WAITING:
        tables.answer_cancelled(job, message)
    tables.end(job, move, at_s, message)


def cancel_session(tables: QueueTables, session: str, at_s: float, message: str) -> None:
    for name in list(tables.of_session.get(session, ())):
        if name in tables.jobs:
            cancel(tables, tables.jobs[name], at_s, message)


def _needs_again(job: Job) -> MemoryNeed:
    """Return what the job needs of session memory, once it is off its device."""
    return "free" if job.memory == "free" else "ask"


def lose_device(tables: QueueTables, event: DeviceLost) -> None:
    """Put the jobs that ran in a lost worker back, but for a gang that runs on elsewhere. They, and pending
    jobs of its sessions, ask for memory again where they are bound next."""
    device = event.device

    def was_there(session: str) -> bool:
        return event.sessions is None or session in event.sessions

    for job in [tables.jobs[name] for name in tables.devices[device].running]:
        if not was_there(job.session):
            continue
        if device in job.members:
            _without(tables, job, device)
        else:
            lose_worker(tables, job, event.at_s, event.message)
    waiting = [job for job in tables.of_device(device) if was_there(job.session)]
    tables.devices[device].alive = event.sessions is not None
    tables.touched_devices[device] = None
    for session in [session for session, bound in tables.bound.items() if bound == device]:
        if was_there(session):
            tables.unbind(session)
    _unbind(tables, waiting)


def lose_worker(tables: QueueTables, job: Job, at_s: float, message: str) -> None:
    """The worker under a running job is lost: the job is pending again, at its queue position, and its
    segment will run from its start. The lost run is not charged. A job that loses its worker for the
    ``RUNS_MAX``-th time fails, and one that was being cancelled is cancelled. A gang runs on one device then,
    where the op is seen before which its worker is lost again. The caller unbinds the job's session, or asks
    for memory again."""
    losses = job.losses + 1
    if job.cancelling or losses >= RUNS_MAX:
        outcome = "cancelled" if job.cancelling else "lost"
        why = job.message if job.cancelling else message
        end = EndSegment(job.job, job.segment, outcome, job.ops_done, job.assigned_device, why)
        tables.out.append(end)
        stopped = replace(_stopped(tables, job, at_s, job.ops_done), losses=0)
        tables.settle(stopped, "cancelled" if job.cancelling else "failed", at_s, why)
        return
    tables.uncharged.add(job.job)
    stopped = replace(
        _stopped(tables, job, at_s, 0),
        memory=_needs_again(job),
        preempted_at_s=at_s,
        losses=losses,
        devices=1,
        devices_why=job.devices_why if job.gang == 1 else ALONE,
        ran_s=job.ran_s,
        message=f"{message}; the cell runs again from where it last began",
    )
    tables.put(moved(stopped, JobTransition.PREEMPT))


def hold_silent(tables: QueueTables, event: DeviceHeard) -> None:
    """Let sessions leave a device whose worker does not answer. Jobs of the others stay until they ran
    there; those that may not run there look for a device when their turn comes."""
    waiting = tables.of_device(event.device)
    for session in event.leaving:
        tables.unbind(session)
    _unbind(tables, [job for job in waiting if job.session in event.leaving])
    device = tables.devices[event.device]
    for job in waiting:
        if job.session not in event.leaving and suits(job.target, job.terms.tolerates, device):
            tables.put(replace(job, settled=True))


def _unbind(tables: QueueTables, waiting: Iterable[Job]) -> None:
    for job in waiting:
        unbound = replace(
            moved(job, JobTransition.UNBIND), assigned_device=None, memory=_needs_again(job), memory_reason=""
        )
        tables.put(replace(unbound, settled=False))


def stop_overdue(tables: QueueTables, at_s: float) -> None:
    """Cancel cells that used up their own limit of run time."""
    for job in [tables.jobs[name] for name in tables.limited]:
        due_s = timeout_due_s(job)
        if due_s is not None and due_s <= at_s and job.terms.timeout_s is not None:
            limit = format_seconds(job.terms.timeout_s)
            cancel(tables, job, at_s, f"its own time limit of {limit} of run time is over")


def timeout_due_s(job: Job) -> float | None:
    """Return when a running job reaches its own limit."""
    if job.terms.timeout_s is None or job.running_since_s is None or job.cancelling:
        return None
    return job.running_since_s + max(0.0, job.terms.timeout_s - job.ran_s)
