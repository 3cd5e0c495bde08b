"""Tensors that cannot be captured, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import _disable_current_modes

from djinn_lab.errors import CaptureError

_TRACING_MODES = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)
_NO_MODES = [None, None]


def has_other_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is sparse, nested or quantized: the pool has none of these."""
    return tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized


def refuse_unsupported(tensor: torch.Tensor) -> None:
    """Raise CaptureError for a tensor that no recorder takes."""
    if tensor.layout is not torch.strided:
        raise CaptureError(
            f"{tensor.layout} tensors cannot be captured.",
            "Run this cell with %%local, or use .to_dense() first.",
        )
    if tensor.is_nested:
        raise CaptureError(
            "nested tensors cannot be captured.",
            "Run this cell with %%local, or use torch.nested.to_padded_tensor() first.",
        )
    if type(tensor) is not torch.Tensor and not isinstance(tensor, (torch.nn.Parameter, torch.nn.Buffer)):
        raise CaptureError(
            f"tensors of the subclass {type(tensor).__qualname__} cannot be captured.",
            "Run this cell with %%local, or use .as_subclass(torch.Tensor) first.",
        )
    if tensor.device.type != "cpu":
        raise CaptureError(
            f"a tensor on {tensor.device}, which is this machine's own, cannot be captured.",
            "Move it to the pool in the cell with .cuda(), a module with model.cuda(), or make it there.",
        )


def from_own_device(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor from an accelerator of this machine's own to the host, on its way to the pool. Raises
    CaptureError where a gradient would have to come back."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise CaptureError(
            f"a gradient cannot flow from the pool back to {tensor.device}, which is this machine's own.",
            "Move the module with model.cuda() in the cell, or use .detach() first.",
        )
    with _disable_current_modes():
        return tensor.cpu()


def kernel_of_parts(operator: HigherOrderOperator) -> Callable[..., Any]:
    """Return what computes a higher-order operator, such as ``flex_attention``, by ops that can be recorded.
    Raises CaptureError where nothing does."""
    kernel = operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    if kernel is None:
        raise CaptureError(
            f"torch.ops.higher_order.{operator.name()} cannot be captured.",
            "Run this cell with %%local, or write it as ordinary torch ops.",
        )
    return kernel


def refuse_tracing() -> None:
    """Raise CaptureError while torch traces a function into a graph of its own: a mode that records is asked
    before the tracer, which would see constants."""
    modes = [torch._C._get_dispatch_mode(kind) for kind in _TRACING_MODES]
    if modes != _NO_MODES or torch._C._get_tracing_state() is not None:
        raise CaptureError(
            "the recorder in Python cannot record what make_fx, torch.export or torch.jit.trace traces.",
            "Trace in a cell with %%local, or build the C++ recorder: python -m djinn_lab.native build.",
        )


def refuse_resized_input(name: str, out: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Torch resizes ``out`` before its kernel reads the inputs: with one memory they would change, too."""
    if sum(torch._C._is_alias_of(out, tensor) for tensor in tensors) > 1:  # type: ignore[attr-defined]
        raise CaptureError(
            f"{name} would resize its out=, whose memory an input shares.",
            "Give it another out=, or a copy of the input, made with .clone().",
        )
