"""A hundred steps of every optimizer, spread over captured and plain cells: parameters, buffers, gradients
and the optimizer's own state are those of eager torch to the last bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from equality import difference
from in_process import InProcessBackend, cell
from torch import nn
from torch.nn import functional as F

from djinn_lab.capture.recorders import Recorder

STEPS = 100
PARTS = ((20, True), (5, False), (30, True), (5, False), (40, True))
"""Steps a cell, and whether it is captured."""

Parameters = Any
OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4, foreach=False),
    "SGD, foreach": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, foreach=False),
    "Adam, foreach": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.5),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3, history_size=4, line_search_fn="strong_wolfe"),
    "parameter groups": lambda p: torch.optim.AdamW(
        [{"params": list(p)[:2], "lr": 0.1}, {"params": list(p)[2:], "weight_decay": 0.0}], 0.01
    ),
}


class Training:
    def __init__(self, network: nn.Module, make: Callable[[Parameters], torch.optim.Optimizer]) -> None:
        self.network = network
        self.optimizer = make(list(network.parameters()))
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, 0.05, STEPS, cycle_momentum=False
        )
        self.losses: list[torch.Tensor] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.network(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
                return loss

            if isinstance(self.optimizer, torch.optim.LBFGS):
                self.losses.append(self.optimizer.step(closure))
            else:
                self.losses.append(closure())
                self.optimizer.step()
            self.scheduler.step()

    def state(self) -> list[Any]:
        return [self.network, self.optimizer, self.scheduler, self.losses]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_hundred_steps_over_several_cells(name: str, recorder: Recorder, backend: InProcessBackend) -> None:
    network = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
    )
    eager, captured = (Training(copy.deepcopy(network), OPTIMIZERS[name]) for _ in range(2))
    torch.manual_seed(5)
    eager.run(STEPS)
    torch.manual_seed(5)
    waits = set()
    for steps, is_captured in PARTS:
        if is_captured:
            before = len(backend.cuts)
            with cell(recorder):
                captured.run(steps)
            waits.update(cut.cause for cut in backend.cuts[before:])
        else:
            captured.run(steps)
    assert difference(captured.state(), eager.state()) is None, difference(captured.state(), eager.state())
    if name not in WAIT_FOR_VALUES:
        assert waits <= {"streamed", "cell end"}


WAIT_FOR_VALUES = ("LBFGS",)
"""Their step looks at numbers by design."""


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_networks_train_over_several_cells(kind: type[nn.RNNBase], recorder: Recorder) -> None:
    """While the last graph is alive, as in a notebook, where its output has a name."""

    def losses(begin: Callable[[], Any]) -> list[torch.Tensor]:
        torch.manual_seed(5)
        network, x = kind(4, 8, num_layers=2), torch.randn(6, 3, 4)
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        found = []
        for _ in range(3):
            with begin():
                optimizer.zero_grad()
                output, _ = network(x)
                loss = output.pow(2).mean()
                loss.backward()
                optimizer.step()
                found.append(loss.detach())
        return [loss.cpu() for loss in found]

    assert all(map(torch.equal, losses(lambda: cell(recorder)), losses(nullcontext)))


def test_residual_connections_do_not_cut_a_training_step(
    recorder: Recorder, backend: InProcessBackend
) -> None:
    """Autograd adds the gradients of both branches; whether it may do so in place, it learns without
    memory."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    plain = copy.deepcopy(layer)
    x = torch.randn(3, 5, 8)
    with cell(recorder):
        layer(x).square().sum().backward()
    plain(x).square().sum().backward()
    assert [cut.cause for cut in backend.cuts] == ["cell end"]
    for ours, expected in zip(layer.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad.cpu(), expected.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kept", [torch.float32, None], ids=["statistics kept in float32", "in its dtype"])
def test_layers_that_normalize_over_the_batch_train_in_half_precision(
    recorder: Recorder, dtype: torch.dtype, kept: torch.dtype | None
) -> None:
    """For no elements, the kernels behind them divide by zero, which ends the process."""

    def step() -> list[torch.Tensor]:
        torch.manual_seed(1)
        norm, inputs = nn.BatchNorm1d(3).to(kept or dtype), torch.randn(4, 3, 5).to(dtype).requires_grad_()
        outputs = F.instance_norm(norm(inputs))
        outputs.float().square().sum().backward()
        assert norm.weight.grad is not None
        assert inputs.grad is not None
        return [inputs.grad, norm.weight.grad, norm.running_mean]

    eager = step()
    with cell(recorder):
        ours = step()
    for one, other in zip(ours, eager, strict=True):
        assert torch.equal(one.clone(), other)
