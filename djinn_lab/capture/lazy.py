"""Which tensors are lazy and which session they belong to, for either recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

import torch

from djinn_lab.errors import ValueLost
from djinn_lab.srg.lost_values import RUN_AGAIN

if TYPE_CHECKING:
    from djinn_lab.capture.recorders import Recorder

Found = TypeVar("Found")


NO_LEAF = (
    "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
    "moment.  If you were attempting to deepcopy a module, this may be because of a torch.nn.utils."
    "weight_norm usage, see https://github.com/pytorch/pytorch/pull/103001"
)
"""What torch says of a deep copy of a result that has a graph."""


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


def find_recorder(tensor: torch.Tensor) -> Recorder | None:
    """Return the recorder of a lazy tensor; None where it is gone with its session."""
    recorder: Recorder | None = _kind_of(tensor).recorder_of(tensor)
    return recorder


def recorder_of(tensor: torch.Tensor) -> Recorder:
    """Return the recorder of a lazy tensor. Raises ValueLost where it is gone with its session."""
    return present(find_recorder(tensor))


def present(recorder: Found | None) -> Found:
    """Return what a tensor's weak reference to its recorder leads to. Raises ValueLost where that is gone."""
    if recorder is None:
        raise ValueLost("this tensor's session is over", RUN_AGAIN)
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
