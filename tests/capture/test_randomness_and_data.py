"""Generators of the user, random states, data loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from equality import check_cell, difference
from in_process import InProcessBackend, cell
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from djinn_lab.capture.recorders import Recorder
from djinn_lab.errors import CaptureError


def _step(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss


def test_generators_of_the_users_own(recorder: Recorder) -> None:
    def draw(generator: torch.Generator) -> list[torch.Tensor]:
        x = torch.randn(4, generator=generator)
        y = torch.zeros(4).normal_(generator=generator) + x
        torch.nn.init.kaiming_uniform_(y.view(2, 2), generator=generator)
        return [
            y,
            torch.randperm(5, generator=generator),
            torch.multinomial(torch.ones(3), 2, generator=generator),
        ]

    expected = draw(torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(5)
    with cell(recorder):
        found = draw(generator)
    assert difference(found, expected) is None


def test_a_generator_for_cuda_is_the_pools(recorder: Recorder) -> None:
    expected = torch.randn(3, generator=torch.Generator().manual_seed(3))
    with cell(recorder):
        generator = torch.Generator(device="cuda").manual_seed(3)
        x = torch.randn(3, generator=generator, device="cuda")
    assert torch.equal(x.cpu(), expected)


def test_fork_rng_and_set_rng_state(recorder: Recorder) -> None:
    def draw() -> list[torch.Tensor]:
        state = torch.get_rng_state()
        first = torch.randn(2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            second = torch.randn(2)
        third = torch.randn(2)
        torch.set_rng_state(state)
        return [first, second, third, torch.randn(2)]

    check_cell(recorder, draw)


class _Squares(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index)) ** 2 + torch.randn(3), index % 2


class _Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(5):
            yield torch.arange(3.0) * index


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders(workers: int, recorder: Recorder, backend: InProcessBackend) -> None:
    def run(network: nn.Module) -> list[torch.Tensor]:
        losses = []
        for x, y in DataLoader(_Squares(), 4, shuffle=True, num_workers=workers):
            losses.append(_step(F.cross_entropy(network(x), y)))
        losses.extend(network(x).sum() for x in DataLoader(_Stream(), 2, num_workers=min(workers, 1)))
        return losses

    network = nn.Linear(3, 2)
    check_cell(recorder, run, network)
    with cell(recorder):
        run(network)
    assert backend.cuts[-1].cause == "cell end"


def test_random_split_and_weighted_sampler(recorder: Recorder) -> None:
    from torch.utils.data import WeightedRandomSampler, random_split

    data = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))

    def run() -> list[torch.Tensor]:
        train, rest = random_split(data, [7, 3], torch.Generator().manual_seed(2))
        sampler = WeightedRandomSampler(torch.arange(1.0, 8.0), 5)
        found = [x for x, _ in DataLoader(train, 2, sampler=sampler)]
        return [*found, *(x + 1 for x, _ in DataLoader(rest))]

    check_cell(recorder, run)


def test_workers_read_data_made_in_a_cell(recorder: Recorder) -> None:
    def run() -> list[torch.Tensor]:
        x = torch.linspace(1, 10, 10) * 2
        torch.manual_seed(3)
        noise = torch.randn(2)
        data = TensorDataset(x, torch.linspace(10, 1, 10) + 0)
        batches = [a + b for a, b in DataLoader(data, 5, shuffle=True, num_workers=2)]
        return [*batches, noise]

    check_cell(recorder, run)


def test_a_worker_of_a_plain_cell_asks_for_plain_data_instead_of_hanging(recorder: Recorder) -> None:
    with cell(recorder):
        data = TensorDataset(torch.ones(4) * 2)
    with pytest.raises(CaptureError, match="num_workers=0"):
        list(DataLoader(data, num_workers=1))
    assert [batch.tolist() for (batch,) in DataLoader(data, 2)] == [[2.0, 2.0]] * 2
