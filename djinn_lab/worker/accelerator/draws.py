"""Random numbers on a GPU, so that one stream of a session holds for all devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from djinn_lab.worker.accelerator.device import generators

_SEED = "_djinn_seed"


def seeded(kernel: Callable[..., Any], generator: torch.Generator) -> Callable[..., Any]:
    """Return ``kernel`` with the GPU's generator seeded for each call from the session's random stream, which
    is the CPU generator's: what a session draws depends on its seed and on how many draws came before, not on
    what else ran on the device, and its state is one wherever it goes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        generator.manual_seed(draw_seed())
        return kernel(*args, **kwargs)

    return call


def draw_seed() -> int:
    """Return a seed for the device's generator, from the session's random stream."""
    return int(torch.empty((), dtype=torch.int64).random_())


@contextmanager
def seeded_with(seed: int, device: torch.device) -> Iterator[None]:
    """Let the device's generator begin at ``seed``. Where a kind of device draws from the CPU's, the
    session's stream continues afterwards where it was."""
    own = generators(device)
    if own is not None:
        own[device.index or 0].manual_seed(seed)
        yield
        return
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def note_seed(seed: int, device: torch.device) -> torch.Tensor:
    """Return a tensor on the device, which says what the seed was; read by :func:`noted_seed`."""
    noted = torch.full((), seed, dtype=torch.int64, device=device)
    setattr(noted, _SEED, seed)
    return noted


def noted_seed(noted: torch.Tensor) -> int:
    """Return the seed. Waits for the device only where the tensor was moved since."""
    known: int | None = getattr(noted, _SEED, None)
    return int(noted) if known is None else known
