"""When the pool goes away: what the notebook had itself is sent again, the rest says that it is gone."""

from __future__ import annotations

import pytest
import torch
from in_process import InProcessBackend, cell
from torch import nn

from djinn_lab.capture.recorders import make_recorder
from djinn_lab.capture.sending.backend import Cut, RunResult
from djinn_lab.errors import PoolLost, ValueLost
from djinn_lab.srg.program import Program


class LosesOnce(InProcessBackend):
    """Fails the next run as a dead pool does, then works again with nothing in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.lose_next = False

    def run(self, program: Program, cut: Cut) -> RunResult:
        if self.lose_next:
            self.lose_next = False
            self.interpreter.close("s")
            return RunResult(0, error=PoolLost("gone"), pool_lost=True)
        return super().run(program, cut)


def test_uploaded_and_fetched_values_survive_a_lost_pool() -> None:
    backend = LosesOnce()
    recorder = make_recorder(backend)
    network = nn.Linear(4, 2)
    with cell(recorder):
        y = network(torch.ones(1, 4))
        made = torch.ones(3) + 1
        fetched = torch.ones(3) * 5
        view = fetched[1:]
    expected = y.detach().cpu()
    assert fetched.tolist() == [5.0, 5.0, 5.0]
    backend.lose_next = True
    with pytest.raises(PoolLost), cell(recorder):
        (made * 2).sum().item()
    with pytest.raises(ValueLost):
        made.tolist()
    with cell(recorder):
        again = network(torch.ones(1, 4))
        more = view + fetched[:2]
    assert torch.equal(again.detach().cpu(), expected)
    assert more.tolist() == [10.0, 10.0]


def test_training_after_a_lost_pool_resumes_from_fetched_values() -> None:
    backend = LosesOnce()
    recorder = make_recorder(backend)
    network = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        network(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    with cell(recorder):
        step()
    saved = network.weight.detach().cpu()
    backend.lose_next = True
    with pytest.raises(PoolLost), cell(recorder):
        step()
    with pytest.raises(ValueLost):
        network.bias.tolist()
    assert saved.shape == (1, 2)
