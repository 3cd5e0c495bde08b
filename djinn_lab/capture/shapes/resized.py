"""What a change of shape in place makes of a layout, and what to say where it cannot be."""

from __future__ import annotations

from typing import Any

import torch

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.shapes.signature import Signature
from djinn_lab.capture.trees import map_tensors
from djinn_lab.capture.values import Layout
from djinn_lab.errors import CaptureError


def meta_of_lazy(tensor: torch.Tensor) -> torch.Tensor:
    """A lazy tensor's shape without its memory; any other tensor as it is."""
    if not is_lazy(tensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def resized_layout(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout:
    """Return the layout that ``resize_`` or ``resize_as_`` gives its first argument."""
    with paused():
        return Layout.of_tensor(signature.func(*map_tensors(meta_of_lazy, args), **kwargs))


def changed_shape(signature: Signature) -> CaptureError:
    return CaptureError(
        f"{signature.name} changes the shape of a lazy tensor in place.",
        "Use the variant without the trailing underscore, or fetch the tensor with .cpu() first.",
    )
