"""Random acts on tensors in cells of which nothing runs, or that run to an op that fails: the notebook is as
before them, or as plain torch leaves it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from device_kind import only_cpus
from real_pool import PoolUnderTest
from sampled import sampled
from torch import Tensor, nn

from djinn_lab.client.session import Session
from djinn_lab.errors import DjinnError, Refused
from djinn_lab.jobs import Terms

pytestmark = pytest.mark.processes
PROGRAMS, ACTS_MAX = sampled(15, 6), 9


class State:
    """What a notebook has: a module with its optimizer, tensors with and without a graph, a view."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        # One by one, as on CPUs: a step that fails half way has then stepped the same on every device.
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1, foreach=False)
        self.x = torch.arange(12.0).view(4, 3) / 7
        self.row = self.x[1]
        self.weight = nn.Parameter(torch.ones(3) * 2)
        self.product = self.weight * 3
        self.free = torch.ones(2, 3)
        self.count = torch.tensor(0)

    def begin(self) -> None:
        """Give everything a first step, so that optimizers have their state."""
        self.model(self.x.clone()).sum().backward()
        self.optimizer.step()
        self.product = self.weight * 3

    def look(self) -> list[object]:
        tensors: list[Tensor] = [*self.model.parameters(), *self.model.buffers()]
        tensors += [self.x, self.row, self.weight, self.product, self.free, self.count]
        tensors += [item for state in self.optimizer.state.values() for item in state.values()]
        return [_seen(tensor) for tensor in tensors]


def _seen(tensor: Tensor) -> tuple[object, ...]:
    gradient = tensor.grad.tolist() if tensor.is_leaf and tensor.grad is not None else None
    history = tensor.grad_fn is not None
    return (
        tensor.tolist(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
        history,
        gradient,
    )


def _without(act: Callable[[State], object]) -> Callable[[State], object]:
    def run(state: State) -> object:
        with torch.no_grad():
            return act(state)

    return run


def _replace(name: str, made: Callable[[Tensor], Tensor]) -> Callable[[State], object]:
    def run(state: State) -> None:
        tensor = getattr(state, name)
        tensor.data = made(tensor.data)

    return run


def _backward(state: State) -> None:
    state.optimizer.zero_grad()
    state.model(torch.ones(4, 3, dtype=state.model[0].weight.dtype)).square().mean().backward()


ACTS: dict[str, Callable[[State], object]] = {
    "half and back": lambda state: state.model.half().float(),
    "double and back": lambda state: state.model.double().float(),
    "another dtype": lambda state: state.model.to(torch.float64),
    "memory": _replace("free", lambda data: data * 2),
    "memory of a parameter": _replace("weight", lambda data: data - 0.5),
    "plain memory": _replace("free", lambda data: torch.zeros(2, 3)),
    "turned": lambda state: state.free.t_(),
    "unsqueezed": lambda state: state.free.unsqueeze_(0),
    "squeezed": lambda state: state.free.squeeze_(),
    "written": _without(lambda state: state.x.mul_(2)),
    "written by a view": _without(lambda state: state.row.add_(1)),
    "written parameter": _without(lambda state: state.weight.add_(1)),
    "written with a gradient": lambda state: state.free.mul_(state.weight.sum()),
    "product written": lambda state: state.product.add_(state.weight),
    "frozen": lambda state: state.model.requires_grad_(False),
    "thawed": lambda state: state.model.requires_grad_(True),
    "counted": lambda state: state.count.add_(1),
    "step": lambda state: (_backward(state), state.optimizer.step()),
}
ONLY_NATIVE = ("written by a view", "product written")
"""Histories of views, and of what had one, are the native recorder's to give back."""


def _program(chance: random.Random, recorder: str) -> list[str]:
    names = [name for name in ACTS if recorder == "native" or name not in ONLY_NATIVE]
    return [chance.choice(names) for _ in range(chance.randint(1, ACTS_MAX))]


def _run(state: State, names: list[str]) -> list[str]:
    """Run acts, and return those that could not be done: a frozen model has no gradient, a leaf that needs
    one is not written in place."""
    failed = []
    for name in names:
        try:
            ACTS[name](state)
        except RuntimeError as error:
            if isinstance(error, DjinnError):
                raise
            failed.append(name)
    return failed


@pytest.fixture
def session(recorder: str, pool: PoolUnderTest) -> Iterator[Session]:
    with pool.session() as opened:
        yield opened


def _without_gradients(seen: Any) -> Any:
    """Gradients that a cell replaced are gone."""
    return [one[:-1] for one in seen]


@pytest.mark.parametrize("lazy", [True, False], ids=["lazy", "plain"])
def test_refused_acts_change_nothing_and_then_do_what_plain_torch_does(
    session: Session, recorder: str, lazy: bool
) -> None:
    chance = random.Random(7)
    for _ in range(PROGRAMS):
        names = _program(chance, recorder)
        found, expected = State(), State()
        expected.begin()
        if lazy:
            with session.capture():
                found.begin()
        else:
            found.begin()
        before = found.look()
        with pytest.raises(Refused), session.capture(terms=Terms(target="gpu=h200")):
            _run(found, names)
            _made = torch.ones(2) + 1
        assert _without_gradients(found.look()) == _without_gradients(before), names
        if recorder == "python":  # which refuses, or keeps another layout of, a few of these
            continue
        for parameter in (*found.model.parameters(), *expected.model.parameters()):
            parameter.grad = None
        with session.capture():
            _run(found, names)
        _run(expected, names)
        assert _without_gradients(found.look()) == _without_gradients(expected.look()), names


@only_cpus("an op that fails leaves the device as it is")
def test_acts_behind_an_op_that_fails_change_nothing(session: Session, recorder: str) -> None:
    chance = random.Random(8)
    with session.capture():
        values = torch.arange(3.0) * 2
    for _ in range(PROGRAMS):
        first, behind = _program(chance, recorder), _program(chance, recorder)
        found, expected = State(), State()
        for state in (found, expected):
            state.begin()
        with pytest.raises(RuntimeError, match="out of bounds"), session.capture():
            failed = _run(found, first)
            _kept = values.gather(0, torch.tensor([9]))
            _run(found, behind)
        if _run(expected, first) != failed:
            assert recorder == "python"  # which cannot turn a plain tensor that a graph ends at
            continue
        seen = found.look()
        assert [one[1:4] for one in seen] == [one[1:4] for one in expected.look()], (first, behind)
