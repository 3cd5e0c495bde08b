"""``execute_model`` runs ops in the order of its scheduler, and lets a progressive one learn from it."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from device_kind import KIND, OUT_OF_RANGE
from real_pool import PoolUnderTest
from torch import nn

import djinn_lab
from djinn_lab.client.session import Session
from djinn_lab.errors import OptionError, RemoteError, UserError
from djinn_lab.scheduler import AdaptiveScheduler, MemoryOrder, ProgressiveScheduler, Scheduler
from djinn_lab.srg.graph import SRG

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    place: Path = tmp_path_factory.mktemp("runtime")
    with PoolUnderTest(place, devices=f"{KIND}:2") as pool:
        yield pool


@pytest.fixture
def session(pool: PoolUnderTest) -> Iterator[Session]:
    with pool.session() as session:
        yield session


class Branches(nn.Module):
    """All branches are widened before the first is reduced."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(32, 4096)
        self.table = nn.Embedding(4, 64)
        self.fails = fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = [torch.relu(self.up(x + shift)) for shift in range(6)]
        if self.fails:
            wide.append(self.table(torch.full((64,), 9)))
        return torch.stack([one.sum(1) for one in wide]).sum(0)


def advanced() -> AdaptiveScheduler:
    scheduler = AdaptiveScheduler("advanced")
    assert scheduler.reorders
    return scheduler


def test_advanced_scheduler_lowers_the_measured_peak_and_keeps_every_bit(session: Session) -> None:
    model, x = Branches(), torch.randn(64, 32)
    plain = djinn_lab.execute_model(model, x, "basic_inference", session=session)
    before = session.last_cell
    ordered = djinn_lab.execute_model(model, x, advanced(), session=session)
    after = session.last_cell
    assert before is not None
    assert after is not None
    assert torch.equal(plain, ordered)
    assert after.report.peak_bytes < 0.6 * before.report.peak_bytes
    assert [node.op for node in after.graph.nodes] == [node.op for node in before.graph.nodes]
    made = after.schedule
    assert made.order != before.schedule.order
    assert made.device.device == after.report.device
    assert any(line.startswith("Feature order_for_memory: another order") for line in made.explain())


def test_strategies_of_a_plain_scheduler_count_too(session: Session) -> None:
    model, x = Branches(), torch.randn(64, 32)
    expected = djinn_lab.execute_model(model, x, session=session)
    scheduler = Scheduler(strategies=[MemoryOrder()])
    assert torch.equal(djinn_lab.execute_model(model, x, scheduler, session=session), expected)
    assert session.last_cell is not None
    assert any("rearranged by order_for_memory" in line for line in session.last_cell.schedule.explain())


def test_buffers_that_a_model_writes_and_random_numbers_are_as_in_program_order(session: Session) -> None:
    model = nn.Sequential(Branches(), nn.Unflatten(0, (16, 4)), nn.BatchNorm1d(4), nn.Dropout(0.5))
    twin, x = copy.deepcopy(model), torch.randn(64, 32)
    torch.manual_seed(3)
    expected = djinn_lab.execute_model(twin, x, session=session)
    torch.manual_seed(3)
    assert torch.equal(djinn_lab.execute_model(model, x, advanced(), session=session), expected)
    session.pull(model)
    session.pull(twin)
    for mine, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(mine, theirs)
    assert model[2].num_batches_tracked == 1


def test_a_failing_op_leaves_the_session_usable(session: Session) -> None:
    x = torch.randn(64, 32)
    failing = Branches(fails=True)
    with pytest.raises(OUT_OF_RANGE, match="index out of range"):
        djinn_lab.execute_model(failing, x, advanced(), session=session)
    failing.fails = False
    expected = djinn_lab.execute_model(failing, x, session=session)
    assert torch.equal(djinn_lab.execute_model(failing, x, advanced(), session=session), expected)


def train(session: Session, scheduler: Scheduler | None) -> tuple[list[float], list[torch.Tensor]]:
    """Train with dropout, and read the loss after every step; return losses and weights."""
    torch.manual_seed(5)
    branches = [
        nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 4)) for _ in range(4)
    ]
    model = nn.ModuleList(branches)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, losses = torch.randn(32, 16), []
    with session.capture(scheduler=scheduler):
        for _ in range(4):
            optimizer.zero_grad()
            wide = [branch[:3](x) for branch in branches]
            loss = sum(branch[3](one).square().mean() for branch, one in zip(branches, wide, strict=True))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    session.pull(model)
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def test_a_training_cell_with_cuts_gives_the_same_bits(session: Session) -> None:
    losses, weights = train(session, None)
    ordered_losses, ordered_weights = train(session, advanced())
    assert ordered_losses == losses
    for mine, theirs in zip(ordered_weights, weights, strict=True):
        assert torch.equal(mine, theirs)
    assert session.last_cell is not None
    if KIND == "cpu":  # elsewhere an optimizer's step is few ops, which have no other order
        assert session.last_cell.schedule.order != tuple(range(len(session.last_cell.graph.nodes)))


class LastFirst:
    name = "last first"

    def propose(self, srg: SRG, order: Sequence[int]) -> Sequence[int]:
        return (order[-1], *order[:-1])


class Lookup(nn.Module):
    """The second result builds on nothing that the first one needs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 64)

    def forward(self, index: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table(index), x.exp()


def test_what_ran_ahead_of_a_failed_op_does_not_stay(pool: PoolUnderTest, session: Session) -> None:
    model, x = Lookup(), torch.randn(2**20)
    scheduler = Scheduler(strategies=[LastFirst()])
    djinn_lab.execute_model(model, (torch.zeros(3, dtype=torch.long), x), scheduler, session=session)
    assert session.last_cell is not None
    assert [node.op for node in session.last_cell.graph.nodes] == [
        "aten.embedding.default",
        "aten.exp.default",
    ]
    assert session.last_cell.schedule.order == (1, 0)

    def held_bytes() -> int:
        return sum(row.used_bytes for row in pool.rest.sessions())

    before = held_bytes()
    for _ in range(3):
        with pytest.raises(OUT_OF_RANGE, match="index out of range"):
            djinn_lab.execute_model(model, (torch.full((3,), 9), x), scheduler, session=session)
        assert session.last_cell.report.ops_run == 1
    gc.collect()
    djinn_lab.execute_model(model, (torch.zeros(3, dtype=torch.long), x), scheduler, session=session)
    assert held_bytes() <= before + x.nbytes


class Backwards:
    name = "backwards"

    def propose(self, srg: SRG, order: Sequence[int]) -> Sequence[int]:
        return tuple(reversed(order))


class Faulty:
    name = "faulty"

    def propose(self, srg: SRG, order: Sequence[int]) -> Sequence[int]:
        raise KeyError("no such node")


@pytest.mark.parametrize(
    ("strategy", "problem"), [(Backwards(), "must run after"), (Faulty(), "no such node")]
)
def test_a_faulty_strategy_is_an_error_and_nothing_runs(
    session: Session, strategy: Backwards | Faulty, problem: str
) -> None:
    model, x = Branches(), torch.randn(64, 32)
    with pytest.raises(UserError, match=problem):
        djinn_lab.execute_model(model, x, Scheduler(strategies=[strategy]), session=session)
    scheduler = Scheduler(strategies=[strategy])
    with pytest.raises(UserError, match=problem), session.capture(wait=False, scheduler=scheduler):
        _kept = model(x)
    assert djinn_lab.execute_model(model, x, session=session).shape == (64,)


def test_progressive_scheduler_learns_from_runs(session: Session) -> None:
    scheduler = ProgressiveScheduler(enable_after_success=1)
    model, x = Branches(), torch.randn(64, 32)
    expected = djinn_lab.execute_model(model, x, session=session)
    assert scheduler.features == ()
    for _ in range(2):
        assert torch.equal(djinn_lab.execute_model(model, x, scheduler, session=session), expected)
    assert scheduler.progress.decisions[0].feature == "workload"
    assert scheduler.progress.now_s > 1e9
    assert scheduler.progress.ratios  # the second run's is forgotten if it was much slower


class Raising:
    def estimate(self, node: object, device: object) -> object:
        raise ValueError("no such table")


def test_raising_estimator_loses_no_result_of_a_progressive_scheduler(session: Session) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(8, 4)
    expected = copy.deepcopy(model)(x)
    scheduler = ProgressiveScheduler()
    scheduler.set_cost_model(Raising())
    assert torch.equal(djinn_lab.execute_model(model, x, scheduler=scheduler, session=session), expected)
    assert session.last_cell is not None
    with pytest.raises(OptionError, match=r"estimator Raising raised ValueError for node 0 .*no such table"):
        scheduler.create_schedule(session.last_cell.graph)


def test_what_is_no_scheduler_is_refused_before_anything_runs(session: Session) -> None:
    with pytest.raises(OptionError, match="scheduler=3 is no scheduler"):
        djinn_lab.execute_model(nn.Linear(2, 2), torch.ones(1, 2), scheduler=3, session=session)


def test_model_that_was_only_evaluated_outlives_its_session(pool: PoolUnderTest) -> None:
    """Evaluation writes no statistics, so nothing of them was on the pool alone."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(), torch.randn(8, 4)
    before = copy.deepcopy(model)
    with pool.session() as opened:
        djinn_lab.execute_model(model, x, session=opened)
    for ours, theirs in zip(model.state_dict().values(), before.state_dict().values(), strict=True):
        assert ours.tolist() == theirs.tolist()


def test_progressive_scheduler_switches_off_what_fails_on_the_device(session: Session) -> None:
    scheduler = ProgressiveScheduler(enable_after_success=1)
    x = torch.randn(64, 32)
    djinn_lab.execute_model(Branches(), x, scheduler, session=session)
    assert scheduler.features == ("workload",)
    with pytest.raises(RemoteError):
        djinn_lab.execute_model(Branches(fails=True), x, scheduler, session=session)
    assert scheduler.features == ()


def test_progressive_scheduler_reacts_to_a_full_device(session: Session) -> None:
    scheduler = ProgressiveScheduler()
    with pytest.raises(RemoteError, match="memory"):
        djinn_lab.execute_model(Widening(), torch.ones(8), scheduler, session=session)
    assert scheduler.features == ("order_for_memory",)


class Widening(nn.Module):
    """Needs 4 GiB on a device that has one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(2**27).exp()[:4]


def test_an_error_of_the_model_itself_teaches_nothing(session: Session) -> None:
    scheduler = ProgressiveScheduler(enable_after_success=1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        djinn_lab.execute_model(Branches(), torch.randn(64, 31), scheduler, session=session)
    assert scheduler.progress.successes == 0
    assert scheduler.progress.decisions == ()


def test_a_model_inside_a_cell_runs_with_the_cell(session: Session) -> None:
    scheduler = ProgressiveScheduler(enable_after_success=1)
    model, x = Branches(), torch.randn(64, 32)
    with session.capture():
        made = djinn_lab.execute_model(model, x, scheduler, session=session)
    assert torch.equal(made, djinn_lab.execute_model(model, x, session=session))
    assert scheduler.progress.decisions == ()
