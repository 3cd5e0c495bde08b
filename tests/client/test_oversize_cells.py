"""A model that its device has no memory for: cells run, slower, with the numbers of plain torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from device_kind import KIND
from real_pool import PoolUnderTest, kill_worker
from torch import nn

from djinn_lab.client.session import Session
from djinn_lab.errors import DeviceMemoryError

pytestmark = pytest.mark.processes

MIB = 2**20
DEVICE_BYTES = 24 * MIB
SIDE = 512
"""A layer of this width has one MiB of weights."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """A device, with room for ten times as much on its host."""
    directory = tmp_path_factory.mktemp("small")
    with PoolUnderTest(directory, f"{KIND}:1", DEVICE_BYTES, host_bytes=10 * DEVICE_BYTES) as pool:
        yield pool


class Training:
    """Twice the device in weights; gradients and momenta come on top."""

    def __init__(self, seed: int, layers: int = 48) -> None:
        torch.manual_seed(seed)
        self.network = nn.Sequential(
            *(part for _ in range(layers) for part in (nn.Linear(SIDE, SIDE), nn.ReLU()))
        )
        self.inputs = torch.randn(16, SIDE)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)
        self.loss = 0.0

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.network(self.inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.loss = loss.item()

    def agrees_with(self, other: Training) -> bool:
        pairs = zip(self.network.parameters(), other.network.parameters(), strict=True)
        return all(torch.equal(one.detach().clone(), two.detach()) for one, two in pairs)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the pool's device has: sums are split alike."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(session: Session, ours: Training, eager: Training) -> str:
    with session.capture() as cell:
        ours.step()
    eager.step()
    assert ours.loss == eager.loss
    return str(cell.report)


def test_training_a_model_of_twice_the_device(small: PoolUnderTest) -> None:
    ours, eager = Training(0), Training(0)
    with small.session() as session:
        reports = [train(session, ours, eager) for _ in range(3)]
        assert all("left the device" in report for report in reports)
        assert any(one.offloaded_bytes > DEVICE_BYTES for one in small.rest.memory().sessions)
        assert ours.agrees_with(eager)


def test_optimizers_that_take_all_weights_in_one_op(small: PoolUnderTest) -> None:
    """One op of these reads more than the device has; it runs for one weight at a time."""

    def steps(network: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.1, foreach=True)
        optimizer.step()

    ours, eager = Training(4, layers=32), Training(4, layers=32)
    optimizers = [
        torch.optim.AdamW(training.network.parameters(), foreach=True) for training in (ours, eager)
    ]
    with small.session() as session:
        for _ in range(2):
            with session.capture():
                steps(ours.network, optimizers[0], ours.inputs)
            steps(eager.network, optimizers[1], eager.inputs)
        assert ours.agrees_with(eager)


def test_a_small_session_takes_turns_with_it(small: PoolUnderTest) -> None:
    large, large_eager = Training(1), Training(1)
    little, little_eager = Training(2, layers=4), Training(2, layers=4)
    with small.session("ann") as first, small.session("bob") as second:
        for _ in range(2):
            train(first, large, large_eager)
            assert "left the device" not in train(second, little, little_eager)
        assert large.agrees_with(large_eager)
        assert little.agrees_with(little_eager)


def test_it_survives_its_worker(tmp_path: Path) -> None:
    """The host has room for two copies: with less, the one of before gives way to what the cell offloads."""
    ours, eager = Training(3), Training(3)
    with (
        PoolUnderTest(tmp_path, f"{KIND}:1", DEVICE_BYTES, host_bytes=20 * DEVICE_BYTES) as pool,
        pool.session() as session,
    ):
        for _ in range(3):
            train(session, ours, eager)
            kill_worker(pool)
        train(session, ours, eager)
        assert ours.agrees_with(eager)


def test_values_are_read_though_they_do_not_fit_together(small: PoolUnderTest) -> None:
    with small.session() as session:
        with session.capture():
            made = [torch.full((SIDE, SIDE), float(index)) for index in range(40)]
        copies = copy.deepcopy(made)
        assert all(float(one.sum()) == index * SIDE * SIDE for index, one in enumerate(copies))


def test_an_op_that_needs_more_than_the_device_is_refused_with_numbers(small: PoolUnderTest) -> None:
    with small.session() as session:
        with pytest.raises(DeviceMemoryError, match=r"One op of the cell \(aten") as refused:
            with session.capture():
                large = torch.ones(16 * MIB // 4)
                (large + large.flip(0)).sum().item()
        assert "24.0 MiB" in str(refused.value)
        with session.capture():
            assert torch.ones(3).sum().item() == 3


def test_a_cell_for_which_no_tier_has_room_is_refused_with_numbers(small: PoolUnderTest) -> None:
    with small.session() as session:
        with pytest.raises(DeviceMemoryError, match="in the tiers below it"):
            with session.capture():
                sum(one.sum() for one in [torch.ones(SIDE, SIDE) * index for index in range(300)]).item()  # type: ignore[union-attr]
