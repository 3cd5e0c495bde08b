"""Functions that torch traces into graphs of its own while a cell is captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from in_process import cell
from torch.fx.experimental.proxy_tensor import make_fx

from djinn_lab.capture.recorders import Recorder
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
