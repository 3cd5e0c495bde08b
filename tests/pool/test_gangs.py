"""Cells that run on several devices of a live pool at once: their results are those of one device."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
import torch
from device_kind import KIND
from gang_kit import TOGETHER, Search, leaves_nothing_behind, other_of, running
from pool_kit import Client
from real_pool import PoolUnderTest, kill_worker, wait_for
from torch import nn
from torch.nn import functional as F
from training import training

from djinn_lab.client.cell import Cell
from djinn_lab.client.session import Session
from djinn_lab.errors import CellCancelled, RemoteError
from djinn_lab.jobs import Terms

pytestmark = pytest.mark.processes

LONG = 60
MANY = 2048


@pytest.fixture
def session(two: PoolUnderTest) -> Iterator[Session]:
    with two.session() as session:
        yield session
        leaves_nothing_behind(two, session)


def held_bytes(pool: PoolUnderTest, session: Session) -> int:
    """Return the bytes of the session."""
    own = session.welcome.session
    rows = [row.total_bytes for row in pool.rest.memory().sessions if row.session == own]
    return int(rows[0])


def test_a_search_over_four_models_runs_on_two_devices_and_finds_what_one_finds(session: Session) -> None:
    alone, together = Search(), Search()
    expected = [alone.train(150).tolist() for _ in range(3)]
    found = []
    for _ in range(3):
        with session.capture("search", terms=Terms(gang=2, gang_min=2)) as cell:
            losses = together.train(150)
        assert cell.report.gang == TOGETHER
        assert sum(cell.report.stages.values()) <= cell.report.total_s
        found.append(losses.tolist())
    assert found == expected
    assert together.weights() == alone.weights()
    assert together.state() == alone.state()


def test_ops_that_branches_share_or_join_in_run_on_the_home_device(session: Session) -> None:
    """Random numbers, views of earlier results, an output that all branches write into."""

    def ensemble(models: list[nn.Module], images: torch.Tensor, votes: torch.Tensor) -> torch.Tensor:
        noisy = images + 0.1 * torch.rand_like(images)
        total = torch.zeros(images.shape[0], 8)
        for number, model in enumerate(models):
            part = noisy
            for _ in range(240):
                part = part + 0.01 * model(part)
            total = total + part[:, :8]
            votes[number] = part[:, 8:16].t()
        return (total / len(models)).softmax(1)

    def make() -> tuple[list[nn.Module], torch.Tensor, torch.Tensor]:
        torch.manual_seed(3)
        models: list[nn.Module] = [
            nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)) for _ in range(4)
        ]
        return models, torch.randn(128, 256), torch.zeros(4, 8, 128)

    with torch.no_grad():
        models, images, votes = make()
        expected = [ensemble(models, images[::2], votes[:, :, 1:65]).tolist() for _ in range(2)]
        ours, pictures, ballots = make()
        with session.capture("prepare"):
            half, inner = pictures.mul(1)[::2], ballots.mul(1)[:, :, 1:65]
        found = []
        for _ in range(2):
            with session.capture("ensemble", terms=Terms(gang=2)) as cell:
                mean = ensemble(ours, half, inner)
            found.append(mean.tolist())
            assert cell.report.gang == TOGETHER
    assert found == expected
    assert inner.tolist() == votes[:, :, 1:65].tolist()
    assert torch.rand(1).item() is not None


class Layers(nn.Module):
    """Experts side by side in every layer, whose sum goes through a normalisation into the next."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.norms = nn.ModuleList(nn.BatchNorm1d(384) for _ in range(4))
        self.experts = nn.ModuleList(
            nn.ModuleList(nn.Sequential(nn.Linear(384, 1024), nn.ReLU(), nn.Linear(1024, 384)) for _ in "ab")
            for _ in self.norms
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for norm, (first, second) in zip(self.norms, self.experts, strict=True):
            rows = norm(rows + first(rows) + second(rows))
        return rows

    def step(self, rows: torch.Tensor) -> torch.Tensor:
        """Train for one step, and return the loss."""
        loss = self(rows).square().mean()
        loss.backward()
        with torch.no_grad():
            for weight in self.parameters():
                assert weight.grad is not None
                weight -= 0.1 * weight.grad
                weight.grad = None
        return loss.detach()

    def state(self) -> list[list[float]]:
        return [one.detach().flatten().tolist() for one in self.state_dict().values()]


def test_layers_of_experts_run_side_by_side_and_compute_what_one_device_computes(
    two: PoolUnderTest, session: Session
) -> None:
    """Parts feed each other: one dies once with its device, and the other device begins it again."""
    alone, together, rows = Layers(), Layers(), torch.randn(1536, 384)
    found: list[float] = []

    def step() -> Cell:
        with session.capture("layers", terms=Terms(gang=2, gang_min=2)) as cell:
            loss = together.step(rows)
        found.append(loss.item())
        return cell

    def step_together() -> Cell:
        """Step until a plan takes both devices: it takes one while the other is predicted to be slow."""
        cells = [step()]
        while cells[-1].report.gang != TOGETHER and len(cells) < 30:
            cells.append(step())
        return cells[-1]

    assert step_together().report.gang == TOGETHER
    killer = Thread(target=kill_the_other, args=(two, session))
    killer.start()
    while killer.is_alive():
        step()
    last = step_together()
    assert found == [alone.step(rows).item() for _ in found]
    assert together.state() == alone.state()
    assert last.report.gang == TOGETHER
    schedule = two.rest.schedule(last.report.job)
    assert schedule.explain()[-1] == TOGETHER
    assert sorted(schedule.measured_nodes) == [f"{KIND}:0", f"{KIND}:1"]
    processes = {
        event["args"]["name"] for event in schedule.chrome_trace()["traceEvents"] if event["ph"] == "M"
    }
    assert {f"{KIND}:0 measured", f"{KIND}:1 measured"} <= processes


def kill_the_other(pool: PoolUnderTest, session: Session) -> None:
    """Kill the worker of the device on which a running gang does not live."""
    job = pool.wait_for_job(session=session.welcome.session, state="RUNNING").job
    wait_for(lambda: pool.rest.job(job).ops_done > 40)
    kill_worker(pool, other_of(pool.rest.job(job).device))


def test_a_cell_without_branches_runs_on_one_device_and_says_so(session: Session) -> None:
    with session.capture("chain", terms=Terms(gang=2, gang_min=2)) as cell:
        value = torch.ones(64, 64)
        for _ in range(200):
            value = value @ value.softmax(1)
    assert cell.report.gang == "It runs on one device: its graph has no parts that could run side by side."
    assert value.shape == (64, 64)
    with session.capture("small", terms=Terms(gang=2)) as small:
        pair = [torch.ones(64) * 2, torch.ones(64) * 3]
    assert "it needs about" in small.report.gang
    assert [one.sum().item() for one in pair] == [128, 192]


def test_a_gang_takes_what_is_free_or_waits_for_all(two: PoolUnderTest, session: Session) -> None:
    """One of the two devices is busy: ``2:1`` starts on the other, ``2`` waits for both."""
    alone, search = Search(), Search()
    expected = [alone.train(200).tolist() for _ in range(2)]
    program, _ = training(3000, size=384)

    def make_room() -> None:
        """Take the other cell away once this one waits for its device."""
        waiting = two.wait_for_job(session=session.welcome.session, state="QUEUED").job
        freed.append(waiting)
        two.rest.cancel(busy)

    freed: list[str] = []
    with Client(two.info) as ann:
        busy = ann.submit(program, target=f"{KIND}:1", priority="CRITICAL")
        ann.until(busy, "RUNNING")
        with session.capture("elastic", terms=Terms(gang=2)) as elastic:
            first = search.train(200)
        assert "on one device" in elastic.report.gang
        assert two.rest.job(busy).state == "RUNNING"
        other = Thread(target=make_room)
        with session.capture("both", terms=Terms(gang=2, gang_min=2)) as both:
            second = search.train(200)
            other.start()
        other.join()
        assert both.report.gang == TOGETHER
        assert freed == [both.report.job]
        assert ann.result(busy).outcome == "cancelled"
    assert [first.tolist(), second.tolist()] == expected


def test_an_error_in_a_branch_is_the_error_of_one_device(session: Session) -> None:
    tables = [torch.randn(100, 256) for _ in range(4)]
    rows = torch.tensor([[1, 2], [3, 4], [5, 400], [6, 7]])

    def look_up(weights: list[torch.Tensor], log: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for number, weight in enumerate(weights):
            value = weight
            for _ in range(300):
                value = (value @ value.t()).softmax(1) @ value
            log[number] += 1
            found.append(F.embedding(rows[number], value))
        return found

    def try_it(terms: Terms) -> tuple[type[BaseException], str, list[float], Cell]:
        log, kept = torch.zeros(4), list[list[torch.Tensor]]()
        with pytest.raises(RemoteError) as caught, session.capture("look up", terms=terms) as cell:
            kept.append(look_up(tables, log))
        return type(caught.value), str(caught.value).split("\n", 1)[0], log.tolist(), cell

    *expected, _ = try_it(Terms())
    *found, cell = try_it(Terms(gang=2))
    assert found == expected
    why = "could not run its part" if KIND == "cpu" else "its worker was lost before"
    assert why in cell.report.gang


def test_a_cancelled_gang_leaves_the_session_as_it_was(two: PoolUnderTest, session: Session) -> None:
    alone, search = Search(MANY), Search(MANY)
    alone.train(5)
    with session.capture("first", terms=Terms(gang=2)):
        search.train(5)
    before = held_bytes(two, session)
    with running(two, session, search, LONG, Terms(gang=2)) as cell:
        two.rest.cancel(cell.job)
    assert isinstance(cell.raised[0], CellCancelled)
    assert search.weights() == alone.weights()
    wait_for(lambda: held_bytes(two, session) <= before)
    runs_gangs_as_before(two)


def runs_gangs_as_before(pool: PoolUnderTest) -> None:
    search = Search()
    with pool.session() as session:
        with session.capture("again", terms=Terms(gang=2)) as cell:
            losses = search.train(200)
        assert cell.report.gang == TOGETHER
        assert losses.tolist() == Search().train(200).tolist()
        leaves_nothing_behind(pool, session)


def test_a_member_that_dies_leaves_its_part_to_the_other(two: PoolUnderTest) -> None:
    alone, search = Search(MANY), Search(MANY)
    alone.train(LONG)
    with two.session() as session:
        with running(two, session, search, LONG, Terms(gang=2)) as cell:
            kill_worker(two, other_of(two.rest.job(cell.job).device))
        assert cell.raised == []
        assert search.weights() == alone.weights()
        assert search.state() == alone.state()
        leaves_nothing_behind(two, session)


def test_gang_whose_home_worker_dies_runs_again(two: PoolUnderTest) -> None:
    search = Search(MANY)
    with two.session() as session:
        with running(two, session, search, LONG, Terms(gang=2)) as cell:
            kill_worker(two, two.rest.job(cell.job).device)
        assert not cell.raised
    runs_gangs_as_before(two)
