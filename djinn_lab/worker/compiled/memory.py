"""The memory that a tensor lies in, whatever its strides."""

from __future__ import annotations

import torch


def span_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory from a tensor's first element to its last, in one dimension."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    length = 1 + sum((size - 1) * stride for size, stride in sizes) if tensor.numel() else 0
    return tensor.as_strided((length,), (1,))


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, also where elements share memory."""
    return span_of(tensor).clone().as_strided(tensor.shape, tensor.stride())


def same_bytes(some: torch.Tensor, others: torch.Tensor) -> bool:
    """Return whether two tensors of one layout lie in equal memory."""
    return torch.equal(span_of(some).view(torch.uint8), span_of(others).view(torch.uint8))
