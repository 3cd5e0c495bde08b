"""The same statements in eager torch and under capture, with one random stream each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from in_process import InProcessBackend

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.recorders import capturing, make_recorder


class World:
    """The variables of one of the two runs, eager or captured."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.arrays: list[np.ndarray[Any, Any]] = []
        self.module = torch.nn.Linear(3, 3)
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1, momentum=0.9)


Statement = Callable[[World], object]


class BothWorlds:
    """Run each statement eagerly and captured, and assert the same answer or the same exception."""

    def __init__(self) -> None:
        self.backend = InProcessBackend()
        self.recorder = make_recorder(self.backend)
        self.eager, self.ours = World(), World()
        self._eager_stream = torch.default_generator.get_state()
        self._cell: ExitStack | None = None

    @property
    def in_cell(self) -> bool:
        return self._cell is not None

    def enter_cell(self) -> None:
        self._cell = ExitStack()
        self._cell.enter_context(capturing(self.recorder, "cell", __file__))

    def leave_cell(self) -> None:
        assert self._cell is not None
        self.recorder.finish("cell end")
        self._cell.close()
        self._cell = None

    def close(self) -> None:
        if self._cell is not None:
            self._cell.close()
            self._cell = None

    def run(self, statement: Statement) -> None:
        expected, eager_error = self._run_eagerly(statement)
        answer, error = _attempt(statement, self.ours)
        assert type(error) is type(eager_error), f"{error!r} where eager has {eager_error!r}"
        if isinstance(expected, torch.Tensor):
            assert isinstance(answer, torch.Tensor)
            self.same(answer, expected)
        elif isinstance(expected, np.ndarray):
            assert isinstance(answer, np.ndarray)
            np.testing.assert_array_equal(answer, expected)
        else:
            assert answer == expected or (answer != answer and expected != expected)

    def _run_eagerly(self, statement: Statement) -> tuple[object, Exception | None]:
        with self.recorder.paused_recording():
            kept = torch.default_generator.get_state()
            torch.default_generator.set_state(self._eager_stream)
            try:
                return _attempt(statement, self.eager)
            finally:
                self._eager_stream = torch.default_generator.get_state()
                torch.default_generator.set_state(kept)

    def compare(self, index: int) -> None:
        self.same(self.ours.tensors[index], self.eager.tensors[index])

    def compare_everything(self) -> None:
        for index in range(len(self.eager.tensors)):
            self.compare(index)
        for got, want in zip(self.ours.arrays, self.eager.arrays, strict=True):
            np.testing.assert_array_equal(got, want)
        for got, want in zip(self.ours.module.parameters(), self.eager.module.parameters(), strict=True):
            self.same(got, want)

    def same(self, got: torch.Tensor, want: torch.Tensor) -> None:
        with self.recorder.paused_recording():
            assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
            assert got.requires_grad == want.requires_grad
        seen = got.detach().cpu()
        if not is_lazy(got) and self.in_cell:
            seen = torch.tensor(got.tolist(), dtype=got.dtype).view(got.shape)  # as a user would look
        with self.recorder.paused_recording():
            torch.testing.assert_close(seen, want.detach(), rtol=0, atol=0, equal_nan=True)


def _attempt(statement: Statement, world: World) -> tuple[object, Exception | None]:
    try:
        return statement(world), None
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        return None, error
