"""``torch.manual_seed``, ``torch.get_rng_state`` and the like, while draws are recorded that the host does
not know of yet.

All of them end in one generator object that ``torch.random`` holds; a stand-in for it lets the recorded draws
happen first. Without it a state read in between is an old one (dropout under gradient checkpointing would not
repeat), and the same seed set twice is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from djinn_lab.capture.recorders import Recorder


class SettledGenerator:
    """Answers as the default generator does once every recorded draw has happened."""

    def __init__(self, recorder: Recorder, generator: torch.Generator) -> None:
        self._recorder = recorder
        self._generator = generator

    def _settle(self, cause: str) -> torch.Generator:
        with self._recorder.lock:
            self._recorder.segment.finish_draws(cause)
        return self._generator

    def get_state(self) -> torch.Tensor:
        return self._settle("the state of random numbers was read").get_state()

    def set_state(self, state: torch.Tensor) -> torch.Generator:
        return self._settle("a random seed was set").set_state(state)

    def manual_seed(self, seed: int) -> torch.Generator:
        return self._settle("a random seed was set").manual_seed(seed)

    def seed(self) -> int:
        return self._settle("a random seed was set").seed()

    def initial_seed(self) -> int:
        return self._generator.initial_seed()


@contextmanager
def settled_generator(recorder: Recorder) -> Iterator[None]:
    module: Any = torch.random
    generator = module.default_generator
    module.default_generator = SettledGenerator(recorder, generator)
    try:
        yield
    finally:
        module.default_generator = generator
