"""A worker dies after a cell, or under it: its values are made again, or the notebook's own are sent to the
next worker without a request."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch
from device_kind import KIND
from real_pool import PoolUnderTest, device_row, kill_worker, wait_for
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
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1") as running:
        yield running


LARGE = 2**18
"""Elements of a tensor that is uploaded, 1 MiB."""


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[PoolUnderTest]:
    """A pool whose copies take a while: a second for 4 MiB."""
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1", link_bytes_per_s=4 * 2**20) as running:
        yield running


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[PoolUnderTest]:
    """A pool without whole copies, and with little space for uploads."""
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1", host_bytes=0, blob_bytes_max=4 * 2**20) as running:
        yield running


@contextmanager
def lossy(pool: PoolUnderTest, session: Session) -> Iterator[torch.Tensor]:
    """Kill the worker after the block; what the block made from the one that it is given is lost then, since
    the upload behind it is gone."""
    large = torch.ones(LARGE)
    with session.capture():
        one = large.mean()
    yield one
    for number in range(6):
        other = torch.full((LARGE,), float(number))
        with session.capture():
            other.sum().item()
    kill_worker(pool)


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


@pytest.mark.parametrize("dropout", [False, True])
def test_weights_trained_and_not_fetched_come_back_bit_for_bit(
    pool: PoolUnderTest, session: Session, dropout: bool
) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(plain(NARROW), nn.Dropout(0.4 if dropout else 0.0), plain(NARROW))
    twin = copy.deepcopy(model)
    state = torch.get_rng_state()
    for _ in range(3):
        train(twin, NARROW)
    torch.set_rng_state(state)
    for number in range(3):
        with session.capture(f"cell {number}") as cell:
            train(model, NARROW)
        kill_worker(pool)
    with session.capture("the last") as cell:
        total = model[0](torch.ones(1, NARROW)).sum()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.detach().cpu(), theirs)
    assert total.item() == twin[0](torch.ones(1, NARROW)).sum().item()
    assert cell.report.recovery.startswith(f"worker of {KIND}:0 lost; ")
    assert any(f"recovery: worker of {KIND}:0 lost" in line for line in cell.report.lines())


def test_lost_weights_say_so_until_set_again(forgetful: PoolUnderTest) -> None:
    with forgetful.session() as session:
        values_lost_until_set_again(forgetful, session)


def values_lost_until_set_again(pool: PoolUnderTest, session: Session) -> None:
    model, x = plain(NARROW), torch.ones(1, NARROW)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model(x).detach().clone()
    other = plain(NARROW)
    with lossy(pool, session) as one, session.capture():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += one
        seen = other(x)
    for _ in range(2):
        with pytest.raises(ValueLost, match="Run again the cell"), session.capture():
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
def test_a_cell_that_lacks_a_lost_value_leaves_the_others_as_they_were(forgetful: PoolUnderTest) -> None:
    with forgetful.session() as session:
        others_stay_as_they_were(forgetful, session)


def others_stay_as_they_were(pool: PoolUnderTest, session: Session) -> None:
    weight, x = nn.Parameter(torch.full((NARROW,), 3.0)), torch.ones(NARROW)
    with lossy(pool, session) as one:
        with session.capture():
            momentum = x * 2 * one
            seen = weight * 1
        assert seen.tolist() == [3.0] * NARROW
    with pytest.raises(ValueLost), session.capture(), torch.no_grad():
        weight += momentum
    assert weight.tolist() == [3.0] * NARROW
    with session.capture(), torch.no_grad():
        weight += 1
    assert weight.tolist() == [4.0] * NARROW


@native_only
def test_error_names_the_lost_tensor_by_shape_and_line_and_not_what_comes_again(
    forgetful: PoolUnderTest,
) -> None:
    with forgetful.session() as session:
        error_names_what_is_lost(forgetful, session)


def error_names_what_is_lost(pool: PoolUnderTest, session: Session) -> None:
    weight, x = nn.Parameter(torch.full((NARROW,), 3.0)), torch.ones(2, 4)
    with lossy(pool, session) as one:
        with session.capture():
            first, second = x * 2 * one, x * 3 * one
            seen = weight * 1
        assert seen.tolist() == [3.0] * NARROW
    with pytest.raises(ValueLost) as caught, session.capture("the next") as cell:
        (weight.sum() + (first + second).sum()).item()
    said = str(caught.value).splitlines()
    line = cell.report.cuts[-1].line
    assert said[0] == (
        f"the values of a float32 tensor of shape (2, 4), used at the next, line {line}, "
        "and of 1 other tensor were on a device whose process died."
    )
    assert f"The process of {KIND}:0 was lost" in said[1]
    assert "an input of a cell that made them is no longer among the uploads" in said[1]
    assert said[2].startswith("Run again the cell")
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


def test_values_made_before_and_since_the_death_are_there(pool: PoolUnderTest, session: Session) -> None:
    with session.capture():
        old = torch.ones(NARROW) * 2
    kill_worker(pool)
    with session.capture():
        new = torch.ones(NARROW) * 3
    assert old.tolist() == [2.0] * NARROW
    assert new.tolist() == [3.0] * NARROW


def test_a_value_released_since_its_copy_is_there_for_what_was_made_from_it(slow: PoolUnderTest) -> None:
    def is_copied() -> bool:
        (row,) = slow.rest.memory().sessions
        return row.stored_bytes == row.total_bytes > 0

    with slow.session() as session:
        with session.capture():
            old = torch.arange(LARGE) * 2.0
        wait_for(is_copied)
        with session.capture():
            new = old + 1.0
        del old
        with session.capture():
            pass
        kill_worker(slow)
        assert torch.equal(new.cpu(), torch.arange(LARGE) * 2.0 + 1.0)


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

    with ThreadPoolExecutor(1) as killer, session.capture("the cell") as cell:
        killer.submit(kill_under_the_cell)
        train(model, WIDE)
    train(eager, WIDE)
    assert f"worker of {KIND}:0 lost in the cell; the cell ran again" in cell.report.recovery
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


def test_a_cell_of_many_parts_ends_well_after_its_worker_died(pool: PoolUnderTest, session: Session) -> None:
    def kill_while_running() -> None:
        wait_for(lambda: any(job.state == "RUNNING" for job in pool.rest.jobs()))
        kill_worker(pool)

    a = torch.eye(800)

    def work() -> torch.Tensor:
        x = a
        for _ in range(150):
            x = steps(x @ a, 20)
        return x

    with ThreadPoolExecutor(1) as other:
        killed = other.submit(kill_while_running)
        with session.capture():
            x = work()
        killed.result()
    assert torch.equal(x.cpu(), work())
    assert [job.state for job in pool.rest.jobs() if not job.is_fetch] == ["DONE"]


def ops_done(pool: PoolUnderTest) -> int:
    return int(pool.rest.jobs(limit=1)[0].ops_done)


def test_a_cell_under_which_two_workers_die_fails_and_names_the_op(
    pool: PoolUnderTest, session: Session
) -> None:
    a = torch.eye(700)
    with session.capture():
        kept = torch.ones(3) * 2

    def kill_twice() -> None:
        done = 0
        for _ in range(2):  # each under an op of its own run
            pool.wait_for_job(state="RUNNING", cell="the cell")
            wait_for(lambda before=done: ops_done(pool) not in (0, before))  # type: ignore[misc]
            done = ops_done(pool)
            kill_worker(pool)

    with ThreadPoolExecutor(1) as other:
        killed = other.submit(kill_twice)
        with pytest.raises(WorkerLost) as caught, session.capture("the cell"):
            x = a
            for _ in range(1500):
                x = x @ a
        killed.result()
    said = str(caught.value)
    assert "was killed by SIGKILL while it ran this cell, for the second time" in said
    assert "recorded at the cell, line" in said
    assert "op aten.mm.default" in said
    assert kept.tolist() == [2.0] * 3


def test_a_worker_that_dies_under_a_closed_session_gives_its_device_to_others(pool: PoolUnderTest) -> None:
    with pool.session() as closing, pool.session() as other:
        a = torch.eye(700)
        with closing.capture("the cell", wait=False):
            for _ in range(1500):
                a = a @ a
        pool.wait_for_job(state="RUNNING", cell="the cell")
        worker = psutil.Process(device_row(pool, f"{KIND}:0").pid)
        worker.suspend()
        closing.close()
        wait_for(lambda: len(pool.rest.sessions()) == 1)
        worker.kill()
        pool.wait_for_job(state="CANCELLED", cell="the cell")
        with other.capture():
            found = torch.ones(3).sum()
        assert found.item() == 3
