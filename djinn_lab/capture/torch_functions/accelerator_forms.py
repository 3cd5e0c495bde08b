"""What torch chooses for a GPU, in cells of pools whose devices are all accelerators.

Lazy tensors claim to be on the CPU, for which torch takes some functions apart that a GPU has as one kernel.
On a pool of CPUs that is right: its values are those of the notebook's CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _foreach_utils

from djinn_lab.capture.torch_functions.pool_devices import CUDA_RULES, computes_on_accelerators
from djinn_lab.capture.torch_functions.replaced import Wanted

_OPTIMIZER: Any = import_module("torch.optim.optimizer")
"""Not an attribute of torch.optim."""


def _with_lists(original: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """For the kinds of devices on which optimizers treat all parameters at once (``foreach``)."""

    @wraps(original)
    def kinds() -> list[str]:
        found = original()
        return [*found, "cpu"] if computes_on_accelerators() else found

    return kinds


def _dropout(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """In one kernel, whose mask takes a byte for each element."""

    @wraps(original)
    def dropout(
        input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        drops = training and not inplace and isinstance(p, (int, float)) and 0 < p < 1
        if drops and _is_real(input) and computes_on_accelerators():
            return torch.native_dropout(input, p, True)[0]
        return original(input, p, training, inplace)

    return dropout


def is_cast(tensor: torch.Tensor) -> bool:
    """Return whether autocast has what cuDNN and attention compute of a tensor computed in its dtype."""
    return torch.is_autocast_enabled(CUDA_RULES) and tensor.dtype is not torch.float64


def dtype_of_kernel(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype that these compute in."""
    return torch.get_autocast_dtype(CUDA_RULES) if is_cast(tensor) else tensor.dtype


def may_be_whole() -> bool:
    """Return whether a form of several ops may be recorded as one: nothing looks at the ops."""
    return (
        computes_on_accelerators()
        and not torch._C._is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _is_real(given: object) -> bool:
    return isinstance(given, torch.Tensor) and given.is_floating_point()


ACCELERATOR_FORMS: tuple[Wanted, ...] = (
    (_foreach_utils, "_get_foreach_kernels_supported_devices", _with_lists),
    (_OPTIMIZER, "_get_foreach_kernels_supported_devices", _with_lists),
    (torch.nn.functional, "dropout", _dropout),
)
