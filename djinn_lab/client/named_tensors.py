"""The tensors that a namespace's variables hold, by the name a user would give them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

DEPTH_MAX = 6


def named_tensors(namespace: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor once, under its first name: variables, items of lists and dicts, fields of data classes,
    parameters, buffers and gradients of modules, state of optimizers. Names that begin with ``_`` are left
    out."""
    seen: set[int] = set()
    for name, value in list(namespace.items()):
        if not name.startswith("_"):
            yield from _inside(name, value, seen, 0)


def _inside(name: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if depth > DEPTH_MAX or id(value) in seen:
        return
    if isinstance(value, torch.Tensor):
        seen.add(id(value))
        yield name, value
        if value.is_leaf and value.grad is not None:
            yield from _inside(f"{name}.grad", value.grad, seen, depth + 1)
        return
    parts = _parts(name, value)
    if parts is not None:
        seen.add(id(value))
        for inner, part in parts:
            yield from _inside(inner, part, seen, depth + 1)


def _parts(name: str, value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, torch.nn.Module):
        held = [*value.named_parameters(), *value.named_buffers()]
        return [(f"{name}.{path}", tensor) for path, tensor in held]
    if isinstance(value, torch.optim.Optimizer):
        return [(f"{name}.state[{index}]", state) for index, state in enumerate(value.state.values())]
    if isinstance(value, Mapping):
        return [(f"{name}[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            (f"{name}.{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value)
        ]
    return None
