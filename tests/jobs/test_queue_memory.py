"""What the queue remembers about jobs, and for how long."""

from __future__ import annotations

import pytest

from djinn_lab.jobs import (
    FINISHED,
    TRANSITIONS,
    DeviceAdded,
    Event,
    JobState,
    Notify,
    SegmentFinished,
    SegmentProgressed,
    SegmentSubmitted,
)
from djinn_lab.jobs.machine.notifications import POSITIONS_SENT_MAX
from djinn_lab.jobs.machine.queue import JobQueue
from djinn_lab.jobs.machine.tables import FINISHED_JOBS_MAX


def submit(
    job: str, session: str = "s", segment: int = 0, final: bool = True, ops: int = 5
) -> SegmentSubmitted:
    return SegmentSubmitted(1.0, job, segment, session, "ann", "NORMAL", ops, final)


def test_a_story_has_every_event_of_a_job_and_only_the_last_progress() -> None:
    queue = JobQueue()
    events: list[Event] = [
        submit("a", final=False),
        SegmentProgressed(2.0, "a", 0, 1),
        SegmentProgressed(3.0, "a", 0, 2),
        SegmentFinished(4.0, "a", 0, "done", 5),
    ]
    queue.handle(DeviceAdded(0.0, "cpu:0"))
    for event in events:
        queue.handle(event)
    assert queue.story("a") == (events[0], events[2], events[3])
    assert queue.story("unknown") == ()


def test_a_final_segment_that_its_client_sends_again_does_not_end_the_job() -> None:
    queue = JobQueue()
    queue.handle(DeviceAdded(0.0, "cpu:0"))
    queue.handle(submit("a"))
    queue.handle(SegmentFinished(2.0, "a", 0, "failed", 0, continues=True))
    between = queue.job("a")
    assert between is not None
    assert not between.finished
    queue.handle(submit("a", segment=1))
    queue.handle(SegmentFinished(3.0, "a", 1, "done", 5))
    ended = queue.job("a")
    assert ended is not None
    assert ended.state is JobState.DONE


def test_finished_jobs_are_forgotten_after_a_while() -> None:
    queue = JobQueue()
    queue.handle(DeviceAdded(0.0, "cpu:0"))
    for number in range(FINISHED_JOBS_MAX + 1):
        queue.handle(submit(f"job{number}"))
        queue.handle(SegmentFinished(2.0, f"job{number}", 0, "done", 5))
    assert queue.job("job0") is None
    assert queue.story("job0") == ()
    last = queue.job(f"job{FINISHED_JOBS_MAX}")
    assert last is not None
    assert last.state is JobState.DONE
    with pytest.raises(KeyError):
        queue.explain("job0")


def test_times_are_those_of_the_events() -> None:
    queue = JobQueue()
    queue.handle(DeviceAdded(0.0, "cpu:0"))
    queue.handle(submit("a"))
    queue.handle(submit("b"))
    queue.handle(SegmentFinished(7.5, "a", 0, "done", 5))
    finished, running = queue.job("a"), queue.job("b")
    assert finished is not None
    assert running is not None
    assert (finished.submitted_at_s, finished.started_at_s, finished.ended_at_s) == (1.0, 1.0, 7.5)
    assert (running.submitted_at_s, running.started_at_s, running.ended_at_s) == (1.0, 7.5, None)


def test_the_table_leaves_no_finished_state_and_reaches_every_state() -> None:
    assert not {state for state, _ in TRANSITIONS} & FINISHED
    assert set(TRANSITIONS.values()) == set(JobState)


def test_long_queue_notifies_only_the_jobs_of_the_event() -> None:
    queue = JobQueue()
    queue.handle(DeviceAdded(0.0, "cpu:0"))
    for number in range(POSITIONS_SENT_MAX + 3):
        commands = queue.handle(submit(f"job{number}", session=f"s{number}"))
    assert [c.position for c in commands if isinstance(c, Notify)] == [POSITIONS_SENT_MAX + 2]
