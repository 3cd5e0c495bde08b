"""Conjugate and negative views share memory with their base, as they do in eager torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from in_process import cell

from djinn_lab.capture.recorders import Recorder

WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "into a conjugate": lambda x: x.conj().copy_(torch.ones(3, 2) * 2j),
    "in place on a conjugate": lambda x: x.conj().mul_(2j),
    "at an index of a conjugate": lambda x: x.conj().__setitem__(0, 3 + 1j),
    "into the imaginary part of a conjugate": lambda x: x.conj().imag.add_(1),
    "with out=": lambda x: torch.add(x, 1, out=x.conj()),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_write_through_a_conjugate_reaches_its_base(name: str, lazy: bool, recorder: Recorder) -> None:
    source = torch.randn(3, 2, dtype=torch.complex64)
    expected = source.clone()
    WRITES[name](expected)
    x = source.clone()
    with cell(recorder):
        x = x.clone() if lazy else x
        WRITES[name](x)
    assert torch.equal(x.cpu(), expected)


@pytest.mark.parametrize("lazy", [False, True])
def test_conjugates_multiply_like_eager_ones(lazy: bool, recorder: Recorder) -> None:
    x = torch.randn(5, 5, dtype=torch.complex64)
    conjugate = x.conj()
    with cell(recorder):
        y = x.clone().conj() if lazy else conjugate
        assert y.is_conj()
        product = y @ x
        imaginary = y.imag
        assert imaginary.is_neg()
    assert torch.equal(product.cpu(), conjugate @ x)
    assert torch.equal(y.cpu().resolve_conj(), conjugate.resolve_conj())
    assert torch.equal(imaginary.cpu().resolve_neg(), conjugate.imag.resolve_neg())


def test_a_conjugate_is_right_in_the_next_cell_after_a_write_outside(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.ones(3, dtype=torch.complex64) * 1j
        y = x.conj()
    x.mul_(2)  # here, on the host
    with cell(recorder):
        z = y + 0
    assert torch.equal(z.cpu(), torch.full((3,), -2j))


def test_kernels_on_the_host_use_conjugates_of_their_own(recorder: Recorder) -> None:
    a, b = torch.randn(2, 3, 4, 3, dtype=torch.complex64)
    expected = torch.linalg.lstsq(a, b, driver="gels").residuals
    outs = [
        torch.empty(0, dtype=torch.complex64),
        torch.empty(0),
        torch.empty(0, dtype=torch.int64),
        torch.empty(0),
    ]
    with cell(recorder):
        torch.linalg.lstsq(a, b, driver="gels", out=tuple(outs))
    assert torch.equal(outs[1], expected)


@pytest.mark.native_recorder(reason="the Python recorder keeps the bit as it was")
@pytest.mark.parametrize("given", ["right", "empty", "lazy"])
def test_an_out_that_torch_leaves_conjugate_is_conjugate(given: str, recorder: Recorder) -> None:
    factor, pivots = torch.linalg.lu_factor(torch.randn(3, 3, dtype=torch.complex64))
    sides = torch.randn(4, 3, dtype=torch.complex64)
    expected, out = (torch.ones(0 if given == "empty" else (4, 3), dtype=torch.complex64) for _ in range(2))
    torch.linalg.lu_solve(factor, pivots, sides, left=False, out=expected)
    with cell(recorder):
        out = out.clone() if given == "lazy" else out
        torch.linalg.lu_solve(factor, pivots, sides, left=False, out=out)
        doubled = out * 2
    assert out.is_conj()
    assert expected.is_conj()
    assert torch.equal(out.cpu(), expected)
    assert torch.equal(doubled.cpu(), expected * 2)
