"""A worker dies after a cell: the notebook's own values are sent to the next worker without a request."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from real_pool import PoolUnderTest, kill_worker, wait_for
from torch import nn

from djinn_lab.capture.recorders import chosen
from djinn_lab.client.session import Session
from djinn_lab.errors import ValueLost, WorkerLost

WIDE, NARROW = 1100, 8  # a weight of 4.6 MiB, one that travels inside its program
native_only = pytest.mark.skipif(
    chosen() == "python", reason="the Python recorder does not keep what a cell overwrites"
)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolUnderTest]:
    """A pool for each test: a worker that is killed often is restarted later each time."""
    with PoolUnderTest(tmp_path, devices="cpu:1") as running:
        yield running


def plain(features: int) -> nn.Module:
    return nn.Linear(features, features)


def transposed(features: int) -> nn.Module:
    layer = nn.Linear(features, features)
    layer.weight = nn.Parameter(torch.randn(features, features).t())
    return layer


def strided(features: int) -> nn.Module:
    layer = nn.Linear(features, features)
    layer.weight = nn.Parameter(torch.randn(features, 2 * features)[:, ::2])
    return layer


def tied(features: int) -> nn.Module:
    first, second = nn.Linear(features, features), nn.Linear(features, features)
    second.weight = first.weight
    return nn.Sequential(first, second)


def models() -> list[tuple[int, nn.Module]]:
    makes: list[Callable[[int], nn.Module]] = [plain, transposed, strided, tied]
    return [(features, make(features)) for make in makes for features in (NARROW, WIDE)]


def test_weights_that_cells_only_read_survive_dead_workers(pool: PoolUnderTest, session: Session) -> None:
    made = [(model, torch.ones(1, features)) for features, model in models()]
    expected = [model(x).detach().clone() for model, x in made]
    for _ in range(2):
        with session.capture():
            found = [model(x) for model, x in made]
        kill_worker(pool)
    with session.capture():
        found = [model(x) for model, x in made]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs)


def train(model: nn.Module, features: int) -> None:
    for parameter in model.parameters():
        parameter.grad = None
    model(torch.ones(1, features)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.1 * parameter.grad


@native_only
def test_training_after_dead_workers_resumes_from_fetched_weights(
    pool: PoolUnderTest, session: Session
) -> None:
    made = models()
    eager = copy.deepcopy([model for _, model in made])
    for _ in range(3):
        for (features, model), twin in zip(made, eager, strict=True):
            train(twin, features)
            with session.capture():
                train(model, features)
            for name, value in model.state_dict().items():
                torch.testing.assert_close(value.cpu(), twin.state_dict()[name])
        kill_worker(pool)


def test_weights_trained_and_not_fetched_are_lost_and_say_so_until_set_again(
    pool: PoolUnderTest, session: Session
) -> None:
    model, x = plain(NARROW), torch.ones(1, NARROW)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model(x).detach().clone()
    other = plain(NARROW)
    with session.capture():
        train(model, NARROW)
        seen = other(x)
    kill_worker(pool)
    for _ in range(2):
        with pytest.raises(ValueLost, match="Run the cell"), session.capture():
            model(x).sum().item()
    with session.capture():
        again = other(x)
    assert torch.equal(again.detach().cpu(), other(x).detach().cpu())
    with pytest.raises(ValueLost):
        seen.tolist()
    model.load_state_dict(kept, assign=True)
    with session.capture():
        found = model(x)
    assert torch.equal(found.detach().cpu(), expected)


@native_only
def test_a_cell_that_lacks_a_lost_value_leaves_the_others_as_they_were(
    pool: PoolUnderTest, session: Session
) -> None:
    weight, x = nn.Parameter(torch.full((NARROW,), 3.0)), torch.ones(NARROW)
    with session.capture():
        momentum = x * 2
        seen = weight * 1
    assert seen.tolist() == [3.0] * NARROW
    kill_worker(pool)
    with pytest.raises(ValueLost), session.capture(), torch.no_grad():
        weight += momentum
    assert weight.tolist() == [3.0] * NARROW
    with session.capture(), torch.no_grad():
        weight += 1
    assert weight.tolist() == [4.0] * NARROW


@native_only
def test_error_names_the_lost_tensor_by_shape_and_line_and_not_what_comes_again(
    pool: PoolUnderTest, session: Session
) -> None:
    weight, x = nn.Parameter(torch.full((NARROW,), 3.0)), torch.ones(2, 4)
    with session.capture():
        first, second = x * 2, x * 3
        seen = weight * 1
    assert seen.tolist() == [3.0] * NARROW
    kill_worker(pool)
    with pytest.raises(ValueLost) as caught, session.capture("the next") as cell:
        (weight.sum() + (first + second).sum()).item()
    said = str(caught.value).splitlines()
    line = cell.report.cuts[-1].line
    assert said[0] == (
        f"the values of a float32 tensor of shape (2, 4), used at the next, line {line}, "
        "and of 1 other tensor were on a device whose process died."
    )
    assert "The process of cpu:0" in said[1]
    assert said[2].startswith("Run the cell")
    job = next(job for job in pool.rest.jobs() if job.cell == "the next")
    assert job.error is not None
    assert f"of shape ({NARROW},), used at the next, line {line}, and of 2 other tensors" in job.error.message


def test_a_value_rebound_by_the_cell_is_sent_again(pool: PoolUnderTest, session: Session) -> None:
    with session.capture():
        x = torch.ones(NARROW) * 2
    assert x.tolist() == [2.0] * NARROW
    kill_worker(pool)
    with session.capture():
        x = x + 1
    assert x.tolist() == [3.0] * NARROW


def test_values_made_since_the_death_stay(pool: PoolUnderTest, session: Session) -> None:
    with session.capture():
        old = torch.ones(NARROW) * 2
    kill_worker(pool)
    with session.capture():
        new = torch.ones(NARROW) * 3
    with pytest.raises(ValueLost):
        old.tolist()
    assert new.tolist() == [3.0] * NARROW


def test_a_cell_sent_again_is_one_job(pool: PoolUnderTest, session: Session) -> None:
    model, x = plain(NARROW), torch.ones(1, NARROW)
    with session.capture():
        seen = model(x)
    kill_worker(pool)
    with session.capture():
        seen = model(x)
    assert seen.shape == (1, NARROW)
    wait_for(lambda: [job.state for job in pool.rest.jobs()] == ["DONE", "DONE"])


@native_only
def test_weights_survive_a_worker_that_dies_before_it_has_loaded_the_first_training_cell(
    pool: PoolUnderTest, session: Session
) -> None:
    torch.manual_seed(0)
    model, eager = plain(WIDE), plain(WIDE)
    eager.load_state_dict(model.state_dict())
    (row,) = pool.rest.status().devices
    os.kill(row.pid, signal.SIGSTOP)  # before it has loaded anything

    def kill_under_the_cell() -> None:
        pool.wait_for_job(state="RUNNING")
        os.kill(row.pid, signal.SIGKILL)

    with ThreadPoolExecutor(1) as killer, pytest.raises(WorkerLost), session.capture():
        killer.submit(kill_under_the_cell)
        train(model, WIDE)
    train(eager, WIDE)
    with session.capture():
        train(model, WIDE)
    torch.testing.assert_close(model.weight.detach().cpu(), eager.weight.detach())


def steps(x: torch.Tensor, count: int = 2500) -> torch.Tensor:
    """More ops than one part of a cell has."""
    for _ in range(count):
        x = x * 0.5 + 1
    return x


@pytest.mark.parametrize("read_first", [True, False])
def test_weights_come_again_in_a_cell_of_many_parts(
    pool: PoolUnderTest, session: Session, read_first: bool
) -> None:
    """Parts are on their way to the pool when it says that one before them misses values."""
    made = [(model, torch.ones(1, features)) for features, model in models()]

    def work() -> list[torch.Tensor]:
        x = steps(torch.zeros(3), 10 if read_first else 2500)
        return [steps(x + model(one).sum()).detach() for model, one in made]

    expected = work()
    with session.capture():
        kept = [model(x) for model, x in made]
    kill_worker(pool)
    del kept
    with session.capture() as cell:
        found = work()
    assert sum(cut.cause == "streamed" for cut in cell.report.cuts) >= 3
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.cpu(), theirs)


def test_a_worker_that_dies_under_a_cell_of_many_parts_is_reported_once(
    pool: PoolUnderTest, session: Session
) -> None:
    def kill_while_running() -> None:
        wait_for(lambda: any(job.state == "RUNNING" for job in pool.rest.jobs()))
        kill_worker(pool)

    a = torch.eye(1500)
    with ThreadPoolExecutor(1) as other:
        killed = other.submit(kill_while_running)
        with pytest.raises(WorkerLost), session.capture():
            x = a
            for _ in range(400):
                x = steps(x @ a, 20)
            x.sum().item()
        killed.result()
    with session.capture():
        y = steps(torch.zeros(3))
    assert torch.equal(y.cpu(), steps(torch.zeros(3)))
