"""The rules for convolutional networks, optimizers' sources and gradients say what torch's CPU kernels do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_shape_rules import laid_out, laid_out_exactly, layouts_by_rule, same_layout
from torch._ops import OpOverload

_aten = torch.ops.aten
Call = tuple[OpOverload, list[Any], dict[str, Any]]
DTYPES = (torch.float32, torch.float64)


def _tensor(chance: random.Random, shape: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Row-major more often than not."""
    return (torch.zeros(shape) if chance.random() < 0.7 else laid_out_exactly(chance, shape)).to(dtype)


def _maybe(chance: random.Random, tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor if chance.random() < 0.6 else None


def _of_rank(chance: random.Random, rank: int, most: int = 4) -> list[int]:
    return [chance.randint(1, most) for _ in range(rank)]


def _convolution(chance: random.Random) -> Call:
    rank, groups, dtype = chance.choice([1, 2, 2, 2, 3]), chance.choice([1, 1, 2]), chance.choice(DTYPES)
    batch, channels, made = _of_rank(chance, 3)
    given_tensor = _tensor(chance, [batch, channels * groups, *_of_rank(chance, rank, 7)], dtype)
    weight = _tensor(chance, [made * groups, channels, *_of_rank(chance, rank, 3)], dtype)
    bias = _maybe(chance, torch.zeros(made * groups, dtype=dtype))
    numbers = [
        _of_rank(chance, rank, 3),
        [chance.randint(0, 2) for _ in range(rank)],
        _of_rank(chance, rank, 2),
    ]
    return _aten.convolution.default, [given_tensor, weight, bias, *numbers, False, [0] * rank, groups], {}


def _convolution_backward(chance: random.Random) -> Call:
    func, arguments, _ = _convolution(chance)
    given_tensor, weight, bias, *numbers = arguments
    shape = list(func(*arguments).shape)
    mask = [chance.random() < 0.8, True, bias is not None]  # oneDNN's kernel gives that of the weights always
    sizes = None if bias is None else list(bias.shape)
    tensors = [_tensor(chance, shape, given_tensor.dtype), given_tensor, weight]
    return _aten.convolution_backward.default, [*tensors, sizes, *numbers, mask], {}


def _image(chance: random.Random) -> torch.Tensor:
    return _tensor(chance, [*_of_rank(chance, chance.choice([1, 2]), 3), *_of_rank(chance, 2, 9)])


def _window(chance: random.Random) -> list[Any]:
    kernel = _of_rank(chance, 2, 3)
    steps = chance.choice([[], kernel, _of_rank(chance, 2, 3)])
    return [kernel, steps, [chance.randint(0, size // 2) for size in kernel]]


def _max_pool(chance: random.Random) -> Call:
    arguments = [*_window(chance), _of_rank(chance, 2, 2), chance.random() < 0.5]
    count = chance.randint(1, 5)
    return _aten.max_pool2d_with_indices.default, [_image(chance), *arguments[:count]], {}


def _max_pool_backward(chance: random.Random) -> Call:
    arguments = [_image(chance), *_window(chance), _of_rank(chance, 2, 2), chance.random() < 0.5]
    pooled, indices = _aten.max_pool2d_with_indices.default(*arguments)
    gradient = _tensor(chance, list(pooled.shape))
    return _aten.max_pool2d_with_indices_backward.default, [gradient, *arguments, indices], {}


def _average_pool(chance: random.Random) -> Call:
    arguments = [*_window(chance), chance.random() < 0.5, chance.random() < 0.5, chance.choice([None, 3])]
    return _aten.avg_pool2d.default, [_image(chance), *arguments[: chance.randint(1, 6)]], {}


def _average_pool_backward(chance: random.Random) -> Call:
    arguments = [_image(chance), *_window(chance), chance.random() < 0.5, chance.random() < 0.5, None]
    pooled = _aten.avg_pool2d.default(*arguments)
    return _aten.avg_pool2d_backward.default, [_tensor(chance, list(pooled.shape)), *arguments], {}


def _adaptive_pool(chance: random.Random) -> Call:
    return _aten._adaptive_avg_pool2d.default, [_image(chance), _of_rank(chance, 2)], {}


def _adaptive_pool_backward(chance: random.Random) -> Call:
    image = _image(chance)
    gradient = _tensor(chance, [*image.shape[:-2], *_of_rank(chance, 2)])
    return _aten._adaptive_avg_pool2d_backward.default, [gradient, image], {}


def _batch_norm(chance: random.Random) -> Call:
    shape, dtype, training = (
        _of_rank(chance, chance.randint(2, 5)),
        chance.choice(DTYPES),
        chance.random() < 0.6,
    )
    weight, bias = (_maybe(chance, torch.ones(shape[1], dtype=dtype)) for _ in range(2))
    tracked = not training or chance.random() < 0.7
    means, variances = (torch.ones(shape[1], dtype=dtype) if tracked else None for _ in range(2))
    arguments = [_tensor(chance, shape, dtype), weight, bias, means, variances, training, 0.1, 1e-5]
    return _aten.native_batch_norm.default, arguments, {}


def _batch_norm_backward(chance: random.Random) -> Call:
    func, arguments, _ = _batch_norm(chance)
    given_tensor, weight, bias, means, variances, training = arguments[:6]
    _, mean, deviation = func(*arguments)
    mask = [chance.random() < 0.8, weight is not None, bias is not None]
    gradient = _tensor(chance, list(given_tensor.shape), given_tensor.dtype)
    tensors = [gradient, given_tensor, weight, means, variances, mean, deviation]
    return _aten.native_batch_norm_backward.default, [*tensors, training, 1e-5, mask], {}


def _layer_norm_backward(chance: random.Random) -> Call:
    shape = _of_rank(chance, chance.randint(1, 4))
    normalized = shape[chance.randrange(len(shape)) :]
    weight, bias, given_tensor = torch.ones(normalized), torch.ones(normalized), _tensor(chance, shape)
    _, mean, deviation = _aten.native_layer_norm.default(given_tensor, normalized, weight, bias, 1e-5)
    mask = [chance.random() < 0.8 for _ in range(3)]
    tensors = [_tensor(chance, shape), given_tensor, normalized, mean, deviation, weight, bias]
    return _aten.native_layer_norm_backward.default, [*tensors, mask], {}


def _attention_backward(chance: random.Random) -> Call:
    batch, heads, length, past, width = _of_rank(chance, 5)
    inside = chance.random() < 0.5

    def make(rows: int) -> torch.Tensor:
        return (
            torch.zeros(batch, rows, heads, width).transpose(1, 2)
            if inside
            else torch.zeros(batch, heads, rows, width)
        )

    tensors = [make(length), make(past), make(past)]
    made, sums = _aten._scaled_dot_product_flash_attention_for_cpu.default(*tensors)
    gradient = _tensor(chance, list(made.shape))
    func = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return func, [gradient, *tensors, made, sums, 0.0, False], {}


def _select_backward(chance: random.Random) -> Call:
    size = _of_rank(chance, chance.randint(1, 4))
    dimension = chance.randrange(-len(size), len(size))
    index = chance.randrange(-size[dimension], size[dimension])
    gradient = _tensor(chance, list(torch.zeros(size).select(dimension, index).shape))
    return _aten.select_backward.default, [gradient, size, dimension, index], {}


def _slice_backward(chance: random.Random) -> Call:
    size = _of_rank(chance, chance.randint(1, 4))
    dimension = chance.randrange(-len(size), len(size))
    where = [
        dimension,
        chance.randint(-5, 4),
        chance.choice([2**63 - 1, *range(-5, 5)]),
        chance.randint(1, 3),
    ]
    gradient = _tensor(chance, list(_aten.slice.Tensor(torch.zeros(size), *where).shape))
    return _aten.slice_backward.default, [gradient, size, *where], {}


def _alike(name: str, *numbers: Any) -> Callable[[random.Random], Call]:
    def call(chance: random.Random) -> Call:
        shape, dtype = _of_rank(chance, chance.choice([0, 1, 2, 3, 4, 4, 5])), chance.choice(DTYPES)
        first = laid_out_exactly(chance, shape).to(dtype)
        second = torch.empty_like(first) if chance.random() < 0.6 else laid_out(chance, shape, dtype)
        return getattr(_aten, name).default, [first, second.expand(shape), *numbers], {}

    return call


def _made(*names: str) -> Callable[[random.Random], Call]:
    def call(chance: random.Random) -> Call:
        name = chance.choice(names)
        size = [chance.randint(0, 3) for _ in range(chance.randint(0, 4))]
        dtype = chance.choice(
            [None, torch.float64, *([torch.int64, torch.bool] if "rand" not in name else [])]
        )
        arguments: list[Any] = [size, chance.choice([1.5, 2, True, 1j])] if "full" in name else [size]
        if name.startswith("new"):
            arguments.insert(
                0, laid_out(chance, [2, 3], chance.choice([torch.float32, torch.int64, torch.bool]))
            )
        packet = getattr(_aten, name)
        keywords: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
        keywords |= {"device": torch.device("cpu"), "pin_memory": False} if chance.random() < 0.5 else {}
        return packet.memory_format if name == "empty" else packet.default, arguments, keywords

    return call


CALLS: dict[str, Callable[[random.Random], Call]] = {
    "convolution": _convolution,
    "convolution backward": _convolution_backward,
    "max pool": _max_pool,
    "max pool backward": _max_pool_backward,
    "average pool": _average_pool,
    "average pool backward": _average_pool_backward,
    "adaptive pool": _adaptive_pool,
    "adaptive pool backward": _adaptive_pool_backward,
    "batch norm": _batch_norm,
    "batch norm backward": _batch_norm_backward,
    "layer norm backward": _layer_norm_backward,
    "attention backward": _attention_backward,
    "select backward": _select_backward,
    "slice backward": _slice_backward,
    "threshold backward": _alike("threshold_backward", 0),
    "leaky relu backward": _alike("leaky_relu_backward", 0.1, False),
    "hardtanh backward": _alike("hardtanh_backward", -1, 1),
    "hardswish backward": _alike("hardswish_backward"),
    "constant": _made("zeros", "ones", "empty"),
    "filled": _made("full"),
    "drawn": _made("rand", "randn"),
    "made like": _made("new_zeros", "new_ones", "new_empty", "new_full"),
}


def call_of(name: str, chance: random.Random) -> Call | None:
    """None where torch refuses the forward that the arguments would come from."""
    try:
        return CALLS[name](chance)
    except RuntimeError:
        return None


def compare(func: OpOverload, arguments: list[Any], keywords: dict[str, Any]) -> None:
    """The rule says what torch does, and leaves what torch refuses to torch."""
    try:
        func(*arguments, **keywords)
    except (RuntimeError, IndexError, TypeError, ValueError):
        assert layouts_by_rule(func, arguments, keywords) is None
    else:
        same_layout(func, arguments, keywords)


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_ops_are_laid_out_as_torch_does(name: str, seed: int) -> None:
    call = call_of(name, random.Random(seed))
    if call is not None:
        compare(*call)


@pytest.mark.parametrize("name", CALLS)
def test_rules_answer_for_many_calls(name: str) -> None:
    calls = [call_of(name, random.Random(seed)) for seed in range(200)]
    assert sum(call is not None and layouts_by_rule(*call) is not None for call in calls) > 25


@pytest.mark.parametrize("name", [name for name in CALLS if "backward" not in name])
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_rules_answer_for_no_call_that_torch_refuses(name: str, seed: int) -> None:
    """One number, list or tensor among the arguments is another than it should be. (Some backward kernels of
    torch check nothing.)"""
    chance = random.Random(seed)
    call = call_of(name, chance)
    if call is not None:
        func, arguments, keywords = call
        place = chance.randrange(len(arguments))
        arguments[place] = _spoiled(chance, arguments[place])
        compare(func, arguments, keywords)


def _spoiled(chance: random.Random, argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        other = torch.zeros([size + (chance.random() < 0.5) for size in argument.shape], dtype=argument.dtype)
        return chance.choice(
            [other, other.unsqueeze(0), argument.to(torch.float64), argument.to(torch.int64)]
        )
    if isinstance(argument, list) and argument and type(argument[0]) is int:
        at = chance.randrange(len(argument))
        return [*argument[:at], chance.choice([-1, 0, 2, 5]), *argument[at + 1 :]]
    return chance.choice([-1, 0, 2, 3]) if type(argument) is int else argument
