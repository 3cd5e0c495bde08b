"""``tensor.data = other`` where one of the two is lazy.

Torch's own setter would copy the lazy tensor's empty memory into a plain tensor, which then crashes the
process when read; it asks neither a mode nor the subclass about it. So the attribute of :class:`torch.Tensor`
is wrapped once, and each kind of recorder is asked in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_TORCHS: Any = torch._C.TensorBase.data
set_data_of_torch: Callable[[Any, torch.Tensor], None] = _TORCHS.__set__
_setters: list[Callable[[Any, torch.Tensor], bool]] = []


def _get(tensor: torch.Tensor) -> Any:
    return _TORCHS.__get__(tensor)


def _set(tensor: torch.Tensor, new: torch.Tensor) -> None:
    if not any(setter(tensor, new) for setter in _setters):
        set_data_of_torch(tensor, new)


def ask_when_data_is_set(setter: Callable[[Any, torch.Tensor], bool]) -> None:
    """Ask ``setter`` first from now on; it returns True when it has set the data itself."""
    if setter not in _setters:
        _setters.append(setter)
    torch.Tensor.data = property(_get, _set)  # type: ignore[assignment]
