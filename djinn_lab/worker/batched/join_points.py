"""Ops at which a run pauses, so that its driver may run them for several sessions at once."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from djinn_lab.srg.program import Scalar
from djinn_lab.worker.executor import Op
from djinn_lab.worker.templates import Call

Result = TypeVar("Result")


class JoinableCall:
    """A call that a run hands to its driver in place of calling it. The extension cannot call it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.op = call.op
        self.fresh = call.fresh
        self.writes: tuple[int, ...] = ()
        self.resizes = False
        self.appends = False
        self.own = call.own
        self.native: Op | None = None

    def __call__(self, tensors: Sequence[torch.Tensor | None], scalars: Sequence[Scalar]) -> Any:
        return self.call(tensors, scalars)


class JoinPoint(NamedTuple):
    """A run before a joinable op. ``node``: its place in the program."""

    node: int
    call: JoinableCall
    inputs: Sequence[torch.Tensor | None]
    scalars: Sequence[Scalar]

    def alone(self) -> Any:
        """Return the op's result for this run's own inputs."""
        return self.call(self.inputs, self.scalars)


class Returned(NamedTuple):
    """The answer to a join point: what the op returned, and this run's share of the seconds that it took."""

    result: Any
    seconds: float


Steps = Generator[JoinPoint, Returned, Result]
"""A run that pauses at its join points."""


def run_alone(steps: Steps[Result]) -> Result:
    """Run to the end. Of a run without joinable calls, which never pauses."""
    try:
        point = next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError(f"a run that is alone pauses before {point.call.op}")
