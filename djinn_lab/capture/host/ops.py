"""Which ops stay on the host although a cell is captured, and how they run there.

What stays:

- moving plain data about (indexing and collating batches, views): the bytes are here, and only the batch
  need travel;
- arithmetic on plain 0-dim tensors (an optimizer's step counter), or every step would cut;
- arithmetic on lazy 0-dim integers whose values were fetched, or each ``data[i : i + n]`` would cut;
- anything drawn from a generator object of the user's;
- writes to memory that a numpy array shows;
- whatever runs inside a :class:`torch.utils.data.DataLoader`.

Inside a dispatched op torch has switched off, for its thread, whatever stands above the dispatch mode;
conjugation among it. Kernels that use conjugates of their own would silently get the numbers unconjugated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload

from djinn_lab.capture.shapes.signature import Signature

_aten = torch.ops.aten
MOVES_DATA = {
    _aten.index.Tensor,
    _aten.index_select.default,
    _aten.gather.default,
    _aten.take.default,
    _aten.stack.default,
    _aten.cat.default,
    _aten.lift_fresh.default,
}
"""They stay where all they read is plain."""
SEES_ALL_MEMORY = {_aten.as_strided_copy.default, _aten.as_strided_scatter.default}
"""Ops that may look beyond their tensor, at memory which does not travel with it."""
MADE_HERE = {_aten.scalar_tensor.default, _aten._efficientzerotensor.default}
"""They make what has no memory worth sending: a scalar, or zeros that stand for no derivative."""
_FLOOR_DIVISIONS = {_aten.floor_divide.default, _aten.floor_divide.Scalar}
"""Torch does not tag them as pointwise."""
_MATH_BITS = ("Conjugate", "Negative", "ZeroTensor")


def stays_on_host(
    signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
) -> bool:
    if not signature.on_pool:
        return True
    if has_generator(signature, args, kwargs):
        return True
    if names_meta(args, kwargs) or any(tensor.is_meta for tensor in tensors):
        return True
    if not tensors:
        if signature.func in MADE_HERE:
            return True
        return bool(args) and signature.names[0] == "size" and len(args[0]) == 0
    if signature.is_view or signature.func in MOVES_DATA or signature.func in SEES_ALL_MEMORY:
        return True
    return all(tensor.dim() == 0 for tensor in tensors)


def run_on_known_integers(
    signature: Signature, tensors: Sequence[torch.Tensor], run: Callable[[], object]
) -> object | None:
    """Return what arithmetic makes of 0-dim integers, all known here, where that is integers again: those are
    the same on any device. None: the op is for the pool."""
    arithmetic = torch.Tag.pointwise in signature.func.tags or signature.func in _FLOOR_DIVISIONS
    if not arithmetic or signature.random or signature.written:
        return None
    if any(tensor.dim() or not _holds_integers(tensor) for tensor in tensors):
        return None
    returned = run()
    return returned if isinstance(returned, torch.Tensor) and _holds_integers(returned) else None


def _holds_integers(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def names_meta(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Return whether the call asks for a tensor on the meta device, which has a shape alone."""
    return any(isinstance(item, torch.device) and item.type == "meta" for item in (*args, *kwargs.values()))


def tensors_in(args: tuple[object, ...], kwargs: dict[str, object]) -> list[torch.Tensor]:
    """Return the tensors among the arguments, also in lists."""
    found: list[torch.Tensor] = []
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, torch.Tensor):
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            found.extend(item for item in argument if isinstance(item, torch.Tensor))
    return found


def has_generator(signature: Signature, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Return whether the call draws from a generator object of the user's."""
    return signature.generator and any(
        isinstance(item, torch.Generator) for item in (*args, *kwargs.values())
    )


def run_on_host(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one op on plain tensors."""
    if any(isinstance(item, torch.Tensor) and item.is_complex() for item in args):
        with math_bits():
            return func(*args, **kwargs)
    return func(*args, **kwargs)


@contextmanager
def math_bits() -> Iterator[None]:
    """Let conjugate and negative tensors inside mean what they mean anywhere else."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in _MATH_BITS:
        excluded = excluded.remove(torch._C._dispatch_key_parse(name))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield


def restore_identity(
    signature: Signature,
    returned: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    inputs: set[int],
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
