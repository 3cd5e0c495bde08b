"""Functions that torch computes in another way when it sees a tensor subclass, or does not see shared memory.

Their C++ takes tensor subclasses for tensors that need a gradient, and another LAPACK routine with other
last bits; ``matrix_rank`` even leaves its ``out=`` as it was. Where no gradient is needed, such a call is
recorded as one op, which the worker runs on plain tensors, as eager torch does. So is every call with
``out=``, where torch's C++ asks tensors whether they share memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from djinn_lab.capture.python.recorder import PythonRecorder

_SPECTRAL_ORDERS = ("nuc", 2, -2)


def record_composite(
    recorder: PythonRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Record a call of one of :data:`COMPOSITES`."""
    if kwargs.get("out") is not None or COMPOSITES[func](args, kwargs):
        return record_whole(func, args, kwargs)
    return func(*args, **kwargs)


def record_whole(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``func`` in such a way that it reaches the recorder before torch takes it apart."""
    if _may_be_differentiated(args, kwargs):
        return func(*args, **kwargs)
    with torch._C._AutoDispatchBelowAutograd():
        returned = func(*args, **kwargs)
    out = pytree.tree_leaves(kwargs.get("out"))
    torch.autograd.graph.increment_version([leaf for leaf in out if isinstance(leaf, torch.Tensor)])
    return returned


def _may_be_differentiated(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    if forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    leaves = pytree.tree_leaves((args, kwargs)) if torch.is_grad_enabled() else ()
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _always(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    return True


def _is_spectral(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    return any(order in _SPECTRAL_ORDERS for order in (*args[1:2], kwargs.get("ord"), kwargs.get("p")))


def _is_batch_of_one(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """A product of batches of which one has a single matrix: one large product for a subclass, many small
    ones otherwise."""
    shapes = [item.shape for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
    return len(shapes) == 2 and all(len(shape) == 3 for shape in shapes) and shapes[0][0] != shapes[1][0]


COMPOSITES: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], bool]] = {
    **dict.fromkeys((torch.linalg.svdvals, torch.linalg.eigvals, torch.linalg.eigvalsh), _always),
    **dict.fromkeys((torch.linalg.cond, torch.linalg.matrix_rank, torch.linalg.pinv), _always),
    torch.nuclear_norm: _always,
    **dict.fromkeys(
        (torch.linalg.matrix_norm, torch.linalg.norm, torch.norm, torch.Tensor.norm), _is_spectral
    ),
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul), _is_batch_of_one),
    **dict.fromkeys((torch.Tensor.__matmul__, torch.Tensor.__rmatmul__), _is_batch_of_one),
}
"""Such functions, and for which arguments they are so."""
