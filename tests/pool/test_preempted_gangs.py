"""Preempted gangs on a live pool that resume later, on these or other devices: their results are those of one
device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import gang_kit
import pytest
from device_kind import KIND
from gang_kit import DEVICE_BYTES, TOGETHER, LongCell, Search, leaves_nothing_behind, other_of
from pool_kit import Client
from real_pool import PoolUnderTest, kill_worker, wait_for
from training import training

from djinn_lab.client.session import Session
from djinn_lab.errors import CellCancelled, PoolError, WorkerLost
from djinn_lab.jobs import Terms

pytestmark = pytest.mark.processes

MIB = 2**20
Found = tuple[list[float], list[list[float]]]
STEPS, ROWS, BESIDE = 50, 8192, 12


def new_search() -> Search:
    return Search(ROWS, BESIDE)


@pytest.fixture(scope="module")
def expected() -> Found:
    """The losses and weights of the search in plain torch."""
    alone = new_search()
    return alone.train(STEPS).tolist(), alone.weights()


@contextmanager
def running(pool: PoolUnderTest, session: Session, searched: Search, terms: Terms) -> Iterator[LongCell]:
    """Start the search as a long cell, and yield it once its branches run."""
    with gang_kit.running(pool, session, searched, STEPS, terms, ops=900) as cell:
        yield cell


def stops(pool: PoolUnderTest, job: str) -> int:
    events = [line.event for line in pool.rest.job(job).events]
    return events.count("SegmentPreempted")


def test_gang_preempted_for_a_critical_cell_ends_with_the_same_weights(
    two: PoolUnderTest, expected: Found
) -> None:
    search = new_search()
    urgent, _ = training(100, ballast_bytes=DEVICE_BYTES // 4)
    with two.session() as session, Client(two.info) as bob:
        with running(two, session, search, Terms(gang=2, gang_min=2)) as cell:
            critical = bob.submit(urgent, priority="CRITICAL")
            bob.until(critical, "RUNNING")
            aside = two.rest.job(cell.job)
            assert (aside.state, aside.finished_at) == ("PREEMPTED", None)
            assert "Preempted after" in aside.reason
            assert "for 2 devices at once" in aside.reason
            assert bob.result(critical).outcome == "done"
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        assert cell.gang_report == TOGETHER
        assert cell.stages["preempted"] > 0
        assert stops(two, cell.job) == 1
        assert two.rest.job(cell.job).ops_done == two.rest.job(cell.job).ops_total
        leaves_nothing_behind(two, session)


def test_gang_preempted_for_memory_is_parked_and_restored(two: PoolUnderTest, expected: Found) -> None:
    """The critical cell needs nearly all the memory of its device."""
    search = new_search()
    urgent, _ = training(20, ballast_bytes=250 * 2**20)
    with two.session() as session, Client(two.info) as bob:
        with running(two, session, search, Terms(gang=2, gang_min=2)) as cell:
            critical = bob.submit(urgent, priority="CRITICAL")
            bob.until(critical, "RUNNING")
            parts = [row.tier for row in two.rest.memory().sessions if "/" in row.session]
            assert "host" in parts  # the other one, where it has not come to its end
            assert bob.result(critical).outcome == "done"
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        assert stops(two, cell.job) == 1
        leaves_nothing_behind(two, session)


def test_preempted_gang_resumes_on_the_remaining_device(two: PoolUnderTest, expected: Found) -> None:
    """The values that the other device had made are moved to the remaining one."""
    search = new_search()
    urgent, _ = training(400, ballast_bytes=DEVICE_BYTES // 4)
    with two.session() as session, Client(two.info) as bob:
        with running(two, session, search, Terms(gang=2, gang_min=1)) as cell:
            critical = bob.submit(urgent, priority="CRITICAL")
            device = bob.until(critical, "RUNNING").device
            assert device is not None
            found = wait_for(lambda: reason_once_resumed(two, cell.job))
            assert device not in found
            assert two.rest.job(critical).finished_at is None
            assert bob.result(critical).outcome == "done"
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        assert stops(two, cell.job) == 1
        leaves_nothing_behind(two, session)


def reason_once_resumed(pool: PoolUnderTest, job: str) -> str:
    """The reason of the job's state once it runs again, empty before."""
    reason = str(pool.rest.job(job).reason) if stops(pool, job) else ""
    return reason if reason.startswith("Running on") else ""


def test_a_gang_that_is_disturbed_all_the_time_ends_as_if_it_had_not(
    two: PoolUnderTest, expected: Found
) -> None:
    """Whatever part of the gang runs, it is preempted."""
    search, over = new_search(), Event()

    def disturb() -> None:
        while not over.wait(0.05):
            for job in two.rest.jobs(state="RUNNING", limit=5):
                with suppress(PoolError):  # it has just ended
                    two.rest.preempt(job.job)

    disturber = Thread(target=disturb)
    with two.session() as session:
        disturber.start()
        try:
            with session.capture("long", terms=Terms(gang=2)) as cell:
                losses = search.train(STEPS)
        finally:
            over.set()
            disturber.join()
        assert (losses.tolist(), search.weights()) == expected
        assert cell.report.gang == TOGETHER
        own = [one.job for one in two.rest.jobs(limit=20) if one.session == session.welcome.session]
        assert max(stops(two, job) for job in own) >= 5
        leaves_nothing_behind(two, session)


def drained(pool: PoolUnderTest, job: str) -> None:
    """Drain all devices and wait until the gang is preempted."""
    for device in (f"{KIND}:0", f"{KIND}:1"):
        pool.rest.cordon(device, drain=True)
    wait_for(lambda: pool.rest.job(job).state not in ("RUNNING", "DONE"))


def opened(pool: PoolUnderTest) -> None:
    for device in (f"{KIND}:0", f"{KIND}:1"):
        pool.rest.uncordon(device)


def test_preempted_gang_cancelled_leaves_the_session_as_it_was(two: PoolUnderTest, expected: Found) -> None:
    search = new_search()
    with two.session() as session:
        with session.capture("first", terms=Terms(gang=2)):
            losses = search.train(STEPS)
        assert (losses.tolist(), search.weights()) == expected
        before = held_bytes(two, session)
        with running(two, session, search, Terms(gang=2)) as cell:
            drained(two, cell.job)
            assert held_bytes(two, session) > before
            assert two.rest.cancel(cell.job).state == "CANCELLED"
            opened(two)
        assert isinstance(cell.raised[0], CellCancelled)
        assert search.weights() == expected[1]
        wait_for(lambda: held_bytes(two, session) <= before)
        leaves_nothing_behind(two, session)


def held_bytes(pool: PoolUnderTest, session: Session) -> int:
    """Return the bytes of the session and of the parts of its cell, on all tiers."""
    rows = pool.rest.memory().sessions
    own = [row for row in rows if row.session == session.welcome.session or "/" in row.session]
    return sum(row.total_bytes for row in own)


@pytest.fixture(scope="module")
def without_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("none"), f"{KIND}:2", DEVICE_BYTES, host_bytes=0) as pool:
        yield pool


@pytest.mark.parametrize("name", ["two", "without_host"])
def test_preempted_gang_with_a_dead_worker_ends_with_the_same_weights(
    name: str, expected: Found, request: pytest.FixtureRequest
) -> None:
    """The values of the dead worker's part are on the host, or the part runs again from its start."""
    pool: PoolUnderTest = request.getfixturevalue(name)
    search = new_search()
    with pool.session() as session:
        with running(pool, session, search, Terms(gang=2, gang_min=2)) as cell:
            drained(pool, cell.job)
            home = pool.rest.job(cell.job).device
            kill_worker(pool, other_of(home))
            opened(pool)
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        assert cell.gang_report == TOGETHER
        leaves_nothing_behind(pool, session)


def test_a_part_that_cannot_be_brought_over_begins_again(
    without_host: PoolUnderTest, expected: Found
) -> None:
    """One device is drained, and the pool has no host memory to move its part through."""
    pool, search = without_host, new_search()
    with pool.session() as session:
        with running(pool, session, search, Terms(gang=2)) as cell:
            home = pool.rest.job(cell.job).device
            pool.rest.cordon(other_of(home), drain=True)
            assert wait_for(lambda: reason_once_resumed(pool, cell.job)).startswith(f"Running on {home},")
        opened(pool)
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        leaves_nothing_behind(pool, session)


def test_preempted_gang_without_host_memory_fails_with_its_home_device(
    without_host: PoolUnderTest,
) -> None:
    pool, search = without_host, new_search()
    with pool.session() as session:
        with running(pool, session, search, Terms(gang=2)) as cell:
            drained(pool, cell.job)
            kill_worker(pool, pool.rest.job(cell.job).device)
            opened(pool)
        assert isinstance(cell.raised[0], WorkerLost)
        leaves_nothing_behind(pool, session)


def test_gang_on_a_drained_device_resumes_on_others(tmp_path: Path, expected: Found) -> None:
    """The device of its session is drained."""
    search = new_search()
    with PoolUnderTest(tmp_path, f"{KIND}:3", DEVICE_BYTES) as pool, pool.session() as session:
        with running(pool, session, search, Terms(gang=2, gang_min=2)) as cell:
            home = pool.rest.job(cell.job).device
            pool.rest.cordon(home, drain=True)
            found = wait_for(lambda: reason_once_resumed(pool, cell.job))
            assert home not in found
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        assert cell.gang_report == f"It ran on 3 devices: {KIND}:0, {KIND}:1, {KIND}:2."
        leaves_nothing_behind(pool, session)


def test_preempted_gang_runs_anew_after_the_pool_was_killed(tmp_path: Path, expected: Found) -> None:
    search = new_search()
    with PoolUnderTest(tmp_path, f"{KIND}:2", DEVICE_BYTES) as pool, pool.session() as session:
        with running(pool, session, search, Terms(gang=2)) as cell:
            drained(pool, cell.job)
            pool.kill()
            pool.start()
            opened(pool)
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        assert pool.rest.job(cell.job).state == "DONE"
