"""The cost of an event and its notifications do not depend on the number of pending cells."""

from __future__ import annotations

from functools import partial

from lines_run import lines_run

from djinn_lab.events import DeviceAdded
from djinn_lab.jobs import JobState
from djinn_lab.jobs.commands import Notify
from djinn_lab.jobs.machine.explain import POSITIONS_MAX
from djinn_lab.jobs.machine.queue import JobQueue
from djinn_lab.jobs.messages import DeviceCordoned, SegmentFinished, SegmentSubmitted

CELLS = 2
"""Cells of each session."""
FEW, MANY = 600, 2_400
"""Pending cells; in both cases more sessions contend than are given a position."""


def queue_of(cells: int) -> JobQueue:
    """Two busy devices with so many pending cells, two of each session."""
    queue = JobQueue()
    for device in ("cpu:0", "cpu:1"):
        queue.handle(DeviceAdded(0.0, device))
    for number in range(cells + 2):
        queue.handle(submitted(number))
    return queue


def submitted(number: int) -> SegmentSubmitted:
    session = f"s{number // CELLS}"
    return SegmentSubmitted(
        0.0, f"job{number}", 0, session, "ann", priority="NORMAL", ops_total=8, final=True, move_s=0.0
    )


def one_ends(queue: JobQueue) -> None:
    running = queue.running_jobs()[0]
    queue.handle(SegmentFinished(1.0, running.job, 0, "done", 8))


def test_end_and_submit_cost_the_same_with_four_times_as_many_pending() -> None:
    few, many = queue_of(FEW), queue_of(MANY)
    assert lines_run(lambda: one_ends(many)) <= 1.2 * lines_run(lambda: one_ends(few))
    in_few = lines_run(lambda: few.handle(submitted(FEW + 40)))
    assert lines_run(lambda: many.handle(submitted(MANY + 40))) <= 1.2 * in_few


def test_a_submit_costs_the_same_with_four_times_as_many_that_have_no_device() -> None:
    costs = []
    for cells in (FEW, MANY):
        queue = JobQueue()
        queue.handle(DeviceAdded(0.0, "cpu:0"))
        queue.handle(DeviceCordoned(0.0, "cpu:0", True))
        for number in range(cells):
            queue.handle(submitted(number))
        event = submitted(cells + 40)
        costs.append(lines_run(partial(queue.handle, event)))
        queue.handle(DeviceCordoned(1.0, "cpu:0", False))
        queue.validate()
        assert queue.busy_devices() == {"cpu:0"}
    assert costs[1] <= 1.2 * costs[0]


def test_job_far_behind_is_notified_without_a_position_and_explains_one() -> None:
    queue = queue_of(4 * POSITIONS_MAX)
    number = 4 * POSITIONS_MAX + 40
    notified = [one for one in queue.handle(submitted(number)) if isinstance(one, Notify)]
    assert [one.position for one in notified] == [None]
    assert f"more than {POSITIONS_MAX} cells wait" in notified[0].reason
    queue_position = queue.queue_position(f"job{number}")
    assert queue_position is not None
    assert queue_position.position >= POSITIONS_MAX
    assert queue.explain(f"job{number}").startswith(f"{queue_position.position}")


def test_first_of_a_long_queue_get_their_positions() -> None:
    queue = queue_of(4 * POSITIONS_MAX)
    positions = {
        job.job: queue_position.position
        for job, queue_position, _ in queue.waiting()
        if queue_position is not None
    }
    first = {
        job.job: queue_position.position
        for job, queue_position, _ in queue.waiting_first()
        if queue_position is not None
    }
    assert POSITIONS_MAX // 2 < len(first) <= POSITIONS_MAX
    assert first == {name: positions[name] for name in first}
    assert {1} <= set(first.values())
    assert all(job.state is not JobState.RUNNING for job, _, _ in queue.waiting_first())
