"""Where each node says that it was recorded: module path, root call, line and phase."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from in_process import InProcessBackend
from torch import nn

from djinn_lab.capture.recorders import Recorder, capturing
from djinn_lab.srg.program import Scope


@contextmanager
def cell(recorder: Recorder) -> Iterator[None]:
    """A cell whose code is this file."""
    with capturing(recorder, "cell", __file__):
        yield
        recorder.finish("cell end")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).cos()


def _scopes(backend: InProcessBackend, op: str) -> list[Scope]:
    return [
        program.scopes[node.scope]
        for program in backend.programs
        for node in program.nodes
        if program.templates[node.template].op.split(".")[1] == op
    ]


def _line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def _sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


SINE = inspect.getsourcelines(_sine)[1] + 1


def test_nodes_name_the_line_of_the_innermost_frame_of_the_cell(
    recorder: Recorder, backend: InProcessBackend
) -> None:
    def lazily(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(2):
            lines.append(_line() + 1)
            yield x.sin()

    lines: list[int] = []
    with cell(recorder):
        x = torch.ones(3) * 2
        lines.append(_line() + 1)
        kept = [x.sin()]
        for _ in range(2):
            lines.append(_line() + 1)
            kept.append(x.sin())
        kept.append(_sine(x))
        kept += map(_sine, [x])
        lines += [SINE, SINE]
        kept += lazily(x)
        lines.append(_line() + 3)
        kept.append(
            sum(
                [x.sin()],
                start=x,
            )
        )
    assert [scope.line for scope in _scopes(backend, "sin")] == lines
    assert {scope.cell for scope in _scopes(backend, "sin")} == {"cell"}


def test_line_of_an_op_that_another_file_calls_is_where_the_cell_called_it(
    recorder: Recorder, backend: InProcessBackend
) -> None:
    with cell(recorder):
        x = torch.ones(3) * 2
        kept, line = torch.nn.functional.softsign(x), _line()
        other, below = eval("x.sin()"), _line()
    assert [scope.line for scope in _scopes(backend, "abs")] == [line]
    assert [scope.line for scope in _scopes(backend, "sin")] == [below]
    assert kept.shape == other.shape


def test_nodes_of_a_model_name_module_call_line_and_phase(
    recorder: Recorder, backend: InProcessBackend
) -> None:
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 3)
    with cell(recorder):
        loss, forward = model(x).sum(), _line()
        backward, _ = _line(), loss.backward()
        step, _ = _line(), optimizer.step()
        again = model(x)
    (linear, _), (tanh, _), (cos, _) = (_scopes(backend, op) for op in ("addmm", "tanh", "cos"))
    found = [(scope.module.rpartition(".")[2], scope.line, scope.phase) for scope in (linear, tanh, cos)]
    assert [line for _, line, _ in found] == [forward] * 3
    assert linear.module.endswith("inner.0")
    assert tanh.module.endswith("inner.1")
    assert not cos.module.endswith("inner")
    assert {phase for *_, phase in found} == {"forward"}
    (behind,) = _scopes(backend, "tanh_backward")
    assert (behind.line, behind.phase) == (backward, "backward")
    assert {scope.phase for scope in _scopes(backend, "_foreach_add_")} <= {"optimizer"}
    assert step in {scope.line for program in backend.programs for scope in program.scopes}
    calls = [scope.call for scope in _scopes(backend, "addmm")]
    assert calls[0] != calls[1]
    assert again.shape == (2, 3)
