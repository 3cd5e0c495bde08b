"""Gangs that move aside on a live pool and go on later, on these or other devices: their results are those of
one device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from pool_kit import Client
from real_pool import PoolUnderTest, kill_worker, wait_for
from torch import nn
from torch.nn import functional as F
from training import training

from djinn_lab.client.session import Session
from djinn_lab.errors import CellCancelled, PoolError, PoolLost, WorkerLost
from djinn_lab.jobs import Terms

pytestmark = pytest.mark.processes

MIB = 2**20
Found = tuple[list[float], list[list[float]]]
RATES = (0.1, 0.05, 0.02, 0.01)
STEPS, ROWS, BESIDE = 50, 8192, 12


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("gangs"), "cpu:2", 256 * MIB) as pool:
        yield pool


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the pool's devices have."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Search:
    """Four small networks with a learning rate each. Before and after them come ops that all of them need, or
    that need all of them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.models = [nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)) for _ in RATES]
        self.optimizers = [
            torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
            for model, rate in zip(self.models, RATES, strict=True)
        ]
        self.images, self.labels = torch.randn(ROWS, 64), torch.randint(0, 8, (ROWS,))

    def train(self, steps: int = STEPS) -> torch.Tensor:
        torch.manual_seed(1)
        losses = []
        images = self.images
        for _ in range(BESIDE):
            images = images + 0.01 * torch.rand_like(images)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for _ in range(steps):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), self.labels)
                loss.backward()
                optimizer.step()
            losses.append(loss.detach())
        found = torch.stack(losses)
        for _ in range(BESIDE):
            found = found + 0.01 * (images * found.mean()).mean()
        return found

    def weights(self) -> list[list[float]]:
        return [one.detach().flatten().tolist() for model in self.models for one in model.parameters()]


@pytest.fixture(scope="module")
def expected() -> Found:
    """What one device finds, and the weights."""
    torch.set_num_threads(1)
    alone = Search()
    return alone.train().tolist(), alone.weights()


class Running:
    """A long cell in a thread of its own. ``losses``, ``raised``, ``told``: once it is over."""

    def __init__(self, session: Session, search: Search, terms: Terms) -> None:
        self.losses: list[float] = []
        self.raised: list[BaseException] = []
        self.told = ""
        self._session, self._search, self._terms = session, search, terms
        self.thread = Thread(target=self._run)

    def _run(self) -> None:
        try:
            with self._session.capture("long", terms=self._terms) as cell:
                losses = self._search.train()
            self.told = cell.report.gang
            self.stages = cell.report.stages
            self.losses = losses.tolist()
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self.raised.append(error)


@contextmanager
def running(
    pool: PoolUnderTest, session: Session, search: Search, terms: Terms
) -> Iterator[tuple[str, Running]]:
    """Once its branches run: its job."""
    cell = Running(session, search, terms)
    cell.thread.start()
    try:
        job = pool.wait_for_job(session=session.welcome.session, state="RUNNING")["job"]
        wait_for(lambda: pool.rest.job(job)["ops_done"] > 900)
        yield job, cell
    finally:
        cell.thread.join()


def stops(pool: PoolUnderTest, job: str) -> int:
    events = [line["event"] for line in pool.rest.job(job)["events"]]
    return events.count("SegmentPreempted")


def leaves_nothing_behind(pool: PoolUnderTest, session: Session) -> None:
    """No session of a part, no file between two parts."""
    wait_for(lambda: not any("/" in row["session"] for row in pool.rest.memory()["sessions"]))
    assert session.welcome.blob_directory is not None
    results = Path(session.welcome.blob_directory).parent / "results"
    wait_for(lambda: not list(results.iterdir()))


def test_a_gang_moves_aside_for_a_critical_cell_and_ends_as_if_it_had_not(
    two: PoolUnderTest, expected: Found
) -> None:
    search = Search()
    urgent, _ = training(100, ballast_bytes=64 * MIB)
    with two.session() as session, Client(two.info) as bob:
        with running(two, session, search, Terms(gang=2, gang_min=2)) as (job, cell):
            critical = bob.submit(urgent, priority="CRITICAL")
            bob.until(critical, "RUNNING")
            aside = two.rest.job(job)
            assert (aside["state"], aside["finished_at"]) == ("PREEMPTED", None)
            assert "Moved aside after" in aside["reason"]
            assert "for 2 devices at once" in aside["reason"]
            assert bob.result(critical).outcome == "done"
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        assert cell.told == "It ran on 2 devices: cpu:0, cpu:1."
        assert cell.stages["preempted"] > 0
        assert stops(two, job) == 1
        assert two.rest.job(job)["ops_done"] == two.rest.job(job)["ops_total"]
        leaves_nothing_behind(two, session)


def test_a_gang_that_makes_room_is_parked_and_comes_back(two: PoolUnderTest, expected: Found) -> None:
    """The other cell needs nearly all the memory of its device."""
    search = Search()
    urgent, _ = training(20, ballast_bytes=250 * MIB)
    with two.session() as session, Client(two.info) as bob:
        with running(two, session, search, Terms(gang=2, gang_min=2)) as (job, cell):
            critical = bob.submit(urgent, priority="CRITICAL")
            bob.until(critical, "RUNNING")
            parts = [row["tier"] for row in two.rest.memory()["sessions"] if "/" in row["session"]]
            assert sorted(parts) == ["device", "host"]
            assert bob.result(critical).outcome == "done"
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        assert stops(two, job) == 1
        leaves_nothing_behind(two, session)


def test_a_gang_goes_on_on_the_one_device_that_is_left(two: PoolUnderTest, expected: Found) -> None:
    """What the other device had made of it is brought over."""
    search = Search()
    urgent, _ = training(100, ballast_bytes=64 * MIB)
    with two.session() as session, Client(two.info) as bob:
        with running(two, session, search, Terms(gang=2, gang_min=1)) as (job, cell):
            critical = bob.submit(urgent, priority="CRITICAL")
            device = bob.until(critical, "RUNNING").device
            assert device is not None
            found = wait_for(lambda: goes_on(two, job))
            assert device not in found
            assert two.rest.job(critical)["finished_at"] is None
            assert bob.result(critical).outcome == "done"
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        assert stops(two, job) == 1
        leaves_nothing_behind(two, session)


def goes_on(pool: PoolUnderTest, job: str) -> str:
    """Why, once it runs again."""
    reason = str(pool.rest.job(job)["reason"]) if stops(pool, job) else ""
    return reason if reason.startswith("Running on") else ""


def test_a_gang_that_is_disturbed_all_the_time_ends_as_if_it_had_not(
    two: PoolUnderTest, expected: Found
) -> None:
    """Whatever of it runs, somebody asks it to move aside."""
    search, over = Search(), Event()

    def disturb() -> None:
        while not over.wait(0.05):
            for job in two.rest.jobs(state="RUNNING", limit=5):
                with suppress(PoolError):  # it has just ended
                    two.rest.preempt(job["job"])

    disturber = Thread(target=disturb)
    with two.session() as session:
        disturber.start()
        try:
            with session.capture("long", terms=Terms(gang=2)) as cell:
                losses = search.train()
        finally:
            over.set()
            disturber.join()
        assert (losses.tolist(), search.weights()) == expected
        assert cell.report.gang == "It ran on 2 devices: cpu:0, cpu:1."
        own = [one["job"] for one in two.rest.jobs(limit=20) if one["session"] == session.welcome.session]
        assert max(stops(two, job) for job in own) >= 5
        leaves_nothing_behind(two, session)


def drained(pool: PoolUnderTest, job: str) -> None:
    """Nothing runs on any device, and nothing may: the gang stands aside."""
    for device in ("cpu:0", "cpu:1"):
        pool.rest.cordon(device, drain=True)
    wait_for(lambda: pool.rest.job(job)["state"] not in ("RUNNING", "DONE"))


def opened(pool: PoolUnderTest) -> None:
    for device in ("cpu:0", "cpu:1"):
        pool.rest.uncordon(device)


def test_a_gang_that_is_cancelled_while_it_stands_aside_leaves_the_session_as_it_was(
    two: PoolUnderTest, expected: Found
) -> None:
    search = Search()
    with two.session() as session:
        with session.capture("first", terms=Terms(gang=2)):
            losses = search.train()
        assert (losses.tolist(), search.weights()) == expected
        before = held_bytes(two, session)
        with running(two, session, search, Terms(gang=2)) as (job, cell):
            drained(two, job)
            assert held_bytes(two, session) > before
            assert two.rest.cancel(job)["state"] == "CANCELLED"
            opened(two)
        assert isinstance(cell.raised[0], CellCancelled)
        assert search.weights() == expected[1]
        wait_for(lambda: held_bytes(two, session) <= before)
        leaves_nothing_behind(two, session)


def held_bytes(pool: PoolUnderTest, session: Session) -> int:
    """Of the session and of parts of its cell, on the device or elsewhere."""
    rows = pool.rest.memory()["sessions"]
    own = [row for row in rows if row["session"] == session.welcome.session or "/" in row["session"]]
    return sum(row["total_bytes"] for row in own)


@pytest.fixture(scope="module")
def without_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("none"), "cpu:2", 256 * MIB, host_bytes=0) as pool:
        yield pool


@pytest.mark.parametrize("name", ["two", "without_host"])
def test_a_process_that_dies_while_a_gang_stands_aside(
    name: str, expected: Found, request: pytest.FixtureRequest
) -> None:
    """What a part had made there is on the host, or it begins again."""
    pool: PoolUnderTest = request.getfixturevalue(name)
    search = Search()
    with pool.session() as session:
        with running(pool, session, search, Terms(gang=2, gang_min=2)) as (job, cell):
            drained(pool, job)
            home = pool.rest.job(job)["device"]
            kill_worker(pool, "cpu:1" if home == "cpu:0" else "cpu:0")
            opened(pool)
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        assert cell.told == "It ran on 2 devices: cpu:0, cpu:1."
        leaves_nothing_behind(pool, session)


def test_a_part_that_cannot_be_brought_over_begins_again(
    without_host: PoolUnderTest, expected: Found
) -> None:
    """One device is drained, and there is no host to bring its part over."""
    pool, search = without_host, Search()
    with pool.session() as session:
        with running(pool, session, search, Terms(gang=2)) as (job, cell):
            home = pool.rest.job(job)["device"]
            pool.rest.cordon("cpu:1" if home == "cpu:0" else "cpu:0", drain=True)
            assert wait_for(lambda: goes_on(pool, job)).startswith(f"Running on {home},")
        opened(pool)
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        leaves_nothing_behind(pool, session)


def test_a_home_that_dies_while_its_gang_stands_aside_takes_the_cell_with_it(
    without_host: PoolUnderTest,
) -> None:
    pool, search = without_host, Search()
    with pool.session() as session:
        with running(pool, session, search, Terms(gang=2)) as (job, cell):
            drained(pool, job)
            kill_worker(pool, pool.rest.job(job)["device"])
            opened(pool)
        assert isinstance(cell.raised[0], WorkerLost)
        leaves_nothing_behind(pool, session)


def test_a_gang_goes_on_on_other_devices(tmp_path: Path, expected: Found) -> None:
    """Somebody drains the device where its session lives."""
    search = Search()
    with PoolUnderTest(tmp_path, "cpu:3", 256 * MIB) as pool, pool.session() as session:
        with running(pool, session, search, Terms(gang=2, gang_min=2)) as (job, cell):
            home = pool.rest.job(job)["device"]
            pool.rest.cordon(home, drain=True)
            found = wait_for(lambda: goes_on(pool, job))
            assert home not in found
        assert cell.raised == []
        assert (cell.losses, search.weights()) == expected
        assert cell.told == "It ran on 3 devices: cpu:0, cpu:1, cpu:2."
        leaves_nothing_behind(pool, session)


def test_a_pool_that_is_killed_while_a_gang_stands_aside_loses_it(tmp_path: Path) -> None:
    """As it loses every cell that runs or stands aside."""
    search = Search()
    with PoolUnderTest(tmp_path, "cpu:2", 256 * MIB) as pool, pool.session() as session:
        with running(pool, session, search, Terms(gang=2)) as (job, cell):
            drained(pool, job)
            pool.kill()
        assert isinstance(cell.raised[0], PoolLost)
        pool.start()
        assert pool.rest.job(job)["state"] == "FAILED"
