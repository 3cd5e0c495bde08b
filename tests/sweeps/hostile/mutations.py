"""Arguments that no capture sends, made from those that it does."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

HUGE = (7, 100, 1000, 10**6, 2**31, 2**40, 2**62, -1, -2, -100, -(10**6), -(2**31), -(2**63))
_DTYPES = (torch.float64, torch.int64, torch.int32, torch.float16, torch.bool, torch.uint8, torch.complex64)
_FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 1e300)
_TEXTS = ("", "none", "mean", "sum", "max", "i" * 300, "ij,jk->ik")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def mutate(args: list[Any], kwargs: dict[str, Any], random: Random) -> None:
    """Change one or two of the arguments, and rather an index than another."""
    for _ in range(random.choice((1, 1, 1, 2))):
        places: list[int | str] = [*range(len(args)), *kwargs]
        if not places:
            return
        indices = [place for place, item in enumerate(args) if _is_index(item)]
        place = random.choice(indices) if indices and random.random() < 0.4 else random.choice(places)
        if isinstance(place, int):
            args[place] = _mutated(args[place], random)
        else:
            kwargs[place] = _mutated(kwargs[place], random)


def _is_index(item: Any) -> bool:
    items = item if isinstance(item, list | tuple) else (item,)
    return any(isinstance(one, torch.Tensor) and one.dtype in _INTEGERS for one in items)


def _mutated(value: Any, random: Random) -> Any:
    if random.random() < 0.04:
        return random.choice((None, [], 1, True, "none", 2.5))
    if isinstance(value, torch.Tensor):
        return _mutated_tensor(value, random)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((*HUGE, 0, 1, 2, value + 1, value - 1, value * 2))
    if isinstance(value, float):
        return random.choice(_FLOATS)
    if isinstance(value, str):
        return random.choice(_TEXTS)
    if isinstance(value, list | tuple):
        return _mutated_list(list(value), random)
    if isinstance(value, torch.dtype):
        return random.choice(_DTYPES)
    return value


def _mutated_list(items: list[Any], random: Random) -> list[Any]:
    if not items or random.random() < 0.3:
        return random.choice((items[:-1], items + items[-1:], [], items * 3))
    place = random.randrange(len(items))
    items[place] = _mutated(items[place], random)
    return items


def _mutated_tensor(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    if tensor.dtype in _INTEGERS and tensor.numel() and random.random() < 0.7:
        return _with_huge_values(tensor, random)
    dim = random.randrange(tensor.dim()) if tensor.dim() else 0
    chosen = random.randrange(12)
    if chosen < 3 and tensor.dim():
        return tensor.narrow(dim, 0, tensor.shape[dim] // 2).clone()
    if chosen == 3 and tensor.dim() and tensor.numel():
        return torch.cat([tensor, tensor], dim)
    if chosen == 4:
        return tensor.new_zeros(0)
    if chosen == 5:
        return tensor.reshape(-1)[:1].clone()
    if chosen == 6:
        return tensor.to(random.choice(_DTYPES))
    if chosen == 7 and tensor.dim() > 1:
        return tensor.transpose(0, -1)
    if chosen == 8:
        return (
            tensor.reshape(-1)[:1].reshape([1] * tensor.dim()).expand(tensor.shape)
            if tensor.numel()
            else tensor
        )
    if chosen == 9:
        return tensor.reshape(-1)[:1].sum()
    if chosen == 10:
        return tensor.unsqueeze(dim)
    if tensor.is_floating_point():
        return torch.full_like(tensor, random.choice(_FLOATS[:4]))
    return torch.ones_like(tensor)


def _with_huge_values(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    limits = torch.iinfo(tensor.dtype)
    value = min(max(random.choice(HUGE), limits.min), limits.max)
    changed = tensor.clone(memory_format=torch.contiguous_format)
    if random.random() < 0.5:
        return changed.fill_(value)
    changed.view(-1)[random.randrange(changed.numel())] = value
    return changed
