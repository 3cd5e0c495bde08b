"""A reservation on a live pool: its accounts have the device when it begins, whatever runs there."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from device_kind import KIND
from pool_kit import Client
from real_pool import PoolUnderTest, wait_for
from training import training

pytestmark = pytest.mark.processes

MIB = 2**20


def test_cell_preempted_for_a_reservation_resumes_with_the_same_result(
    tmp_path: Path,
) -> None:
    long, _ = training(600, size=128, ballast_bytes=16 * MIB)  # still there when the lesson has come
    short, _ = training(20, seed=1)
    with PoolUnderTest(tmp_path, f"{KIND}:1", 256 * MIB) as pool:
        chief, info = pool.rest, pool.info
        ann = chief.create_user("ann", account="research").token
        bob = chief.create_user("bob", account="teaching").token
        with Client(info, ann) as calm:
            expected = calm.run(long)
        with Client(info, ann) as researcher, Client(info, ann) as another, Client(info, bob) as teacher:
            cell = researcher.submit(long, priority="CRITICAL")
            researcher.until(cell, "RUNNING")
            wait_for(lambda: chief.job(cell).ops_done > 0)
            chief.reserve("course", [f"{KIND}:0"], ["teaching"], ends_at=time.time() + 600)
            lesson = teacher.submit(short, priority="SCAVENGER")
            assert teacher.result(lesson).outcome == "done"
            stopped = f"for bob's job {lesson[:8]} (SCAVENGER): {KIND}:0 is reserved for teaching (course)"
            assert stopped in chief.job(cell).reason
            waits = another.submit(short, priority="CRITICAL")
            another.until(waits, "QUEUED")
            assert all("reserved for other accounts" in chief.why(job).sentence for job in (waits, cell))
            chief.end_reservation("course")
            assert another.result(waits).outcome == "done"
            found = researcher.result(cell)
    assert found.outcome == "done", found.error
    assert [one.data for one in found.fetched] == [one.data for one in expected.fetched]
    assert found.rng_state == expected.rng_state


def test_ineligible_pending_jobs_do_not_block_the_reserving_account(tmp_path: Path) -> None:
    """Capacity is reserved for the first pending jobs, but they are ineligible there: the lesson starts."""
    long, _ = training(100, size=1024)
    short, _ = training(20, seed=1)
    with ExitStack() as opened:
        pool = opened.enter_context(PoolUnderTest(tmp_path, f"{KIND}:1", 256 * MIB))
        chief, info = pool.rest, pool.info
        ann = chief.create_user("ann", account="research").token
        bob = chief.create_user("bob", account="teaching").token
        researchers = [opened.enter_context(Client(info, ann)) for _ in range(4)]
        teacher = opened.enter_context(Client(info, bob))
        cells = [researcher.submit(long) for researcher in researchers]
        wait_for(lambda: [one.state for one in chief.jobs(limit=9)].count("QUEUED") == 3)
        chief.reserve("course", [f"{KIND}:0"], ["teaching"], ends_at=time.time() + 600)
        lesson = teacher.submit(short, priority="SCAVENGER")
        assert teacher.result(lesson).outcome == "done"
        waiting = [cell for cell in cells if chief.job(cell).state in ("QUEUED", "PREEMPTED")]
        assert len(waiting) >= 2, "so many jobs have a reservation"
