"""Functions that torch traces into graphs of its own while a cell is captured."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from in_process import InProcessBackend, cell
from torch.fx.experimental.proxy_tensor import make_fx

from djinn_lab.capture.recorders import Recorder, make_recorder
from djinn_lab.errors import CaptureError


class Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2).sum()


TRACERS: dict[str, Callable[[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "make_fx": lambda example: make_fx(Sum())(example),
    "export": lambda example: torch.export.export(Sum(), (example,)).module(),
    "trace": lambda example: torch.jit.trace(Sum(), example),
    "symbolic_trace": lambda example: torch.fx.symbolic_trace(Sum()),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", TRACERS)
def test_a_traced_function_computes_the_same(name: str, recorder: Recorder, recorder_kind: str) -> None:
    if recorder_kind == "python" and name != "symbolic_trace":
        with pytest.raises(CaptureError, match="C\\+\\+ recorder"), cell(recorder):
            TRACERS[name](torch.randn(3))
        return
    with cell(recorder):
        result = TRACERS[name](torch.randn(3))(torch.ones(3))
    assert torch.equal(result.cpu(), Sum()(torch.ones(3)))


def test_a_torch_that_is_older_than_the_tested_ones_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    with pytest.warns(UserWarning, match=r"torch 2\.12\.1\+cpu is older than 2\.13.*pip install"):
        make_recorder(InProcessBackend())


class Shifted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 2))
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x)) + self.shift


def _saved(scripted: Any) -> Any:
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    return torch.jit.load(io.BytesIO(file.getvalue()))


SCRIPTERS: dict[str, Callable[[torch.nn.Module, torch.Tensor], Any]] = {
    "traced": torch.jit.trace,
    "scripted": lambda module, example: torch.jit.script(module),
    "frozen": lambda module, example: torch.jit.freeze(torch.jit.trace(module.eval(), example)),
}


@pytest.mark.native_recorder(reason="the recorder in Python refuses to trace")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", SCRIPTERS)
def test_a_scripted_module_of_captured_tensors_is_saved(name: str, inside: bool, recorder: Recorder) -> None:
    with cell(recorder):
        module, x = Shifted(), torch.randn(4, 3)
        expected = module(x)
        scripted = SCRIPTERS[name](module, x)
        loaded = _saved(scripted) if inside else None
    loaded = loaded or _saved(scripted)
    assert torch.equal(loaded(x.cpu()), expected.cpu())


@pytest.mark.native_recorder(reason="the recorder in Python refuses to trace")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_constant_of_a_traced_function_is_saved(recorder: Recorder) -> None:
    with cell(recorder):
        kept, x = torch.ones(3) * 2, torch.randn(3)
        traced = torch.jit.trace(lambda y: y * kept, x)
        loaded = _saved(traced)
        expected = x * kept
    assert torch.equal(loaded(x.cpu()), expected.cpu())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_recorder_in_python_refuses_to_save_a_script_module(
    recorder: Recorder, recorder_kind: str
) -> None:
    if recorder_kind != "python":
        pytest.skip("the native recorder saves it")
    with cell(recorder):
        module = Shifted()
        module(torch.randn(4, 3))
        scripted = torch.jit.script(module)
    with pytest.raises(CaptureError, match="C\\+\\+ recorder"):
        _saved(scripted)
