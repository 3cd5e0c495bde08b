"""Functions that torch computes in another way when it sees a tensor subclass.

Their C++ takes tensor subclasses for tensors that need a gradient, and another LAPACK routine with other
last bits; ``matrix_rank`` even leaves its ``out=`` as it was. Where no gradient is needed, such a call is
recorded as one op, which the worker runs on plain tensors, as eager torch does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from djinn_lab.capture.recorder import Recorder

_NORMS = (torch.linalg.matrix_norm, torch.linalg.norm, torch.norm, torch.Tensor.norm)
_SPECTRAL_ORDERS = ("nuc", 2, -2)
COMPOSITES = (
    *(torch.linalg.svdvals, torch.linalg.eigvals, torch.linalg.eigvalsh, torch.linalg.cond),
    *(torch.linalg.matrix_rank, torch.linalg.pinv, torch.nuclear_norm, *_NORMS),
)


def record_whole(recorder: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``func`` in such a way that it reaches the recorder before torch takes it apart."""
    if _needs_gradient(args, kwargs) or (func in _NORMS and not _is_spectral(args, kwargs)):
        return func(*args, **kwargs)
    with torch._C._AutoDispatchBelowAutograd():
        return func(*args, **kwargs)


def _needs_gradient(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves((args, kwargs))
    )


def _is_spectral(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(item in _SPECTRAL_ORDERS for item in (*args[1:2], kwargs.get("ord"), kwargs.get("p")))
