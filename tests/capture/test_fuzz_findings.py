"""What random programs showed, one small test for each cause."""

from __future__ import annotations

import pytest
import torch
from in_process import cell

from djinn_lab.capture.recorders import Recorder
from djinn_lab.errors import CaptureError

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
native_only = pytest.mark.native_recorder(reason="plain tensors are read and written otherwise there")


@native_only
def test_an_out_that_is_resized_leaves_the_other_inputs_ready(recorder: Recorder) -> None:
    def run(v: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out[:] = 2
        return torch.cumsum(v, 0, out=out)

    base = torch.arange(6.0)
    expected = run(base.clone()[:4], torch.zeros(9)[1:4])
    v, out = base.clone()[:4], torch.zeros(9)[1:4]
    with cell(recorder):
        result = run(v, out)
    assert torch.equal(result.cpu(), expected)


@native_only
@pytest.mark.parametrize("shape", [(2, 1, 3), (2,)])
def test_a_resized_out_is_never_silently_apart_from_what_shares_its_memory(
    shape: tuple[int, ...], recorder: Recorder
) -> None:
    with cell(recorder):
        x = torch.arange(3.0)
        view = x[:]
    given = torch.ones(shape)
    if given.numel() > 3:
        with pytest.raises(CaptureError, match="shares with others"):
            torch.cumsum(given, 0, out=view)
    else:
        torch.cumsum(given, 0, out=view)
        assert x.tolist() == [1.0, 2.0, 2.0]


@native_only
def test_a_written_plain_tensor_that_torch_gives_another_shape_keeps_what_was_written(
    recorder: Recorder,
) -> None:
    base = torch._neg_view(torch.arange(6.0).view(2, 3))
    with cell(recorder):
        turned = base.t()
        turned[[2, 0]] = 9.0
        torch.exp(torch.zeros(0), out=turned)  # its negative bit makes torch resize it without asking
    assert base.tolist() == [[9.0, -1.0, 9.0], [9.0, -4.0, 9.0]]


@native_only
@pytest.mark.parametrize("lazy", [False, True])
def test_set_keeps_the_negative_bit_of_the_tensor(lazy: bool, recorder: Recorder) -> None:
    def run(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        negative = torch._neg_view(x)
        negative.set_(source * 1)
        return negative

    given, source = torch.ones(3), torch.arange(3.0)
    expected = run(given.clone(), source)
    with cell(recorder):
        result = run(given.clone() if lazy else given, source)
    assert torch.equal(result.cpu(), expected)


@native_only
def test_an_out_that_shares_no_memory_may_grow_outside_a_cell(recorder: Recorder) -> None:
    with cell(recorder):
        out = torch.arange(3.0)
    torch.add(torch.zeros(6), 1, out=out)
    assert out.tolist() == [1.0] * 6
