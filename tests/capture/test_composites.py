"""Functions that torch computes otherwise for tensor subclasses are recorded whole, where that is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from in_process import InProcessBackend, cell
from torch.autograd import forward_ad

from djinn_lab.capture.recorders import Recorder

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "svdvals": torch.linalg.svdvals,
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x @ x.mT),
    "nuclear norm": lambda x: torch.linalg.norm(x, "nuc"),
    "condition": torch.linalg.cond,
    "one matrix times many": lambda x: x.expand(7, 5, 5) @ x.unsqueeze(0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_eager_torch(name: str, recorder: Recorder) -> None:
    x = torch.randn(5, 5)
    with cell(recorder):
        y = FUNCTIONS[name](x.clone())
    assert torch.equal(y.cpu(), FUNCTIONS[name](x))


def test_a_rank_is_written_to_out(recorder: Recorder) -> None:
    rank = torch.zeros((), dtype=torch.int64)
    with cell(recorder):
        torch.linalg.matrix_rank(torch.eye(3) * 2, out=rank)
    assert rank == 3


@pytest.mark.parametrize("name", ["svdvals", "nuclear norm"])
def test_gradients_still_flow(name: str, recorder: Recorder) -> None:
    x = torch.randn(5, 5, requires_grad=True)
    FUNCTIONS[name](x).sum().backward()
    expected, x.grad = x.grad, None
    with cell(recorder):
        FUNCTIONS[name](x).sum().backward()
    assert expected is not None
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in its own import
def test_forward_mode_derivatives_still_flow(recorder: Recorder) -> None:
    x, direction = torch.randn(2, 4, 4)

    def derivative() -> torch.Tensor | None:
        with forward_ad.dual_level():
            found = torch.linalg.svdvals(forward_ad.make_dual(x, direction))
            return forward_ad.unpack_dual(found).tangent

    expected = derivative()
    with cell(recorder):
        found = derivative()
    assert expected is not None
    assert found is not None
    assert torch.allclose(found.cpu(), expected)


def test_a_tensor_saved_for_backward_must_not_be_given_as_out(recorder: Recorder) -> None:
    with cell(recorder):
        weight, saved = torch.ones(3, requires_grad=True), torch.ones(3) * 2
        product = weight * saved
        with torch.no_grad():
            torch.add(torch.ones(3), 1, out=saved)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


def test_ordinary_products_are_taken_apart_as_ever(recorder: Recorder, backend: InProcessBackend) -> None:
    with cell(recorder):
        y = torch.randn(2, 3, 4) @ torch.randn(4, 5)
    assert y.shape == (2, 3, 5)
    assert "aten.mm.default" in {
        template.op for program in backend.programs for template in program.templates
    }
