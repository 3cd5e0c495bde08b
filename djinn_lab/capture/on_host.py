"""Running an op on the host from inside a dispatched one.

There torch has switched off, for its thread, whatever stands above the dispatch mode; conjugation among it.
Kernels that use conjugates of their own would silently get the numbers unconjugated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload

from djinn_lab.capture.signature import Signature

_MATH_BITS = ("Conjugate", "Negative", "ZeroTensor")


def run_on_host(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One op on plain tensors."""
    if any(isinstance(item, torch.Tensor) and item.is_complex() for item in args):
        with math_bits():
            return func(*args, **kwargs)
    return func(*args, **kwargs)


@contextmanager
def math_bits() -> Iterator[None]:
    """Conjugate and negative tensors mean what they mean anywhere else."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in _MATH_BITS:
        excluded = excluded.remove(torch._C._dispatch_key_parse(name))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield


def restore_identity(
    signature: Signature, returned: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: set[int]
) -> Any:
    """In-place results are the very tensors that were passed; fresh results share no memory with the kept
    copies."""
    items = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    for index, item in enumerate(items):
        if not isinstance(item, torch.Tensor) or item.layout is not torch.strided:
            continue
        alias = signature.return_aliases[index] if index < len(signature.return_aliases) else None
        if alias is not None and alias[1]:
            items[index] = signature.argument(alias[0], args, kwargs)
        elif item.numel() and item.untyped_storage().data_ptr() in inputs:
            items[index] = item.clone()
    if isinstance(returned, (list, tuple)):
        return tuple(items) if isinstance(returned, tuple) else items
    return items[0]
