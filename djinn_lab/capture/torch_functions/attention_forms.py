"""Attention with dropout as one op, where all devices of the pool are accelerators.

The CPU's kernel has no dropout, so that torch takes it apart, and keeps a probability for each query and key.
A GPU has kernels for the whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from djinn_lab.capture.torch_functions.accelerator_forms import dtype_of_kernel, may_be_whole
from djinn_lab.capture.torch_functions.replaced import Wanted

_WHOLE = torch.ops.aten._scaled_dot_product_efficient_attention.default
"""Torch's op for a GPU whose gradient has the same dropout, whichever kernel the worker computes it by."""


def _with_dropout(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(original)
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        drops = isinstance(dropout_p, (int, float)) and 0 < dropout_p < 1
        if not (drops and _is_recorded_whole(query, key, value, attn_mask, is_causal, options)):
            return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
        query, key, value = (one.to(dtype_of_kernel(one)) for one in (query, key, value))
        bias = None if attn_mask is None else _as_bias(attn_mask, query.dtype)
        scale = options.get("scale")
        made: Tensor = _WHOLE(query, key, value, bias, True, float(dropout_p), is_causal, scale=scale)[0]
        return made

    return attention


def _is_recorded_whole(
    query: Any, key: Any, value: Any, mask: Any, is_causal: bool, options: dict[str, Any]
) -> bool:
    tensors = (query, key, value)
    return (
        may_be_whole()
        and options.keys() <= {"scale", "enable_gqa"}
        and all(isinstance(one, Tensor) and one.is_floating_point() for one in tensors)
        and all(one.device.type == "cpu" and not one.is_nested for one in tensors)
        and (mask is None or (isinstance(mask, Tensor) and not is_causal))
        and _fits(query, key, value, mask, bool(options.get("enable_gqa")))
    )


def _fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, grouped: bool) -> bool:
    """Return whether all have the shapes of a batch of heads: torch says of others what is wrong, or takes
    them apart."""
    if not all(one.dim() == 4 and one.numel() for one in (query, key, value)):
        return False
    heads, shared = query.size(1), key.size(1)
    scores = (query.size(0), heads, query.size(2), key.size(2))
    return (
        query.size(0) == key.size(0) == value.size(0)
        and value.size(1) == shared
        and (heads % shared == 0 if grouped else heads == shared)
        and query.size(3) == key.size(3)
        and key.size(2) == value.size(2)
        and query.dtype == key.dtype == value.dtype
        and (mask is None or (_is_broadcast(mask, scores) and mask.dtype in (torch.bool, query.dtype)))
    )


def _is_broadcast(mask: Tensor, scores: tuple[int, ...]) -> bool:
    if not 2 <= mask.dim() <= 4:
        return False
    return all(mine in (1, size) for mine, size in zip(mask.shape[::-1], scores[::-1], strict=False))


def _as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to the scores; it has four dimensions."""
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, float("-inf"))
    mask = mask.to(dtype)
    return mask[(None,) * (4 - mask.dim())]


ATTENTION_FORMS: tuple[Wanted, ...] = ((torch.nn.functional, "scaled_dot_product_attention", _with_dropout),)
