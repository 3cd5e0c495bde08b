"""Where an op comes from: module path, root call, cell line and phase."""

from __future__ import annotations

import sys
from types import FrameType

import torch

from djinn_lab.srg.program import Phase, Scope

_graph_task = torch._C._current_graph_task_id


class ScopeTracker:
    """Kept up to date by the module and optimizer hooks; asked once per op. ``begins_call``: the next op is
    the first of a root module's call. ``calls``: how many began since :meth:`clear`."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self._index: dict[tuple[str, int, int, Phase], int] = {}
        self._modules: list[str] = []
        self._module_line = 0
        self._optimizer_line: int | None = None
        self._backward: tuple[int, int] = (-1, 0)
        self._file = ""
        self._cell = ""
        self._calls = 0
        self._root_call = 0
        self.begins_call = False
        self.calls = 0

    def enter_cell(self, cell: str, file: str) -> None:
        self._cell = cell
        self._file = file
        self._modules.clear()
        self._optimizer_line = None

    def clear(self) -> None:
        """Start a new table (the old one went out with its program)."""
        self.scopes = []
        self._index = {}
        self.calls = 0

    def line(self) -> int:
        """Return the line of the cell that is running now, or 0 outside of one."""
        if not self._file:
            return 0
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self._file:
                return frame.f_lineno
            frame = frame.f_back
        return 0

    def push_module(self, path: str) -> None:
        if not self._modules:
            self._calls += 1
            self._root_call = self._calls
            self._module_line = self.line()
            self.begins_call = True
            self.calls += 1
        self._modules.append(path)

    def pop_module(self) -> None:
        if self._modules:
            self._modules.pop()
        if not self._modules:
            self._root_call = 0

    @property
    def depth(self) -> int:
        return len(self._modules)

    def begin_optimizer(self) -> None:
        self._optimizer_line = self.line()

    def end_optimizer(self) -> None:
        self._optimizer_line = None

    def current(self) -> int:
        """Return the index into :attr:`scopes` for an op recorded now."""
        self.begins_call = False
        task = _graph_task()
        phase: Phase
        if task != -1:
            if self._backward[0] != task:
                self._backward = (task, self.line())
            phase, line = "backward", self._backward[1]
        elif self._optimizer_line is not None:
            phase, line = "optimizer", self._optimizer_line
        elif self._modules:
            phase, line = "forward", self._module_line
        else:
            phase, line = "other", self.line()
        module = self._modules[-1] if self._modules else ""
        key = (module, self._root_call, line, phase)
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = len(self.scopes)
            self.scopes.append(Scope(module, self._root_call, self._cell, line, phase))
        return index
