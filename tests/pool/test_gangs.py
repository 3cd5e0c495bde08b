"""Cells that run on several devices of a live pool at once: their results are those of one device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from real_pool import PoolUnderTest
from torch import nn
from torch.nn import functional as F

from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.jobs import Terms

pytestmark = pytest.mark.processes

MIB = 2**20
RATES = (0.1, 0.05, 0.02, 0.01)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("gangs"), "cpu:2", 256 * MIB) as pool:
        yield pool


@pytest.fixture
def session(two: PoolUnderTest) -> Iterator[Session]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    session = Session(two.info.url, two.info.token, default_profile(), "a test")
    try:
        yield session
    finally:
        session.close()
        torch.set_num_threads(before)


class Search:
    """Four small networks with a learning rate each."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.models = [nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)) for _ in RATES]
        self.optimizers = [
            torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
            for model, rate in zip(self.models, RATES, strict=True)
        ]
        self.images, self.labels = torch.randn(256, 64), torch.randint(0, 8, (256,))

    def train(self, steps: int) -> torch.Tensor:
        losses = []
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for _ in range(steps):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(self.images), self.labels)
                loss.backward()
                optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    def weights(self) -> list[list[float]]:
        return [one.detach().flatten().tolist() for model in self.models for one in model.parameters()]


def test_a_search_over_four_models_runs_on_two_devices_and_finds_what_one_finds(session: Session) -> None:
    alone, together = Search(), Search()
    expected = [alone.train(30).tolist() for _ in range(3)]
    found = []
    for _ in range(3):
        with session.capture("search", terms=Terms(gang=2)) as cell:
            losses = together.train(30)
        assert cell.report.gang == "2 devices: cpu:0, cpu:1"
        found.append(losses.tolist())
    assert found == expected
    assert together.weights() == alone.weights()
