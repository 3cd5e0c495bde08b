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
