"""What kernels leave in their results as the memory was before, cleared after the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from djinn_lab.worker.guards.checks import CallArguments

After = Callable[[CallArguments, torch.Tensor], None]


def zero_tail(given: CallArguments, returned: torch.Tensor) -> None:
    """For a result that is smaller than its memory, which was made for something else."""
    storage = returned.untyped_storage()
    if storage.nbytes() > returned.nbytes and returned.is_contiguous():
        whole = torch.empty(0, dtype=torch.uint8, device=returned.device).set_(storage)
        whole[returned.storage_offset() * returned.element_size() + returned.nbytes :].zero_()


def polynomial(given: CallArguments, returned: torch.Tensor) -> None:
    """A recurrence that does not begin where ``x`` is no number returns what no line has set."""
    unset = _is_nan(given.x) & (torch.as_tensor(given.n, device=returned.device) >= 2)
    returned.masked_fill_(unset, float("nan"))


def _is_nan(given: Any) -> torch.Tensor:
    return torch.isnan(torch.as_tensor(given))
