"""What ``.cuda()`` of a plain tensor is."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Adopts(Protocol):
    def adopt_copy(self, tensor: torch.Tensor) -> torch.Tensor: ...


class ToPool(torch.autograd.Function):
    """A copy on the pool; the gradient flows back unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, recorder: Adopts) -> torch.Tensor:
        return recorder.adopt_copy(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None
