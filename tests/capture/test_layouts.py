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


_FACTOR, _PIVOTS = torch.linalg.lu_factor(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)) + 4)
_SIDES = torch.arange(12.0).view(3, 4)
INTO: dict[str, Callable[[torch.Tensor], object]] = {
    "cholesky_inverse": lambda out: torch.cholesky_inverse(torch.eye(3) + 1, out=out),
    "lu_solve": lambda out: torch.linalg.lu_solve(_FACTOR, _PIVOTS, _SIDES, out=out),
    "ldl_solve": lambda out: torch.linalg.ldl_solve(_FACTOR, _PIVOTS, _SIDES, out=out),
    "more rows than columns": lambda out: torch.linalg.lstsq(
        _SIDES.t(),
        _SIDES.t(),
        out=(out, torch.empty(0), torch.empty(0, dtype=torch.int64), torch.empty(0)),
        driver="gels",
    ),
}


@pytest.mark.native_recorder(reason="the Python recorder lays some of them out row-major")
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", INTO)
def test_an_empty_out_gets_the_columns_of_lapack(name: str, lazy: bool, recorder: Recorder) -> None:
    expected, given = torch.empty(0), torch.empty(0)
    INTO[name](expected)
    with cell(recorder):
        given = given.clone() if lazy else given
        INTO[name](given)
    assert given.stride() == expected.stride()
    assert torch.equal(given.cpu(), expected)


def test_angles_of_transposed_complex_numbers_are_row_major(recorder: Recorder) -> None:
    x = torch.randn(3, 2, dtype=torch.complex64).t()
    with cell(recorder):
        found = x.angle()
    assert found.stride() == x.angle().stride() == (3, 1)
    assert torch.equal(found.cpu(), x.angle())
