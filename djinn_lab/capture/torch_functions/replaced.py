"""Attributes of torch that are replaced: any for a while, and ``tensor.data`` for good.

Torch's own setter of ``tensor.data = other`` would copy a lazy tensor's empty memory into a plain tensor,
which then crashes the process when read; it asks neither a mode nor the subclass about it. So the attribute
of :class:`torch.Tensor` is wrapped once, and each kind of recorder is asked in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_MISSING = object()
_DATA_OF_TORCH: Any = torch._C.TensorBase.data
set_data_of_torch: Callable[[Any, torch.Tensor], None] = _DATA_OF_TORCH.__set__
_setters: list[Callable[[Any, torch.Tensor], bool]] = []


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """``owner.name`` is ``new`` inside; afterwards what it was, also where it was inherited."""
    with all_replaced([(owner, name, new)]):
        yield


@contextmanager
def all_replaced(replacements: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """The same for many, each (owner, name, new)."""
    before = [(owner, name, vars(owner).get(name, _MISSING)) for owner, name, _ in replacements]
    try:
        for owner, name, new in replacements:
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in reversed(before):
            if old is not _MISSING:
                setattr(owner, name, old)
            elif name in vars(owner):
                delattr(owner, name)


def _get_data(tensor: torch.Tensor) -> Any:
    return _DATA_OF_TORCH.__get__(tensor)


def _set_data(tensor: torch.Tensor, new: torch.Tensor) -> None:
    if not any(setter(tensor, new) for setter in _setters):
        set_data_of_torch(tensor, new)


def ask_when_data_is_set(setter: Callable[[Any, torch.Tensor], bool]) -> None:
    """Ask ``setter`` first from now on; it returns True when it has set the data itself."""
    if setter not in _setters:
        _setters.append(setter)
    torch.Tensor.data = property(_get_data, _set_data)  # type: ignore[assignment]
