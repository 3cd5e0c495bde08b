"""Ops on lazy tensors that run here: everything outside a captured cell, and what the pool cannot run
inside one.

Inputs are fetched (once: the bytes are kept with the storage), the op runs on plain tensors, and what it
writes makes the host's bytes the current ones, to be sent again when a captured op next reads them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from djinn_lab.capture.arguments import map_tensors
from djinn_lab.capture.host.ops import math_bits, restore_identity
from djinn_lab.capture.python.pool_copies import PoolCopies
from djinn_lab.capture.python.tensor import LazyTensor, become
from djinn_lab.capture.shapes.signature import Signature, signature_of
from djinn_lab.capture.values import LazyValue
from djinn_lab.errors import CaptureError

_CAUSES = {"aten._local_scalar_dense.default": "item", "aten.equal.default": "equal"}


def run_locally(copies: PoolCopies, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one op on the host's copies. Results are plain tensors; a written lazy tensor is returned as
    itself."""
    signature = signature_of(func)
    if signature.mutates_layout:
        raise CaptureError(
            f"{signature.name} changes the shape of a lazy tensor in place.",
            "Use the variant without the trailing underscore, or fetch the tensor with .cpu() first.",
        )
    written = _written_values(signature, args, kwargs)
    lazies = _lazy_values(args, kwargs)
    cause = _CAUSES.get(signature.name, signature.name)
    copies.fetch_whole(written, cause)
    plains = dict(zip(map(id, lazies), copies.fetch(lazies, cause), strict=True))

    def plain(tensor: torch.Tensor) -> torch.Tensor:
        return plains[id(tensor._value)] if type(tensor) is LazyTensor else tensor

    with math_bits():
        returned = func(*map_tensors(plain, args), **map_tensors(plain, kwargs))
    for value in written:
        value.storage.written_on_host()
    for tensor in signature.written_tensors(args, kwargs):
        if type(tensor) is LazyTensor and plain(tensor).shape != tensor.shape:  # an out= that torch resized
            become(tensor, copies.adopt_copy(plain(tensor)))
    return restore_identity(
        signature, returned, args, kwargs, {t.untyped_storage().data_ptr() for t in plains.values()}
    )


def _written_values(
    signature: Signature, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[LazyValue]:
    return [t._value for t in signature.written_tensors(args, kwargs) if type(t) is LazyTensor]


def _lazy_values(args: tuple[object, ...], kwargs: dict[str, object]) -> list[LazyValue]:
    found: list[LazyValue] = []

    def visit(tensor: torch.Tensor) -> None:
        if type(tensor) is LazyTensor:
            found.append(tensor._value)

    map_tensors(visit, [*args, *kwargs.values()])
    return found
