"""Tensors that cannot be captured, and what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from djinn_lab.errors import CaptureError


def refuse_unsupported(tensor: torch.Tensor) -> None:
    """Raise CaptureError for a tensor that no recorder takes."""
    if tensor.layout is not torch.strided:
        raise CaptureError(
            f"{tensor.layout} tensors cannot be captured.",
            "Run this cell with %%local, or use .to_dense() first.",
        )
    if type(tensor) is not torch.Tensor and not isinstance(tensor, (torch.nn.Parameter, torch.nn.Buffer)):
        raise CaptureError(
            f"tensors of the subclass {type(tensor).__qualname__} cannot be captured.",
            "Run this cell with %%local, or use .as_subclass(torch.Tensor) first.",
        )
    if tensor.device.type != "cpu":
        raise CaptureError(
            f"a tensor on {tensor.device} cannot be captured.",
            "Move it to the host with .cpu() before the cell.",
        )


def refuse_resized_input(name: str, out: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Torch resizes ``out`` before its kernel reads the inputs: with one memory they would change, too."""
    if sum(torch._C._is_alias_of(out, tensor) for tensor in tensors) > 1:  # type: ignore[attr-defined]
        raise CaptureError(
            f"{name} would resize its out=, whose memory an input shares.",
            "Give it another out=, or a copy of the input, made with .clone().",
        )
