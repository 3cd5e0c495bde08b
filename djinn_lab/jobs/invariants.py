"""What is true of a queue at every moment."""

from __future__ import annotations

from collections.abc import Mapping

from djinn_lab.jobs.job import Job
from djinn_lab.jobs.states import FINISHED, IN_LINE, JobState


def check_queue(
    alive: Mapping[str, bool],
    running: Mapping[str, str],
    bound: Mapping[str, str],
    jobs: Mapping[str, Job],
    finished: Mapping[str, Job],
) -> None:
    """``running``: device to job; ``bound``: session to device."""
    for device, name in running.items():
        assert alive[device], f"{device} runs {name} and is not up"
        assert jobs[name].state is JobState.RUNNING, f"{device} runs {name}, which is {jobs[name].state}"
        assert jobs[name].held_on == device, f"{device} runs {name}, which is on {jobs[name].held_on}"
    assert len(set(running.values())) == len(running), "a job runs on two devices"
    for session, device in bound.items():
        assert alive[device], f"{session} is bound to {device}, which is not up"
    for job in jobs.values():
        check_job(job)
        assert not job.finished, f"{job.job} is {job.state} among the unfinished"
        if job.held_on is not None and not job.cancelling:
            assert bound[job.session] == job.held_on, f"{job.job} is on {job.held_on}, its session is not"
        if job.state is JobState.RUNNING:
            assert running.get(job.held_on or "") == job.job, f"{job.job} is RUNNING on no device"
        if job.state in IN_LINE:
            free = job.held_on not in running and job.memory in ("free", "granted")
            assert not free, f"{job.job} is queued for an idle {job.held_on}"
        if job.state is JobState.SUBMITTED:
            up = [device for device, is_up in alive.items() if is_up and job.wish in (None, device)]
            assert not up, f"{job.job} has no device although {up} could take it"
    for job in finished.values():
        assert job.finished, f"{job.job} is {job.state} among the finished"
        check_job(job)


def check_job(job: Job) -> None:
    on_device = job.state in (JobState.RESTORING, JobState.QUEUED, JobState.PREEMPTED, JobState.RUNNING)
    assert not job.preempting or job.state is JobState.RUNNING, f"{job.job} moves aside and is {job.state}"
    if job.state is JobState.RESTORING:
        assert job.memory in ("ask", "held"), f"{job.job} waits for memory, which is {job.memory}"
    if job.state is JobState.RUNNING:
        assert job.memory in ("free", "granted"), f"{job.job} runs with memory {job.memory}"
    if job.state is JobState.QUEUED:
        assert job.memory in ("free", "line", "granted"), f"{job.job} is in line with memory {job.memory}"
    assert (job.held_on is not None) == on_device, f"{job.job} is {job.state} and held on {job.held_on}"
    assert 0 <= job.ops_done <= job.ops_total, f"{job.job} did {job.ops_done} of {job.ops_total} ops"
    assert (job.ended_at_s is not None) == job.finished
    assert not (job.cancelling and job.state not in (JobState.RUNNING, *FINISHED))
