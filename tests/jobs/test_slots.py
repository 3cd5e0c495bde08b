"""A device that runs several cells at once."""

from __future__ import annotations

import pytest

from djinn_lab.jobs import (
    DeviceAdded,
    DeviceCordoned,
    DeviceLost,
    IllegalEvent,
    JobState,
    PreemptSegment,
    SegmentFinished,
    SegmentSubmitted,
    StartSegment,
    Terms,
)
from djinn_lab.jobs.machine.queue import JobQueue


def queue_of(slots: int) -> JobQueue:
    queue = JobQueue()
    queue.handle(DeviceAdded(0.0, "cpu:0", slots=slots))
    return queue


def submit(queue: JobQueue, name: str, terms: Terms | None = None) -> list[str]:
    """Submit a job of a session of its own, and return the jobs that start."""
    segment = SegmentSubmitted(1.0, name, 0, name, name, "NORMAL", 1, True, terms=terms or Terms())
    return [one.job for one in queue.handle(segment) if isinstance(one, StartSegment)]


def test_as_many_cells_run_as_there_are_slots_and_the_next_starts_when_one_ends() -> None:
    queue = queue_of(2)
    assert [submit(queue, name) for name in "abc"] == [["a"], ["b"], []]
    assert queue.explain("c").startswith("1st in the queue of cpu:0")
    commands = queue.handle(SegmentFinished(2.0, "b", 0, "done", 1))
    assert [one.job for one in commands if isinstance(one, StartSegment)] == ["c"]
    assert [job.job for job in queue.running_jobs()] == ["a", "c"]
    queue.validate()


def test_all_that_ran_on_a_lost_device_is_pending_again() -> None:
    queue = queue_of(2)
    for name in "abc":
        submit(queue, name)
    queue.handle(DeviceLost(2.0, "cpu:0", "it was killed"))
    states = {name: queue.job(name).state for name in "abc"}  # type: ignore[union-attr]
    assert states == dict.fromkeys("abc", JobState.SUBMITTED)
    queue.validate()


def test_drained_device_preempts_all_its_jobs() -> None:
    queue = queue_of(2)
    for name in "ab":
        submit(queue, name)
    commands = queue.handle(DeviceCordoned(2.0, "cpu:0", True, drain=True))
    assert [one.job for one in commands if isinstance(one, PreemptSegment)] == ["a", "b"]


def test_a_gang_is_refused_where_devices_run_several_cells() -> None:
    queue = queue_of(2)
    with pytest.raises(IllegalEvent, match="a gang needs devices of its own"):
        submit(queue, "gang", Terms(gang=2))
    queue.validate()
