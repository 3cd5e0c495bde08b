"""For pools whose devices are accelerators, ops are recorded as a GPU has them: few, with eager's values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from in_process import InProcessBackend, cell
from torch import nn

from djinn_lab.capture.recorders import Recorder
from djinn_lab.capture.torch_functions.pool_devices import PoolDevice

CPU, CARD = PoolDevice("cpu:0", "a CPU", 2**33), PoolDevice("cuda:0", "a card", 2**33, "cuda")
STEPS: dict[str, tuple[Callable[[list[nn.Parameter]], torch.optim.Optimizer], int]] = {
    "SGD": (lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9), 4),
    "Adam": (lambda parameters: torch.optim.Adam(parameters, 0.1), 12),
    "AdamW": (lambda parameters: torch.optim.AdamW(parameters, 0.1), 12),
    "RMSprop": (lambda parameters: torch.optim.RMSprop(parameters, 0.1), 8),
}


def recorded(backend: InProcessBackend) -> Counter[str]:
    """Count the ops of the last program, if there is one."""
    if not backend.programs:
        return Counter()
    program = backend.programs[-1]
    return Counter(program.templates[node.template].op for node in program.nodes)


def value_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.tensor(tensor.tolist())


def parameters() -> list[nn.Parameter]:
    made = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(3, 4, generator=made)) for _ in range(100)]


def step(optimizer: torch.optim.Optimizer, times: int = 1) -> None:
    for _ in range(times):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.detach() * 0.5
        optimizer.step()


@pytest.mark.parametrize("name", list(STEPS))
def test_an_optimizers_step_of_100_tensors_is_a_few_ops(
    name: str, recorder: Recorder, backend: InProcessBackend
) -> None:
    make, most = STEPS[name]
    recorder.devices = lambda: [CARD]
    eager, ours = parameters(), parameters()
    expected, optimizer = make(eager), make(ours)
    step(expected, 3)
    for _ in range(3):
        with cell(recorder):
            for parameter in ours:
                parameter.grad = parameter.detach() * 0.5
        with cell(recorder):
            optimizer.step()
    assert sum(recorded(backend).values()) <= most
    found = [value_of(parameter.detach()) for parameter in ours]
    torch.testing.assert_close(found, [parameter.detach() for parameter in eager])


@pytest.mark.parametrize("devices", [[], [CPU], [CARD, CPU]])
def test_where_a_cell_may_run_on_a_cpu_a_step_is_that_of_a_cpu(
    devices: list[PoolDevice], recorder: Recorder, backend: InProcessBackend
) -> None:
    recorder.devices = lambda: devices
    optimizer = torch.optim.SGD(parameters(), 0.1)
    with cell(recorder):
        step(optimizer)
    assert not any("_foreach_" in op for op in recorded(backend))


def test_gradients_are_clipped_in_a_few_ops(recorder: Recorder, backend: InProcessBackend) -> None:
    recorder.devices = lambda: [CARD]
    eager, ours = parameters(), parameters()
    for parameter in (*eager, *ours):
        parameter.grad = parameter.detach() * 2
    norm = nn.utils.clip_grad_norm_(eager, 1.0)
    with cell(recorder):
        found = nn.utils.clip_grad_norm_(ours, 1.0)
    assert sum(recorded(backend).values()) <= 10
    torch.testing.assert_close(value_of(found), norm)


def test_dropout_is_one_op_with_a_mask_of_bytes(recorder: Recorder, backend: InProcessBackend) -> None:
    recorder.devices = lambda: [CARD]
    numbers = torch.ones(64, 64, requires_grad=True)
    torch.manual_seed(5)
    expected, _ = torch.native_dropout(numbers, 0.25, True)
    torch.manual_seed(5)
    with cell(recorder):
        dropped = nn.Dropout(0.25)(numbers)
    assert recorded(backend)["aten.native_dropout.default"] == 1
    assert not any("bernoulli" in op for op in recorded(backend))
    assert torch.equal(value_of(dropped.detach()), expected.detach())
    with cell(recorder):
        dropped.sum().backward()
    assert numbers.grad is not None
    assert torch.equal(value_of(numbers.grad), (expected.detach() != 0) / 0.75)


@pytest.mark.parametrize(
    "drop",
    [
        lambda x: nn.functional.dropout(x, 0.0),
        lambda x: nn.functional.dropout(x, 1.0),
        lambda x: nn.functional.dropout(x, 0.5, training=False),
        lambda x: nn.functional.dropout(x * 1, 0.5, inplace=True).shape[0] + x,
    ],
)
def test_dropout_that_draws_nothing_or_writes_in_place_is_as_ever(
    drop: Callable[[torch.Tensor], torch.Tensor], recorder: Recorder, backend: InProcessBackend
) -> None:
    recorder.devices = lambda: [CARD]
    numbers = torch.ones(8)
    with cell(recorder):
        found = drop(numbers)
    assert "aten.native_dropout.default" not in recorded(backend)
    assert torch.equal(value_of(found), drop(numbers))


def test_dropout_of_whole_numbers_raises_as_in_eager(recorder: Recorder) -> None:
    recorder.devices = lambda: [CARD]
    with pytest.raises(RuntimeError) as eager:
        nn.functional.dropout(torch.ones(4, dtype=torch.int64))
    with pytest.raises(type(eager.value)), cell(recorder):
        nn.functional.dropout(torch.ones(4, dtype=torch.int64))
