"""Admit or reject submitted segments."""

from __future__ import annotations

from msgspec.structs import replace

from djinn_lab.events import IllegalEvent, MemoryRelease
from djinn_lab.jobs import targets
from djinn_lab.jobs.conditions import DependencyState, jobs_in
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.machine import dependencies
from djinn_lab.jobs.machine.tables import QueueDevice, QueueTables, next_state
from djinn_lab.jobs.messages import JobReturned, SegmentRefused, SegmentSubmitted
from djinn_lab.jobs.states import FINISHED, RANKS, JobState, JobTransition
from djinn_lab.jobs.terms import NO_TERMS, Terms


def check(tables: QueueTables, event: SegmentSubmitted) -> None:
    """Raise IllegalEvent for a submit that must be rejected; change nothing."""
    old = _expect_next(tables, event)
    if event.segment == 0:
        _check_terms(tables, event)
    _check_target(tables, event, event.terms if old is None else old.terms)


def submit(tables: QueueTables, event: SegmentSubmitted) -> None:
    """Admit a segment that :func:`check` has accepted."""
    old = tables.jobs.get(event.job)
    if tables.bound.get(event.session) is None and event.memory in ("deferred", "queued", "granted"):
        raise IllegalEvent(f"memory is {event.memory} for a session without a device", "pool")
    job = _arrived(tables, event, old, next_state(old, JobTransition.SUBMIT))
    waiting = (
        dependencies.begin(tables, event)
        if event.segment == 0
        else DependencyState((), job.dependency_results)
    )
    tables.external |= {one.job: one for one in event.external if one.job in jobs_in(waiting.open)}
    tables.put(
        replace(
            job,
            target=event.target,
            predicted_s=event.predicted_s,
            predicted_spread=event.predicted_spread,
            phase=event.phase,
            batch=event.batch,
            process=event.process,
            move_s=event.move_s,
            other_host_s=event.other_host_s,
            parts_s=event.parts_s,
            memory=event.memory,
            memory_reason=event.memory_reason,
            memory_wait_s=event.memory_wait_s,
            memory_release=event.memory_release,
            devices=event.devices,
            devices_why=event.devices_why,
            fits=event.fits,
            waits_for=waiting.open,
            dependency_results=waiting.results,
        )
    )


def refuse(tables: QueueTables, event: SegmentRefused) -> None:
    old = _expect_next(tables, event)
    state = next_state(old, JobTransition.FAIL if event.final else JobTransition.MORE)
    job = replace(_arrived(tables, event, old, state), message=event.message)
    tables.put(replace(job, ended_at_s=event.at_s) if job.finished else job)


def return_job(tables: QueueTables, event: JobReturned) -> None:
    """Continue a job of an earlier run. One that waits for its client is ahead of new ones."""
    if tables.find(event.job) is not None:
        raise IllegalEvent(f"job {event.job} is here already", "pool")
    if event.segment < -1 or event.ops_before < 0 or event.priority not in RANKS:
        raise IllegalEvent(f"job {event.job} returns with what no job has", "pool")
    if event.state is not next_state(None, JobTransition.RETURN) and event.state not in FINISHED:
        raise IllegalEvent(f"job {event.job} returns {event.state}", "pool")
    if (event.ended_at_s is not None) != (event.state in FINISHED):
        raise IllegalEvent(f"job {event.job} is {event.state}, and ended at {event.ended_at_s}", "pool")
    number = tables.jobs_seen
    tables.jobs_seen += 1
    tables.segments_seen += 1
    job = Job(
        job=event.job,
        session=event.session,
        user=event.user,
        account=event.account or event.user,
        priority=event.priority,
        number=number,
        turn=number,
        arrival=tables.segments_seen - 1,
        state=event.state,
        segment=event.segment,
        final=event.state in FINISHED,
        ops_total=0,
        ops_before=event.ops_before,
        submitted_at_s=event.submitted_at_s,
        segment_at_s=event.at_s,
        started_at_s=event.started_at_s,
        ended_at_s=event.ended_at_s,
        ran_s=event.ran_s,
        ran_before_s=event.ran_s,
        preemptions=event.preemptions,
        terms=event.terms,
        deadline_at_s=event.deadline_at_s,
        dependency_results=event.dependency_results,
        checkpoints=event.checkpoints,
    )
    if job.finished:
        tables.finished[job.job] = job
    else:
        tables.put(job)


def _expect_next(tables: QueueTables, event: SegmentSubmitted | SegmentRefused) -> Job | None:
    """Return the job that this is the next segment of, None when it is new."""
    if event.job in tables.finished:
        raise IllegalEvent(f"job {event.job} is already {tables.finished[event.job].state}", "client")
    old = tables.jobs.get(event.job)
    expected = 0 if old is None else old.segment + 1
    if event.segment != expected:
        raise IllegalEvent(f"segment {event.segment} came where {expected} was due", "client")
    if event.priority not in RANKS:
        raise IllegalEvent(f"priority {event.priority!r} is none of {', '.join(RANKS)}", "client")
    if event.ops_total < 0:
        raise IllegalEvent(f"{event.ops_total} ops", "client")
    if old is not None and old.session != event.session:
        raise IllegalEvent(f"job {event.job} belongs to another session", "client")
    if old is not None and old.state is not JobState.WAITING:
        raise IllegalEvent(f"segment {old.segment} of job {event.job} is not answered yet", "client")
    return old


def _check_terms(tables: QueueTables, event: SegmentSubmitted) -> None:
    problem = event.terms.problem()
    if problem is not None:
        raise IllegalEvent(f"it asks for {problem}", "client")
    if event.terms.gang_min > max(1, len(tables.devices)):
        has = len(tables.devices)
        raise IllegalEvent(
            f"it asks for a gang of at least {event.terms.gang_min} devices, and this pool has {has}; "
            f"ask for --gang {event.terms.gang}:{has} or less",
            "client",
        )
    if event.terms.gang > 1 and any(device.slots > 1 for device in tables.devices.values()):
        raise IllegalEvent(
            "a gang needs devices of its own, and those of this pool run several cells", "client"
        )
    dependencies.check(tables, event)


def devices_for(tables: QueueTables, target: str | None, tolerates: tuple[str, ...]) -> list[QueueDevice]:
    """Return the devices that may run it. Raises IllegalEvent where none may."""
    devices = [device for _, device in sorted(tables.devices.items())]
    try:
        return targets.allowed(target, tolerates, devices)
    except ValueError as error:
        raise IllegalEvent(str(error), "client") from None


def _check_target(tables: QueueTables, event: SegmentSubmitted, terms: Terms) -> None:
    """Check that a device suits the segment, and that its session is there or can move there."""
    if event.target is None and not any(device.taints for device in tables.devices.values()):
        return  # all of them suit it
    allowed = devices_for(tables, event.target, terms.tolerates)
    if tables.devices and len(allowed) < terms.gang_min and event.target is not None:
        raise IllegalEvent(
            f"a gang of at least {terms.gang_min} devices does not fit on {len(allowed)} that suit it",
            "client",
        )
    if event.target is not None and allowed and all(device.expected for device in allowed):
        raise IllegalEvent(
            f"only devices of nodes that are not there are {event.target} (such as {allowed[0].device}); the "
            "pool asks for a node when cells wait, so leave out --target",
            "client",
        )
    bound = tables.bound.get(event.session)
    if bound is not None and tables.devices[bound] not in allowed and event.move_s is None:
        where = event.target or " or ".join(device.device for device in allowed)
        raise IllegalEvent(f"the session's values live on {bound}, so it cannot run on {where}", "client")


def _arrived(
    tables: QueueTables, event: SegmentSubmitted | SegmentRefused, old: Job | None, state: JobState
) -> Job:
    number = tables.jobs_seen if old is None else old.number
    tables.jobs_seen += old is None
    tables.segments_seen += 1
    terms, account = NO_TERMS, ""
    if isinstance(event, SegmentSubmitted):
        terms, account = event.terms, event.account
    deadline_s = terms.deadline_s
    if old is not None:
        return replace(
            old,
            arrival=tables.segments_seen - 1,
            priority=event.priority,
            state=state,
            segment=event.segment,
            final=event.final,
            ops_total=event.ops_total,
            ops_done=0,
            ops_before=old.ops_before + old.ops_total,
            segment_at_s=event.at_s,
            ran_before_s=old.ran_s,
            target=None,
            assigned_device=None,
            predicted_s=None,
            message="",
            memory="free",
            memory_reason="",
            memory_wait_s=None,
            memory_release=MemoryRelease.COPIES,
            devices=1,
            devices_why="",
        )
    return Job(
        job=event.job,
        session=event.session,
        user=event.user,
        account=account or event.user,
        priority=event.priority,
        number=number,
        turn=number,
        arrival=tables.segments_seen - 1,
        state=state,
        segment=event.segment,
        final=event.final,
        ops_total=event.ops_total,
        submitted_at_s=event.at_s,
        segment_at_s=event.at_s,
        terms=terms,
        deadline_at_s=None if deadline_s is None else event.at_s + deadline_s,
    )
