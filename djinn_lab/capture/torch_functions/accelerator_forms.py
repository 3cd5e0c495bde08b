"""What torch chooses for a GPU, in cells of pools whose devices are all accelerators.

Lazy tensors claim to be on the CPU, for which torch takes some functions apart that a GPU has as one kernel.
On a pool of CPUs that is right: its values are those of the notebook's CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch.utils import _foreach_utils

from djinn_lab.capture.torch_functions.pool_devices import computes_on_accelerators
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


def _is_real(given: object) -> bool:
    return isinstance(given, torch.Tensor) and given.is_floating_point()


ACCELERATOR_FORMS: tuple[Wanted, ...] = (
    (_foreach_utils, "_get_foreach_kernels_supported_devices", _with_lists),
    (_OPTIMIZER, "_get_foreach_kernels_supported_devices", _with_lists),
    (torch.nn.functional, "dropout", _dropout),
)
