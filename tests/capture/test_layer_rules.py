"""The rules for what layers are made of say what torch's CPU kernels do, and answer where it counts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_shape_rules import laid_out_exactly, same_layout
from torch._ops import OpOverload
from torch.nn import functional as F

from djinn_lab.capture.recorders import capturing
from djinn_lab.capture.shapes.inference import ShapeInference

_aten = torch.ops.aten
Call = tuple[OpOverload, list[Any], dict[str, Any]]


def _of_rank(chance: random.Random, rank: int) -> list[int]:
    return [chance.randint(1, 4) for _ in range(rank)]


def _product(chance: random.Random, rank: int, added: bool) -> Call:
    *batch, rows, inner, columns = _of_rank(chance, rank + 1)
    left, right = (laid_out_exactly(chance, [*batch, *sides]) for sides in ((rows, inner), (inner, columns)))
    if not added:
        return (_aten.mm if rank == 2 else _aten.bmm).default, [left, right], {}
    term = laid_out_exactly(chance, [*batch, rows, columns][chance.randint(0, rank) :])
    return (_aten.addmm if rank == 2 else _aten.baddbmm).default, [term, left, right], {}


def _softmax(chance: random.Random) -> Call:
    tensor = laid_out_exactly(chance, _of_rank(chance, chance.randint(1, 4)))
    func = chance.choice([_aten._softmax, _aten._log_softmax]).default
    return func, [tensor, chance.randrange(-tensor.dim(), tensor.dim()), False], {}


def _softmax_backward(chance: random.Random) -> Call:
    shape = _of_rank(chance, chance.randint(1, 4))
    func = chance.choice([_aten._softmax_backward_data, _aten._log_softmax_backward_data]).default
    tensors = [laid_out_exactly(chance, shape) for _ in range(2)]
    return func, [*tensors, chance.randrange(len(shape)), torch.float32], {}


def _reduced(chance: random.Random) -> Call:
    tensor = laid_out_exactly(chance, _of_rank(chance, chance.randint(1, 4)))
    dimensions = chance.sample(range(tensor.dim()), chance.randint(1, tensor.dim()))
    func = chance.choice([_aten.sum.dim_IntList, _aten.mean.dim])
    return func, [tensor, dimensions, *([True] if chance.random() < 0.5 else [])], {}


def _nll_loss(chance: random.Random) -> Call:
    rows, classes = _of_rank(chance, 2)
    scores, target = laid_out_exactly(chance, [rows, classes]), torch.zeros(rows, dtype=torch.int64)
    return _aten.nll_loss_forward.default, [scores, target, None, chance.randrange(3), -100], {}


def _nll_loss_backward(chance: random.Random) -> Call:
    func, arguments, _ = _nll_loss(chance)
    loss, total = func(*arguments)
    return _aten.nll_loss_backward.default, [torch.ones_like(loss), *arguments, total], {}


def _mean_square(chance: random.Random) -> Call:
    shape = _of_rank(chance, chance.randint(0, 3))
    tensors = [laid_out_exactly(chance, shape) for _ in range(2)]
    return _aten.mse_loss.default, [*tensors, *([chance.randrange(3)] if chance.random() < 0.7 else [])], {}


def _mean_square_backward(chance: random.Random) -> Call:
    shape = _of_rank(chance, chance.randint(0, 3))
    tensors = [laid_out_exactly(chance, shape) for _ in range(2)]
    return _aten.mse_loss_backward.default, [torch.ones(()), *tensors, chance.randrange(1, 3)], {}


def _layer_norm(chance: random.Random) -> Call:
    shape = _of_rank(chance, chance.randint(1, 4))
    normalized = shape[chance.randrange(len(shape)) :]
    weight, bias = (torch.ones(normalized) if chance.random() < 0.7 else None for _ in range(2))
    given_tensor = laid_out_exactly(chance, shape)
    return _aten.native_layer_norm.default, [given_tensor, normalized, weight, bias, 1e-5], {}


def _embedding(chance: random.Random) -> Call:
    indices = torch.zeros(_of_rank(chance, chance.randint(0, 3)), dtype=torch.int64)
    return _aten.embedding.default, [laid_out_exactly(chance, _of_rank(chance, 2)), indices], {}


def _embedding_backward(chance: random.Random) -> Call:
    shape = _of_rank(chance, chance.randint(0, 2))
    gradient = laid_out_exactly(chance, [*shape, chance.randint(1, 4)])
    arguments = [gradient, torch.zeros(shape, dtype=torch.int64), chance.randint(1, 5), -1, False]
    return _aten.embedding_dense_backward.default, arguments, {}


CALLS: dict[str, Callable[[random.Random], Call]] = {
    "mm": lambda chance: _product(chance, 2, False),
    "bmm": lambda chance: _product(chance, 3, False),
    "addmm": lambda chance: _product(chance, 2, True),
    "baddbmm": lambda chance: _product(chance, 3, True),
    "softmax": _softmax,
    "softmax backward": _softmax_backward,
    "reduced": _reduced,
    "nll loss": _nll_loss,
    "nll loss backward": _nll_loss_backward,
    "mean square": _mean_square,
    "mean square backward": _mean_square_backward,
    "layer norm": _layer_norm,
    "embedding": _embedding,
    "embedding backward": _embedding_backward,
}


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_layers_are_laid_out_as_torch_does(name: str, seed: int) -> None:
    same_layout(*CALLS[name](random.Random(seed)))


def _perceptron() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))


def _convolutions() -> torch.nn.Module:
    first = (torch.nn.Unflatten(1, (2, 2, 2)), torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.BatchNorm2d(4))
    second = (torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(4, 3))
    return torch.nn.Sequential(*first, *second)


def _attention() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (2, 4)), layer, torch.nn.Flatten(), torch.nn.Linear(8, 3)
    )


@pytest.mark.parametrize("network", [_perceptron, _convolutions, _attention])
def test_a_batch_of_another_size_asks_torch_nothing(
    network: Callable[[], torch.nn.Module], recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training step on a last batch, which is smaller, is planned by rules."""
    asked: set[str] = set()
    returned = ShapeInference._returned

    def noted(self: ShapeInference, call: Any) -> Any:
        asked.add(call.signature.name)
        return returned(self, call)

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [(torch.randn(rows, 8), torch.zeros(rows, dtype=torch.int64)) for rows in (5, 4)]
    with capturing(recorder, "cell", __file__):
        for number, (x, y) in enumerate(batches):
            if number:
                monkeypatch.setattr(ShapeInference, "_returned", noted)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        recorder.finish("cell end")
    assert not asked


def test_shapes_that_do_not_fit_are_refused_in_torchs_words(recorder: Any) -> None:
    with capturing(recorder, "cell", __file__):
        x = torch.ones(2, 3) * 1
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            x @ x
        with pytest.raises(RuntimeError, match="must match the size"):
            x.add_(torch.ones(4, 3) * 1)
        with pytest.raises(IndexError, match="Dimension out of range"):
            torch.softmax(x, 2)
        recorder.finish("cell end")
