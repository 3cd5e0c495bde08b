"""Calls of overloads that the operator database never reaches, drawn from what they take."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch

from djinn_lab.srg.ops import Parameter, parameters

SHAPES = (
    (2, 3, 4, 4),
    (4, 4),
    (4,),
    (2, 3, 4),
    (3, 3),
    (1,),
    (),
    (0,),
    (2, 2, 3, 4, 4),
    (1, 4, 4),
    (6,),
    (4, 1),
)
TEXTS = ("", "mean", "sum", "none", "ij,jk->ik", "tanh", "max", "reflect", "left", "fro", "prod", "amax")
_DTYPES = (
    (torch.float32,) * 5 + (torch.int64,) * 2 + (torch.float64, torch.bool, torch.complex64, torch.int32)
)
_INDEX_NAMES = (
    "ind",
    "offset",
    "target",
    "batch_sizes",
    "length",
    "pivot",
    "bag",
    "sorter",
    "segment",
    "perm",
)


def drawn_call(op: str, random: Random) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of the kinds that an overload takes; half the time its floats have one shape."""
    shape = random.choice(SHAPES) if random.random() < 0.5 else None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in parameters(op):
        if parameter.keyword_only and parameter.has_default and random.random() < 0.5:
            continue
        value = _value(parameter, random, shape)
        if parameter.keyword_only:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return args, kwargs


def _value(parameter: Parameter, random: Random, shape: tuple[int, ...] | None) -> Any:
    if parameter.optional and random.random() < 0.4:
        return None
    if parameter.items is None:
        return _item(parameter, random, shape)
    count = parameter.items or random.choice((0, 1, 2, 2, 3))
    return [_item(parameter, random, shape) for _ in range(count)]


def _item(parameter: Parameter, random: Random, shape: tuple[int, ...] | None) -> Any:
    match parameter.kind:
        case "Tensor" | "Tensor?":
            return drawn_tensor(random, shape, any(name in parameter.name for name in _INDEX_NAMES))
        case "int":
            return random.choice((0, 1, 1, 2, 2, 3, 4, -1))
        case "number":
            return random.choice((0, 1, 2, -1, 0.5))
        case "float":
            return random.choice((0.0, 1.0, 0.5, -1.0, 1e-5))
        case "bool":
            return random.random() < 0.5
        case "str":
            return random.choice(TEXTS)
        case "dtype":
            return random.choice(_DTYPES)
        case "layout":
            return torch.strided
        case "device":
            return torch.device("cpu")
        case "memory_format":
            return random.choice((torch.contiguous_format, torch.preserve_format))
    return None


def drawn_tensor(random: Random, shape: tuple[int, ...] | None, is_index: bool) -> torch.Tensor:
    dtype = torch.int64 if is_index and random.random() < 0.8 else random.choice(_DTYPES)
    if shape is None or not dtype.is_floating_point:
        shape = random.choice(SHAPES)
    numbers = torch.arange(math.prod(shape)).reshape(shape)
    return (
        (numbers / 7 - 1).to(dtype)
        if dtype.is_floating_point or dtype.is_complex
        else (numbers % 4).to(dtype)
    )
