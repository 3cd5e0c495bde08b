"""Random numbers on a GPU, so that one stream of a session holds for all devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def seeded(kernel: Callable[..., Any], generator: torch.Generator) -> Callable[..., Any]:
    """Return ``kernel`` with the GPU's generator seeded for each call from the session's random stream, which
    is the CPU generator's: what a session draws depends on its seed and on how many draws came before, not on
    what else ran on the device, and its state is one wherever it goes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        return kernel(*args, **kwargs)

    return call
