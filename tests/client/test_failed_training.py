"""Training goes on after a cell that failed, or was stopped, before its first step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from device_kind import OUT_OF_RANGE

from djinn_lab.client.session import Session

MakeOptimizer = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "Adam": partial(torch.optim.Adam, lr=1e-2),
    "Adam, op by op": partial(torch.optim.Adam, lr=1e-2, foreach=False),
    "SGD with momentum": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    "RMSprop": partial(torch.optim.RMSprop, lr=1e-2, momentum=0.5),
}


def _start(make: MakeOptimizer) -> tuple[torch.nn.Linear, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    network = torch.nn.Linear(8, 4)
    return network, make(network.parameters()), torch.randn(16, 8)


def _steps(
    count: int, network: torch.nn.Linear, optimizer: torch.optim.Optimizer, inputs: torch.Tensor
) -> None:
    for _ in range(count):
        optimizer.zero_grad(set_to_none=False)
        network(inputs).pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_that_did_not_run_leave_the_optimizer_as_it_was(session: Session, name: str) -> None:
    network, optimizer, inputs = _start(OPTIMIZERS[name])
    with pytest.raises(OUT_OF_RANGE) as failed, session.capture():
        wrong = torch.zeros(3).index_select(0, torch.tensor([5]))
        _steps(2, network, optimizer, inputs)
    assert wrong.shape == (1,)
    assert failed.value.__notes__ == ["The optimizer's state of 2 parameters begins anew."]
    with session.capture():
        _steps(3, network, optimizer, inputs)
    alone, by_torch, inputs = _start(OPTIMIZERS[name])
    _steps(3, alone, by_torch, inputs)
    for mine, expected in zip(network.parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine.cpu(), expected)


def test_steps_that_ran_are_kept(session: Session) -> None:
    network, optimizer, inputs = _start(OPTIMIZERS["Adam"])
    with session.capture():
        _steps(2, network, optimizer, inputs)
    with pytest.raises(OUT_OF_RANGE) as failed, session.capture():
        wrong = torch.zeros(3).index_select(0, torch.tensor([5]))
        _steps(2, network, optimizer, inputs)
    assert wrong.shape == (1,)
    assert not getattr(failed.value, "__notes__", [])
    assert len(optimizer.state) == 2
