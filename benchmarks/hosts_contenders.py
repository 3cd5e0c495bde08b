"""What is measured on several hosts, and what a plain actor of Ray does beside it."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import torch

from djinn_lab.client.session import Session
from djinn_lab.protocol.runtime_file import RuntimeInfo

NAME = "hosts"
LOCAL, PLAIN = "local engine", "plain Ray actor"
SIDE = 256


class Pool(NamedTuple):
    """A pool with a session of its own."""

    session: Session
    info: RuntimeInfo


def branch(factor: float, steps: int) -> torch.Tensor:
    """A chain of matrix products that reads nothing."""
    weight = torch.full((SIDE, SIDE), factor / SIDE)
    held = weight
    for _ in range(steps):
        held = held @ weight
    return held


class Holder:
    """What a plain actor does with tensors."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._held = torch.zeros(1)

    def one_op(self, value: float) -> float:
        return float((torch.ones(4) + value)[0])

    def first_of(self, array: Any) -> float:
        return float(torch.from_numpy(array.copy())[0])

    def full(self, count: int, value: float) -> Any:
        return torch.full((count,), value).numpy()

    def hold(self, array: Any) -> float:
        self._held = torch.from_numpy(array.copy())
        return float(self._held.sum())

    def give(self) -> Any:
        return self._held.numpy()

    def branch(self, factor: float, steps: int) -> tuple[float, float]:
        """Return the seconds that it took, and a number of it."""
        began_s = perf_counter()
        number = float(branch(factor, steps)[0, 0])
        return perf_counter() - began_s, number

    def products(self, count: int) -> None:
        """What a cell of :mod:`benchmarks.scale_sessions` does."""
        with torch.no_grad():
            self._held = torch.ones(16, 16)
            for _ in range(count):
                self._held = self._held @ self._held
