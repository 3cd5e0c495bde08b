"""``tensor.data = other`` where one of the two is lazy.

Torch's own setter would copy the lazy tensor's empty memory into a plain tensor, which then crashes the
process when read; it asks neither a mode nor the subclass about it. So the attribute of :class:`torch.Tensor`
is wrapped once, when the first recorder is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from djinn_lab.capture.tensor import LazyTensor

capturing_recorders: list[Any] = []
"""Those whose cell runs now."""

_TORCHS: Any = torch._C.TensorBase.data
set_data_of_torch: Callable[[torch.Tensor, torch.Tensor], None] = _TORCHS.__set__


def _get(tensor: torch.Tensor) -> Any:
    return _TORCHS.__get__(tensor)


def _set(tensor: torch.Tensor, new: torch.Tensor) -> None:
    if type(new) is LazyTensor:
        new._value.storage.recorder.make_plain_share(tensor, new)
        return
    for recorder in capturing_recorders:
        if recorder.capturing:
            with recorder.lock:
                recorder.host.write_back("a tensor's data was replaced")  # it leaves its memory to others
    set_data_of_torch(tensor, new)


def guard_data_attribute() -> None:
    torch.Tensor.data = property(_get, _set)  # type: ignore[assignment]
