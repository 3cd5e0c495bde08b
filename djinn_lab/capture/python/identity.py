"""Exchanging what a tensor object is, while all references to it stay valid."""

from __future__ import annotations

from typing import Any

import torch

from djinn_lab.errors import CaptureError


def is_in_a_graph(tensor: torch.Tensor) -> bool:
    """Return whether a backward graph, or anything else, holds the inside of ``tensor``."""
    count: int = tensor._use_count()  # type: ignore[attr-defined]
    return count > 1


def take_over(tensor: torch.Tensor, fresh: torch.Tensor) -> bool:
    """Make the object ``tensor`` be what ``fresh`` is; what autograd and users hung on it stays on it. False,
    and nothing changes, when torch refuses because something else holds its inside.

    Backward through a graph that was built on ``tensor`` before raises from then on."""
    if tensor.requires_grad:
        fresh.requires_grad_()
    if getattr(tensor, "_is_param", False) or isinstance(tensor, torch.nn.Parameter):
        fresh._is_param = True
    if tensor.is_leaf and tensor.grad is not None and tensor.grad.shape == fresh.shape:
        fresh.grad = tensor.grad
    fresh._backward_hooks = tensor._backward_hooks
    fresh._post_accumulate_grad_hooks = tensor._post_accumulate_grad_hooks
    if tensor.requires_grad and tensor.is_leaf and is_in_a_graph(tensor):
        torch.autograd.graph.get_gradient_edge(tensor).node.register_prehook(_refuse)
    try:
        torch.utils.swap_tensors(tensor, fresh)
    except RuntimeError:
        return False
    return True


def _refuse(gradients: Any) -> Any:
    raise CaptureError(
        "backward goes through a graph that was built before a cell put these parameters on the pool.",
        "Run the forward pass again in this cell.",
    )
