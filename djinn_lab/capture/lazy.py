"""Which tensors are lazy and which session they belong to, for either recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch

if TYPE_CHECKING:
    from djinn_lab.capture.recorders import Recorder


class Handle:
    """A key for one memory in weak dictionaries."""

    __slots__ = ("__weakref__",)


class LazyKind(NamedTuple):
    """How to recognise the tensors of one recorder, find their recorder, and name their memory. The last two
    take tensors of that kind only."""

    is_lazy: Callable[[object], bool]
    recorder_of: Callable[[Any], Any]
    memory_of: Callable[[Any], object]


_kinds: list[LazyKind] = []


def register(kind: LazyKind) -> None:
    _kinds.append(kind)


def is_lazy(item: object) -> TypeGuard[torch.Tensor]:
    """Return whether ``item`` is a tensor whose values are on the pool (or will be)."""
    return any(kind.is_lazy(item) for kind in _kinds)


def recorder_of(tensor: torch.Tensor) -> Recorder:
    """Return the recorder of a lazy tensor."""
    recorder: Recorder = _kind_of(tensor).recorder_of(tensor)
    return recorder


def memory_of(tensor: torch.Tensor) -> object:
    """Return the object that lazy tensors have in common if, and only if, they share memory; it lives as long
    as that."""
    return _kind_of(tensor).memory_of(tensor)


def _kind_of(tensor: torch.Tensor) -> LazyKind:
    for kind in _kinds:
        if kind.is_lazy(tensor):
            return kind
    raise AssertionError("not a lazy tensor")
