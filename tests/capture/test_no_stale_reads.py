"""Whatever mix of captured cells, plain cells, aliases, views, ``.data`` and numpy arrays: every look shows
what eager torch would show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from both_worlds import BothWorlds, World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sampled import sampled

EXAMPLES = sampled(120, 50)
TENSORS_MAX = 12

MAKE: dict[str, Callable[[], torch.Tensor]] = {
    "zeros": lambda: torch.zeros(3, 3),
    "arange": lambda: torch.arange(6.0).view(2, 3),
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(2, 3, 2),
    "scalar": lambda: torch.tensor(1.5),
    "list": lambda: torch.tensor([[1.0, 2.0, 3.0]]),
    "leaf": lambda: torch.randn(2, 3, requires_grad=True),
    "double": lambda: torch.rand(2, 3, dtype=torch.float64),
    "integers": lambda: torch.randint(0, 5, (3, 3)),
}
VIEW: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "first": lambda x: x[0],
    "slice": lambda x: x[1:],
    "steps": lambda x: x[..., ::2],
    "transpose": lambda x: x.transpose(0, -1),
    "flat": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(-1),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "expand": lambda x: x.expand(2, *x.shape),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "unbind": lambda x: x.unbind(0)[-1],
    "split": lambda x: x.split(2)[0],
    "diagonal": lambda x: x.diagonal(),
    "contiguous": lambda x: x.contiguous(),
}
NEW: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y - 1,
    "matmul": lambda x, y: x @ y,
    "where": lambda x, y: torch.where(x > y, x, y),
    "positive": lambda x, y: x[x > 0],
    "cumsum": lambda x, y: x.cumsum(0),
    "sum": lambda x, y: x.sum(-1, keepdim=True) + y.mean(),
    "sort": lambda x, y: x.sort(-1).values,
    "cat": lambda x, y: torch.cat([x, y]),
    "clone": lambda x, y: x.clone(),
    "norm": lambda x, y: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x, y: (x * 2).softmax(-1) + y.exp(),
    "index": lambda x, y: x[torch.tensor([0, 0])] if x.shape[:1] != (0,) else x.sum(0),
    "stack": lambda x, y: torch.stack([x, y], -1).amax(-1),
    "gradient": lambda x, y: torch.zeros(1) if x.grad is None else x.grad,
    "no_grad": lambda x, y: _without_gradient(x, y),
    "cast": lambda x, y: x.to(torch.float64).round(),
    "leaf": lambda x, y: x.detach().clone().requires_grad_(),
    "dropout": lambda x, y: torch.nn.functional.dropout(x, 0.5),
    "noise": lambda x, y: x + torch.randn_like(x),
    "cpu": lambda x, y: x.cpu() + 1,
    "list": lambda x, y: torch.tensor(x.tolist()),
}
WRITE: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add_": lambda x, y: x.add_(1),
    "mul_": lambda x, y: x.mul_(y),
    "copy_": lambda x, y: x.copy_(y),
    "zero_": lambda x, y: x.zero_(),
    "normal_": lambda x, y: x.normal_(),
    "masked_fill_": lambda x, y: x.masked_fill_(x > 1, 0.25),
    "clamp_": lambda x, y: x.clamp_(-2, 2),
    "set first": lambda x, y: x.__setitem__(0, 7.0),
    "set slice": lambda x, y: x.__setitem__(slice(1, None), y),
    "set mask": lambda x, y: x.__setitem__(x < 0, 3.0),
    "data add_": lambda x, y: x.data.add_(2),
    "data": lambda x, y: setattr(x, "data", y),
    "iadd": lambda x, y: x.__iadd__(y),
    "out": lambda x, y: torch.add(y, 1, out=x) if x.shape == y.shape else None,
    "foreach": lambda x, y: torch._foreach_add_([x, y], 1.0) if x.dtype == y.dtype else None,
    "branch": lambda x, y: x.add_(1) if x.sum().item() > 0 else x.mul_(0.5),
    "backward": lambda x, y: (x * y).sum().backward(),
    "backward again": lambda x, y: x.backward(y, retain_graph=True),
    "forget gradient": lambda x, y: setattr(x, "grad", None),
    "step": lambda x, y: _step(x),
    "fill_diagonal_": lambda x, y: x.fill_diagonal_(2),
    "index_add_": lambda x, y: x.index_add_(0, torch.tensor([0]), x[:1].clone()),
    "resize view": lambda x, y: x.unsqueeze_(0),
    "hook": lambda x, y: x.register_hook(lambda gradient: gradient * 2),
    "random_": lambda x, y: x.bernoulli_(0.5),
}


def _without_gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x * 2 + y


def _step(x: torch.Tensor) -> None:
    with torch.no_grad():
        if x.grad is not None:
            x -= 0.1 * x.grad
            x.grad.zero_()


class Statements(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.both = BothWorlds()

    def teardown(self) -> None:
        try:
            if self.both.in_cell:
                self.both.leave_cell()
            self.both.compare_everything()
        finally:
            self.both.close()

    def _pick(self, index: int) -> int:
        return index % len(self.both.eager.tensors)

    def _keep(self, make: Callable[[World], torch.Tensor]) -> None:
        def statement(world: World) -> None:
            made = make(world)
            if len(world.tensors) >= TENSORS_MAX:
                world.tensors.pop(0)
            world.tensors.append(made)

        self.both.run(statement)

    some = st.integers(0, TENSORS_MAX - 1)
    has_tensors = precondition(lambda self: len(self.both.eager.tensors) > 0)
    has_arrays = precondition(lambda self: len(self.both.eager.arrays) > 0)

    @precondition(lambda self: not self.both.in_cell)
    @rule()
    def enter_cell(self) -> None:
        self.both.enter_cell()

    @precondition(lambda self: self.both.in_cell)
    @rule()
    def leave_cell(self) -> None:
        self.both.leave_cell()

    @rule(kind=st.sampled_from(sorted(MAKE)))
    def make(self, kind: str) -> None:
        self._keep(lambda world: MAKE[kind]())

    @rule()
    def make_from_numpy(self) -> None:
        import numpy as np

        def statement(world: World) -> torch.Tensor:
            array = np.arange(6, dtype=np.float32).reshape(2, 3)
            world.arrays.append(array)
            return torch.from_numpy(array)

        self._keep(statement)

    @has_tensors
    @rule(index=some, kind=st.sampled_from(sorted(VIEW)))
    def view(self, index: int, kind: str) -> None:
        place = self._pick(index)
        self._keep(lambda world: VIEW[kind](world.tensors[place]))

    @has_tensors
    @rule(first=some, second=some, kind=st.sampled_from(sorted(NEW)))
    def compute(self, first: int, second: int, kind: str) -> None:
        x, y = self._pick(first), self._pick(second)
        self._keep(lambda world: NEW[kind](world.tensors[x], world.tensors[y]))

    @has_tensors
    @rule(first=some, second=some, kind=st.sampled_from(sorted(WRITE)))
    def write(self, first: int, second: int, kind: str) -> None:
        x, y = self._pick(first), self._pick(second)

        def statement(world: World) -> None:
            WRITE[kind](world.tensors[x], world.tensors[y])

        self.both.run(statement)

    @has_tensors
    @rule(index=some)
    def expose_to_numpy(self, index: int) -> None:
        place = self._pick(index)
        self.both.run(lambda world: world.arrays.append(world.tensors[place].numpy()))

    @has_arrays
    @rule(index=some, value=st.integers(-3, 3))
    def write_with_numpy(self, index: int, value: int) -> None:
        def statement(world: World) -> None:
            world.arrays[index % len(world.arrays)][...] += value

        self.both.run(statement)

    @has_arrays
    @rule(index=some)
    def read_with_numpy(self, index: int) -> None:
        self.both.run(lambda world: world.arrays[index % len(world.arrays)].copy())

    @has_arrays
    @rule()
    def drop_array(self) -> None:
        self.both.run(lambda world: (world.arrays.pop(0), None)[1])

    @has_tensors
    @rule(index=some)
    def drop_tensor(self, index: int) -> None:
        place = self._pick(index)
        self.both.run(lambda world: (world.tensors.pop(place), None)[1])

    @has_tensors
    @rule(index=some)
    def look(self, index: int) -> None:
        self.both.compare(self._pick(index))

    @has_tensors
    @rule(index=some)
    def scalar(self, index: int) -> None:
        place = self._pick(index)
        self.both.run(lambda world: world.tensors[place].sum().item())

    @rule(seed=st.integers(0, 3))
    def set_seed(self, seed: int) -> None:
        self.both.run(lambda world: (torch.manual_seed(seed), None)[1])

    @rule()
    def train(self) -> None:
        self.both.run(_training_step)

    @rule()
    def keep_weight(self) -> None:
        self._keep(lambda world: world.module.weight.data)

    @rule()
    def show_weight_to_numpy(self) -> None:
        self.both.run(lambda world: world.arrays.append(world.module.weight.detach().numpy()))


def _training_step(world: World) -> None:
    world.optimizer.zero_grad()
    x = torch.linspace(0, 1, 6).view(2, 3)
    world.module(x).square().sum().backward()
    world.optimizer.step()


class ProgramsInOneCell(Statements):
    """Everything happens in one captured cell, and every variable is compared after every statement."""

    def __init__(self) -> None:
        super().__init__()
        self.both.enter_cell()

    @precondition(lambda self: False)
    @rule()
    def enter_cell(self) -> None:
        """Never left, so never entered."""

    @precondition(lambda self: False)
    @rule()
    def leave_cell(self) -> None:
        """Only by the teardown."""

    @invariant()
    def nothing_differs(self) -> None:
        self.both.compare_everything()


def check(machine: type[Statements], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract:UserWarning")
def test_no_look_shows_an_old_value() -> None:
    check(Statements, EXAMPLES, 40)


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract:UserWarning")
def test_programs_equal_eager_after_every_statement() -> None:
    check(ProgramsInOneCell, EXAMPLES // 2, 25)
