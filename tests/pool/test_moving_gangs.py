"""Gangs that move aside on a live pool and go on later, on these or other devices: their results are those of
one device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
import torch
from pool_kit import Client
from real_pool import PoolUnderTest, wait_for
from torch import nn
from torch.nn import functional as F
from training import training

from djinn_lab.client.session import Session
from djinn_lab.jobs import Terms

pytestmark = pytest.mark.processes

MIB = 2**20
Found = tuple[list[float], list[list[float]]]
RATES = (0.1, 0.05, 0.02, 0.01)
STEPS, ROWS = 30, 8192


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
    """Four small networks with a learning rate each, on noisy images."""

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
        images = self.images + 0.1 * torch.rand_like(self.images)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for _ in range(steps):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), self.labels)
                loss.backward()
                optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

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
    """Once several of its ops have run: its job."""
    cell = Running(session, search, terms)
    cell.thread.start()
    try:
        job = pool.wait_for_job(session=session.welcome.session, state="RUNNING")["job"]
        wait_for(lambda: pool.rest.job(job)["ops_done"] > 100)
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
    urgent, _ = training(600, size=128, ballast_bytes=4 * MIB)
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


def test_a_gang_goes_on_on_the_one_device_that_is_left(two: PoolUnderTest, expected: Found) -> None:
    """What the other device had made of it is brought over."""
    search = Search()
    urgent, _ = training(600, size=128, ballast_bytes=4 * MIB)
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
    found = pool.rest.job(job)
    return str(found["reason"]) if found["state"] == "RUNNING" and stops(pool, job) else ""
