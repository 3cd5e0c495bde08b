"""The engine's commands, event by event, where queue and session memory meet."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from djinn_lab import engine, jobs, memory
from djinn_lab.simulator.pool import MIB, SimulatedPool


def commands_of(pool: SimulatedPool, event: engine.Event) -> list[str]:
    return [type(command).__name__ for command in pool.engine.handle(event)]


def test_a_cell_that_never_fits_is_refused_with_numbers_and_the_queue_knows() -> None:
    pool = SimulatedPool(1, 10)
    pool.open("ann")
    segment = jobs.SegmentSubmitted(0.0, "big", 0, "ann", "ann", "NORMAL", 1, True)
    refusal, *others = pool.engine.handle(engine.SegmentArrived(0.0, segment, 11 * MIB, op="mm"))
    assert isinstance(refusal, memory.RejectSegment)
    assert (
        refusal.sentence
        == "The cell needs 11.0 MiB at once at mm, and the largest device, cpu:0, has 10.0 MiB."
    )
    known = pool.queue.job("big")
    assert known is not None
    assert (known.state, known.message) == (jobs.JobState.FAILED, refusal.sentence)
    assert [type(other) for other in others] == [jobs.Notify]


def test_an_event_that_cannot_be_changes_nothing() -> None:
    pool = SimulatedPool(1, 10)
    pool.open("ann")
    pool.submit("one", "ann")
    before = pool.queue.snapshot()
    segment = jobs.SegmentSubmitted(0.0, "one", 0, "ann", "ann", "NORMAL", 1, True)
    with pytest.raises(jobs.IllegalEvent):
        pool.engine.handle(engine.SegmentArrived(0.0, segment, MIB))
    with pytest.raises(memory.IllegalEvent):
        pool.engine.handle(memory.SessionResumed(0.0, "bob"))
    assert pool.queue.snapshot() == before
    pool.run(5.0)
    assert pool.outcomes == {"one": "DONE"}


def test_a_tick_at_which_nothing_is_due_is_idle() -> None:
    pool = SimulatedPool(1, 10)
    assert pool.engine.handle(engine.ClockTicked(1.0)) == []
    assert pool.engine.idle
    pool.open("ann")
    assert not pool.engine.idle


def test_work_that_is_lost_while_its_cell_is_set_aside_ends_the_cell() -> None:
    pool = SimulatedPool(1, 100, host_mib=0)  # nothing can be parked
    for name in ("ann", "bob"):
        pool.open(name)
    pool.submit("long", "ann", seconds=10.0, mib=20)
    pool.run(1.0)
    pool.submit("urgent", "bob", seconds=3.0, mib=20, priority=jobs.Priority.CRITICAL)
    pool.run(2.0)
    assert pool.queue.job("long").state is jobs.JobState.PREEMPTED  # type: ignore[union-attr]
    pool.lose("cpu:0", back_after_s=0.5)
    pool.run(20.0)
    assert pool.outcomes == {"long": "FAILED", "urgent": "DONE"}
    known = pool.queue.job("long")
    assert known is not None
    assert (
        "while this cell was preempted, and the values that this session had there are lost" in known.message
    )
    pool.engine.validate()


def test_part_memory_is_kept_while_deferred_and_freed_when_released() -> None:
    pool = SimulatedPool(2, 100)
    asked = engine.PartMemoryRequested(0.0, "job/0", "ann", "cpu:0", 0, 30 * MIB, 2)
    assert commands_of(pool, asked) == ["PartMemoryGranted"]
    held = {"job/0": 30 * MIB}
    report = memory.MemoryReported(0.0, "cpu:0", 30 * MIB, 30 * MIB, held, unstored_bytes=held, job="job/0")
    assert commands_of(pool, report) == []
    elsewhere = replace(asked, device="cpu:1", peak_bytes=MIB)
    assert commands_of(pool, elsewhere) == ["StoreSession", "PartMemoryDeferred"]
    assert commands_of(pool, engine.PartMemoryWithdrawn(0.0, "job/0")) == []
    assert pool.engine.accounts.session_bytes("job/0") == 30 * MIB
    assert "FreeSession" in commands_of(pool, engine.PartMemoryReleased(0.0, "job/0"))
    assert not pool.engine.accounts.knows("job/0")
    assert commands_of(pool, engine.PartMemoryReleased(0.0, "job/0")) == []


def test_part_memory_larger_than_every_device_is_rejected() -> None:
    pool = SimulatedPool(1, 100)
    answers = pool.engine.handle(engine.PartMemoryRequested(0.0, "job/0", "ann", "cpu:0", 0, 101 * MIB, 2))
    assert [type(answer) for answer in answers] == [engine.PartMemoryRejected]
    assert "100.0 MiB" in answers[0].message  # type: ignore[union-attr]


def test_later_cell_of_a_session_is_granted_no_memory_before_the_first_ends() -> None:
    """Whatever its priority, the later cell runs after the first."""
    pool = SimulatedPool(1, 100)
    for name in ("ann", "bob", "carl"):
        pool.open(name)
    pool.submit("runs", "carl", seconds=5.0, mib=50)
    pool.submit("first", "ann", seconds=1.0, mib=60)
    pool.submit("later", "ann", seconds=1.0, mib=40, priority=jobs.Priority.CRITICAL)
    pool.run(1.0)
    later = pool.queue.job("later")
    assert later is not None
    assert (later.state, later.memory) == (jobs.JobState.QUEUED, "queued")
    pool.submit("other", "bob", seconds=1.0, mib=40)
    pool.run(60.0)
    assert pool.outcomes == dict.fromkeys(("runs", "first", "later", "other"), "DONE")
    assert pool.started_s["later"] >= pool.ended_s["first"]


def test_running_cell_is_not_preempted_for_a_cell_that_memory_cannot_admit() -> None:
    """Ann's cell runs on; preempted, it would wait at an idle device for a cell without a memory grant."""
    pool = SimulatedPool(1, 100, host_mib=0)
    for name in ("ann", "bob", "carl"):
        pool.open(name)
    pool.submit("fills", "carl", seconds=0.1, mib=70)
    pool.run(1.0)
    pool.submit("long", "ann", seconds=10.0, mib=10)
    pool.run(2.0)
    pool.submit("urgent", "bob", seconds=1.0, mib=60, priority=jobs.Priority.CRITICAL)
    pool.run(30.0)
    assert pool.outcomes == {"fills": "DONE", "long": "DONE"}
    assert "it waits for one to close" in pool.queue.explain("urgent")
    assert pool.stalls == []
    pool.close("carl")
    pool.run(40.0)
    assert pool.outcomes["urgent"] == "DONE"


def test_full_host_demotes_the_state_of_waiting_sessions_to_disk() -> None:
    """The host is full of the state of sessions whose cells wait for each other's memory."""
    pool = SimulatedPool(1, 130, host_mib=130, disk_mib=1000)
    sessions = ("ann", "bob", "carl", "dora")
    for round_number in range(3):
        for name in sessions:
            if not round_number:
                pool.open(name)
            pool.submit(f"{name}{round_number}", name, seconds=0.5, mib=60)
        pool.run(30.0 * (round_number + 1))
    assert len(pool.ended_s) == 3 * len(sessions)
    assert set(pool.outcomes.values()) == {"DONE"}


def test_two_sessions_swap_with_host_capacity_for_one() -> None:
    """Meanwhile the state of the session that is restored is on the disk."""
    pool = SimulatedPool(1, 200, host_mib=100, disk_mib=300)
    sessions = [f"session{number}" for number in range(4)]
    for session in sessions:
        pool.open(session)
    for turn in range(3):
        for session in sessions:
            pool.submit(f"{session}-{turn}", session, seconds=0.1, mib=1 if turn else 55)
            pool.run(pool.now_s + 5.0)
    assert len(pool.ended_s) == 12
    assert set(pool.outcomes.values()) == {"DONE"}


def test_a_cell_that_was_let_in_and_does_not_fit_its_device_is_answered_by_its_end() -> None:
    """The larger device could hold it, but it was bound to the smaller one."""
    core = engine.Engine()
    for device, mib in (("cpu:0", 10), ("cpu:1", 100)):
        core.handle(engine.DeviceAdded(0.0, device, mib * MIB))
    core.handle(memory.SessionOpened(0.0, "ann", "ann"))
    segment = jobs.SegmentSubmitted(0.0, "big", 0, "ann", "ann", "NORMAL", 1, True, target="cpu:0")
    commands = core.handle(engine.SegmentArrived(0.0, segment, 50 * MIB))
    kinds = [type(command) for command in commands]
    assert memory.RejectSegment in kinds
    assert jobs.EndSegment in kinds
    core.validate()
