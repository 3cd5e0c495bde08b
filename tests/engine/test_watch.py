"""A job that waits at an idle device for nothing is detected and reported once."""

from __future__ import annotations

from djinn_lab import jobs, memory
from djinn_lab.engine.stall import STALLED_AFTER_S, Watch
from djinn_lab.jobs.machine.queue import JobQueue
from djinn_lab.simulator.pool import SimulatedPool


def waiting_for_memory() -> JobQueue:
    """A device that idles, and a cell that session memory defers."""
    queue = JobQueue()
    queue.handle(jobs.DeviceAdded(0.0, "cpu:0"))
    queue.handle(jobs.SegmentSubmitted(0.0, "cell", 0, "s", "ann", "NORMAL", 1, True, memory="ask"))
    queue.handle(jobs.MemoryDeferred(0.0, "cell", "it waits for memory"))
    return queue


def test_a_healthy_pool_never_stalls() -> None:
    pool = SimulatedPool(1, 100)
    for name in ("ann", "bob"):
        pool.open(name)
    for number in range(4):
        pool.submit(f"cell{number}", ("ann", "bob")[number % 2], seconds=20.0, mib=80)
    pool.run(300.0)
    assert len(pool.ended_s) == 4
    assert pool.stalls == []
    assert pool.engine.stall is None


def test_stall_is_reported_once_and_ends_with_the_next_event() -> None:
    queue, watch = waiting_for_memory(), Watch()
    watch.happened(1.0, [])
    assert watch.look(1.0 + STALLED_AFTER_S - 0.1, queue) is None
    stalled = watch.look(1.0 + STALLED_AFTER_S, queue)
    assert stalled is not None
    assert (stalled.job, stalled.device) == ("cell", "cpu:0")
    assert "waits for memory" in stalled.reason
    assert watch.stall is not None
    assert watch.stall.since_s == 1.0
    assert watch.look(100.0, queue) is None
    watch.happened(101.0, [])
    assert watch.stall is None


def test_a_copy_under_way_is_no_stall() -> None:
    queue, watch = waiting_for_memory(), Watch()
    watch.happened(1.0, [memory.RestoreSession(7, "s", "cpu:0")])
    assert watch.look(100.0, queue) is None
    watch.copied(7)
    watch.happened(100.0, [])
    assert watch.look(100.0 + STALLED_AFTER_S, queue) is not None


def test_copies_of_a_freed_session_and_of_a_dead_device_never_end() -> None:
    for ending in ("freed", "dead"):
        queue, watch = waiting_for_memory(), Watch()
        watch.happened(1.0, [memory.StoreSession(7, "other", "cpu:0")])
        if ending == "dead":
            watch.died("cpu:0")
        else:
            watch.happened(1.0, [memory.FreeSession("other", "cpu:0")])
        assert watch.look(1.0 + STALLED_AFTER_S, queue) is not None


def test_ineligible_cell_is_no_stall() -> None:
    queue, watch = waiting_for_memory(), Watch()
    queue.handle(jobs.DeviceCordoned(0.5, "cpu:0", True))
    watch.happened(1.0, [])
    assert watch.look(100.0, queue) is None
