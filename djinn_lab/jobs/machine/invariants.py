"""Invariants of the queue."""

from __future__ import annotations

from collections import Counter

from djinn_lab.jobs.conditions import jobs_in
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.machine.tables import QueueTables
from djinn_lab.jobs.states import CONTENDING, FINISHED, PENDING_STATES, JobState
from djinn_lab.jobs.targets import suits


def check_queue(tables: QueueTables) -> None:
    running = [(name, job) for name, device in tables.devices.items() for job in device.running]
    alive = {name: device.alive for name, device in tables.devices.items()}
    open_devices = {name for name, device in tables.devices.items() if device.serves}
    bound, jobs, finished = tables.bound, tables.jobs, tables.finished
    check_indexes(tables)
    assert all(device.idle_slots >= 0 for device in tables.devices.values()), "more run than there are slots"
    for device, name in running:
        assert alive[device], f"{device} runs {name} and is not up"
        assert jobs[name].state is JobState.RUNNING, f"{device} runs {name}, which is {jobs[name].state}"
        assert device in jobs[name].holds, f"{device} runs {name}, which is on {jobs[name].holds}"
    check_riders(tables)
    for session, device in bound.items():
        assert alive[device], f"{session} is bound to {device}, which is not up"
    for job in jobs.values():
        check_job(job)
        assert not job.finished, f"{job.job} is {job.state} among the unfinished"
        if job.assigned_device is not None and not job.cancelling:
            assert bound[job.session] == job.assigned_device, (
                f"{job.job} is on {job.assigned_device}, its session is not"
            )
        if job.state is JobState.RUNNING:
            assert job.holds, f"{job.job} is RUNNING on no device"
            assert len(set(job.holds)) == len(job.holds), f"{job.job} holds a device twice: {job.holds}"
            held = {device for device, name in running if name == job.job}
            assert held == set(job.holds), f"{job.job} runs on {sorted(held)} and holds {job.holds}"
        if job.state in PENDING_STATES:
            idle = job.assigned_device in open_devices and _is_idle_for(tables, job)
            next_of_session = tables.first_of_session(job.session) == job
            free = idle and next_of_session and job.memory in ("free", "granted") and job.gang_min == 1
            assert not free, f"{job.job} is queued for an idle {job.assigned_device}"
        if job.state is JobState.SUBMITTED:
            up = [
                device
                for device in sorted(open_devices)
                if suits(job.target, job.terms.tolerates, tables.devices[device])
            ]
            assert not up or job.waits_for, f"{job.job} has no device although {up} could take it"
    for job in finished.values():
        assert job.finished, f"{job.job} is {job.state} among the finished"
        check_job(job)


def _is_idle_for(tables: QueueTables, job: Job) -> bool:
    """Return whether the job's device has a free slot, and runs no brief job of another process."""
    assert job.assigned_device is not None
    device = tables.devices[job.assigned_device]
    others = any(tables.jobs[name].shared_process != job.shared_process for name in device.riders)
    return device.idle_slots > 0 and not others


def check_riders(tables: QueueTables) -> None:
    jobs = tables.jobs
    for name, device in tables.devices.items():
        interleaved = {job for job in device.running if jobs[job].interleaved}
        riders = {job for job in device.running if jobs[job].leader}
        found = riders | interleaved
        assert found == device.riders, f"{sorted(device.riders)} ride on {name}, not {sorted(found)}"
        assert not riders & interleaved, f"{sorted(riders & interleaved)} ride and are interleaved"
        for job in interleaved:
            assert jobs[job].shared_process, f"{job} is interleaved, and names no process"
            assert not jobs[job].members, f"{job} is interleaved and holds {jobs[job].members}"
        for rider in riders:
            leader = jobs[rider].leader
            assert leader in device.running, f"{rider} rides with {leader}, which {name} does not run"
            assert leader not in riders, f"{rider} rides with {leader}, which rides itself"
            assert jobs[rider].batch == jobs[leader].batch != "", f"{rider} is in another batch than {leader}"
            assert not jobs[rider].members, f"{rider} rides and holds {jobs[rider].members}"
            assert jobs[rider].session != jobs[leader].session, f"{rider} rides with its own session"


def check_indexes(tables: QueueTables) -> None:
    by_state = {name for names in tables.of_state.values() for name in names}
    assert by_state == set(tables.jobs), "jobs by state are not the unfinished jobs"
    dependent = {job.job for job in tables.jobs.values() if job.waits_for}
    assert tables.dependent.keys() == dependent, "dependent jobs are not those that wait for others"
    contending = [job.assigned_device for job in tables.jobs.values() if job.state in CONTENDING]
    counted = Counter(device for device in (*tables.bound.values(), *contending) if device is not None)
    assert tables.load == counted, "the load of devices is not what their sessions and jobs are"
    for state, names in tables.of_state.items():
        assert all(tables.jobs[name].state is state for name in names)
    mates = [name for names in tables.of_session.values() for name in names]
    assert sorted(mates) == sorted(tables.jobs), "jobs by session are not the unfinished jobs"
    for ordered in tables.of_session.values():
        arrivals = [tables.jobs[name].arrival for name in ordered]
        assert arrivals == sorted(arrivals), "a session's jobs are out of order"
    for job in tables.jobs.values():
        there = tables.jobs.keys() | tables.external.keys()
        ended = [name for name in jobs_in(job.waits_for) if name not in there]
        assert not ended, f"{job.job} waits for {ended}, which has ended"
        assert (job.waiting.missing_count > 0) == bool(job.waits_for), (
            f"{job.job} waits for nothing, or too long"
        )


def check_job(job: Job) -> None:
    on_device = job.state in (JobState.RESTORING, JobState.QUEUED, JobState.PREEMPTED, JobState.RUNNING)
    assert not job.members or job.state is JobState.RUNNING, f"{job.job} is {job.state}, with {job.members}"
    assert len(job.members) < max(1, job.gang), f"{job.job} holds {job.members} for a gang of {job.gang}"
    assert not job.leader or job.state is JobState.RUNNING, f"{job.job} rides and is {job.state}"
    assert not job.interleaved or job.state is JobState.RUNNING, f"{job.job} is interleaved and {job.state}"
    assert not job.preempting or job.state is JobState.RUNNING, (
        f"{job.job} is being preempted and is {job.state}"
    )
    if job.state is JobState.RESTORING:
        assert job.memory in ("ask", "deferred"), f"{job.job} waits for memory, which is {job.memory}"
    if job.state is JobState.RUNNING:
        assert job.memory in ("free", "granted"), f"{job.job} runs with memory {job.memory}"
    if job.state is JobState.QUEUED:
        assert job.memory in ("free", "queued", "granted"), f"{job.job} is pending with memory {job.memory}"
    assert (job.assigned_device is not None) == on_device, (
        f"{job.job} is {job.state} with assigned device {job.assigned_device}"
    )
    assert 0 <= job.ops_done <= job.ops_total, f"{job.job} did {job.ops_done} of {job.ops_total} ops"
    assert (job.ended_at_s is not None) == job.finished
    assert not (job.cancelling and job.state not in (JobState.RUNNING, *FINISHED))
