"""Which ops stay on the host although a cell is captured.

- moving plain data about (indexing and collating batches, views): the bytes are here, and only the batch
  need travel;
- arithmetic on plain 0-dim tensors (an optimizer's step counter), or every step would cut;
- anything drawn from a generator object of the user's;
- writes to memory that a numpy array shows;
- whatever runs inside a :class:`torch.utils.data.DataLoader`.
"""

from __future__ import annotations

from typing import Any

import torch

from djinn_lab.capture.host_tensors import HostTensors
from djinn_lab.capture.segment import Segment
from djinn_lab.capture.signature import Signature
from djinn_lab.capture.tensor import LazyTensor
from djinn_lab.errors import CaptureError

_aten = torch.ops.aten
_MOVES_DATA = {
    _aten.index.Tensor,
    _aten.index_select.default,
    _aten.gather.default,
    _aten.take.default,
    _aten.stack.default,
    _aten.cat.default,
    _aten.lift_fresh.default,
}
_SEES_ALL_MEMORY = {_aten.as_strided_copy.default, _aten.as_strided_scatter.default}
"""Ops that may look beyond their tensor, at memory which does not travel with it."""
_MAKES_SCALAR = {_aten.scalar_tensor.default}


class Placement:
    """``host_only``: whatever can stay does (set around data loaders)."""

    def __init__(self, host: HostTensors, segment: Segment) -> None:
        self._host = host
        self._segment = segment
        self.host_only = False

    def is_host(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True when the caller should run the op on the plain tensors as they are (they are then up to
        date)."""
        if args and type(args[0]) is LazyTensor:
            return False
        tensors = tensors_in(args, kwargs)
        if any(type(tensor) is LazyTensor for tensor in tensors):
            if signature.func in _SEES_ALL_MEMORY:
                raise CaptureError(
                    f"{signature.name} of a plain tensor and a lazy one may look beyond the plain one.",
                    "Make the first tensor lazy, with .clone() in the cell, or fetch the other with .cpu().",
                )
            return False
        written = list(signature.written_tensors(args, kwargs))
        stays = self.host_only or stays_on_host(signature, args, kwargs, tensors)
        stays = stays or any(self._host.must_write(tensor) for tensor in written)
        if not stays and not self._host.share_memory(written, tensors):
            return False
        if self._host.dirty and any(self._host.is_dirty(tensor) for tensor in tensors):
            self._host.write_back("a tensor written in this cell was read on the host")
        if signature.random:
            self._segment.finish_draws("random numbers were drawn on the host")
        for tensor in written:
            self._host.forget(tensor)
        return True


def stays_on_host(
    signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
) -> bool:
    if not signature.on_pool:
        return True
    if has_generator(signature, args, kwargs):
        return True
    if _names_meta(kwargs) or any(tensor.is_meta for tensor in tensors):
        return True
    if not tensors:
        if signature.func in _MAKES_SCALAR:
            return True
        return bool(args) and signature.names[0] == "size" and len(args[0]) == 0
    if signature.is_view or signature.func in _MOVES_DATA or signature.func in _SEES_ALL_MEMORY:
        return True
    return all(tensor.dim() == 0 for tensor in tensors)


def _names_meta(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return isinstance(device, torch.device) and device.type == "meta"


def tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments, also in lists."""
    found: list[torch.Tensor] = []
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, torch.Tensor):
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            found.extend(item for item in argument if isinstance(item, torch.Tensor))
    return found


def has_generator(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Does the call draw from a generator object of the user's?"""
    return signature.generator and any(
        isinstance(item, torch.Generator) for item in (*args, *kwargs.values())
    )
