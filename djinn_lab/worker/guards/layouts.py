"""How tensors lie in memory, for kernels that take no other strides than their own."""

from __future__ import annotations

from typing import Any

import torch

from djinn_lab.worker.guards.checks import CallArguments

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_OUTS = ("out", "P", "L", "U")


def side_by_side(tensor: Any, like: torch.Tensor | None) -> Any:
    """Return a tensor, or a copy of it, whose elements lie side by side: channels last where it has as many
    dimensions as ``like``, and that lies so."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    memory_format = torch.contiguous_format
    channels_last = _CHANNELS_LAST.get(tensor.dim())
    if channels_last is not None and like is not None and like.dim() == tensor.dim():
        memory_format = channels_last if like.is_contiguous(memory_format=channels_last) else memory_format
    return tensor.contiguous(memory_format=memory_format)


def outs_side_by_side(given: CallArguments) -> None:
    for name, out in _outs(given):
        given.expect(out.is_contiguous(), f"{name} is not contiguous")


def outs_of_matrices(given: CallArguments) -> None:
    """For kernels that step from matrix to matrix by the stride of the last batch dimension."""
    for name, out in _outs(given):
        shape, stride = out.shape[:-2], out.stride()[:-2]
        steps = zip(stride, shape[1:], stride[1:], strict=False)
        right = all(step == size * inner for step, size, inner in steps)
        given.expect(right, f"the matrices of {name} do not lie one behind the other")


def _outs(given: CallArguments) -> list[tuple[str, torch.Tensor]]:
    named = [(name, getattr(given, name)) for name in _OUTS]
    return [(name, out) for name, out in named if out is not None and out.numel()]
