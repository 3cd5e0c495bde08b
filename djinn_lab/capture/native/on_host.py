"""Ops on lazy tensors that run here: everything outside a captured cell, and what the pool cannot run inside
one.

Inputs are fetched (once: the bytes are kept with the storage), the op runs on plain tensors, and what it
writes makes the host's bytes the current ones, to be sent again when a captured op next reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from djinn_lab.capture.arguments import map_tensors
from djinn_lab.capture.host.ops import math_bits, restore_identity, tensors_in
from djinn_lab.capture.native.extension import native
from djinn_lab.capture.native.memory import HostMemory, host_view
from djinn_lab.capture.refusals import refuse_resized_input
from djinn_lab.capture.shapes.signature import signature_of
from djinn_lab.capture.values import Layout
from djinn_lab.errors import CaptureError

_CAUSES = {"aten._local_scalar_dense.default": "item", "aten.equal.default": "equal"}


def _elements(tensor: torch.Tensor) -> int:
    memory: int = (
        native.storage_of(tensor).nbytes if native.is_lazy(tensor) else tensor.untyped_storage().nbytes()
    )
    return memory // tensor.itemsize


QUESTIONS: dict[OpOverload, Callable[[torch.Tensor, torch.Tensor], bool]] = {
    torch.ops.aten.is_same_size.default: lambda one, other: one.shape == other.shape,
    torch.ops.aten._has_same_storage_numel.default: lambda one, other: _elements(one) == _elements(other),
    torch.ops.aten._has_compatible_shallow_copy_type.default: lambda one, other: True,
}
"""Torch asks itself these; the answers need no values."""


def run(memory: HostMemory, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one op on the host's copies. Results are plain tensors; a written lazy tensor is returned as
    itself."""
    signature = signature_of(func)
    cause = _CAUSES.get(signature.name, signature.name)
    written = [t for t in signature.written_tensors(args, kwargs) if native.is_lazy(t)]
    shared = {id(t) for t in written if native.storage_users(t) > 1}  # before anything below holds them, too
    memory.fetch_whole([native.storage_of(tensor) for tensor in written], cause)
    lazies = [tensor for tensor in tensors_in(args, kwargs) if native.is_lazy(tensor)]
    values = [native.value_of(tensor) for tensor in lazies]
    plains = dict(zip(map(id, lazies), memory.fetch(values, cause), strict=True))
    for tensor in written:
        view = host_view(native.value_of(tensor))
        plains[id(tensor)] = view.clone() if signature.may_resize else view

    def plain(tensor: torch.Tensor) -> torch.Tensor:
        return plains.get(id(tensor), tensor)

    try:
        with math_bits():
            returned = func(*map_tensors(plain, args), **map_tensors(plain, kwargs))
    finally:
        for tensor in written:
            native.storage_of(tensor).written_on_host()
    for tensor in written if signature.may_resize else ():
        if plain(tensor).shape != tensor.shape:
            refuse_resized_input(signature.name, tensor, tensors_in(args, kwargs))
        _give_back(memory, tensor, plain(tensor), id(tensor) in shared)
    inputs = {tensor.untyped_storage().data_ptr() for tensor in plains.values()}
    return restore_identity(signature, returned, args, kwargs, inputs)


def _give_back(memory: HostMemory, tensor: torch.Tensor, result: torch.Tensor, shared: bool) -> None:
    """Write what a tensor became to it and to whatever shares its memory."""
    value = native.value_of(tensor)
    storage = value.storage
    if result.shape == tensor.shape and result.is_conj() == tensor.is_conj():
        host_view(value).copy_(result)
        return
    layout = Layout.of_tensor(result)
    if value.offset * layout.dtype.itemsize + layout.span_bytes <= storage.nbytes:
        value = native.Value(storage, layout, value.offset)
        native.look_at(tensor, value)
        host_view(value).copy_(result)
    elif shared or storage.exposure is not None:
        raise CaptureError(
            f"a tensor resized to {layout.shape} needs more memory, which it shares with others.",
            "Make a new tensor of that shape and copy into it.",
        )
    else:
        native.look_at(tensor, native.value_of(memory.adopt(result.detach(), "input")))
