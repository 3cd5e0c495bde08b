"""Which tensors are lazy and which session they belong to, for either recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Handle:
    """Stands for a memory in weak dictionaries."""

    __slots__ = ("__weakref__",)


Answer = Callable[[Any], Any]
_kinds: list[tuple[Answer, Answer, Answer]] = []


def register(is_lazy: Answer, recorder_of: Answer, memory_of: Answer) -> None:
    """A kind of recorder says how its tensors are known, whose they are, and what names their memory."""
    _kinds.append((is_lazy, recorder_of, memory_of))


def is_lazy(item: object) -> bool:
    """Return whether ``item`` is a tensor whose values are on the pool (or will be)."""
    return any(known(item) for known, _, _ in _kinds)


def recorder_of(tensor: torch.Tensor) -> Any:
    """The recorder of a lazy tensor."""
    for known, find, _ in _kinds:
        if known(tensor):
            return find(tensor)
    raise AssertionError("not a lazy tensor")


def memory_of(tensor: torch.Tensor) -> Any:
    """The object that lazy tensors have in common if, and only if, they share memory; it lives as long as
    that."""
    for known, _, find in _kinds:
        if known(tensor):
            return find(tensor)
    raise AssertionError("not a lazy tensor")
