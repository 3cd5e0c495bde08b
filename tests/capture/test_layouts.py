"""Results lie in memory as eager torch lays them, also where inputs are not row-major: the order of a later
sum, and so its last bit, depends on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from in_process import cell
from torch.nn import functional as F

from djinn_lab.capture.recorders import Recorder

_aten = torch.ops.aten
CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "softplus": lambda grad, x: _aten.softplus_backward(grad, x, 1, 20),
    "elu": lambda grad, x: _aten.elu_backward(grad, 1.0, 1.0, 1.0, False, x),
    "hardtanh": lambda grad, x: _aten.hardtanh_backward(grad, x, -1, 1),
    "hardswish": lambda grad, x: _aten.hardswish_backward(grad, x),
    "silu": lambda grad, x: _aten.silu_backward(grad, x),
    "mse": lambda grad, x: _aten.mse_loss_backward(grad, x, x, 0),
    "smooth l1": lambda grad, x: _aten.smooth_l1_loss_backward(grad, x, x, 0, 1.0),
    "log sigmoid": lambda grad, x: F.logsigmoid(grad) + x,
    "floor division": lambda grad, x: torch.floor_divide(grad, x),
    "xlogy": lambda grad, x: torch.xlogy(grad, x.abs()),
    "isin": lambda grad, x: torch.isin(grad, x),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_laid_out_as_eager_lays_them(name: str, swapped: bool, recorder: Recorder) -> None:
    rows, columns = torch.randn(2, 7, 4), torch.randn(2, 4, 7).transpose(1, 2)
    inputs = (columns, rows) if swapped else (rows, columns)
    expected = CALLS[name](*inputs)
    with cell(recorder):
        found = CALLS[name](*inputs)
        total = found.sum((0, 1))
    assert found.stride() == expected.stride()
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(total.cpu(), expected.sum((0, 1)))
