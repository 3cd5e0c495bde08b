"""Tensors that change their shape in place, plain and lazy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from in_process import cell

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.recorders import Recorder
from djinn_lab.errors import CaptureError

IN_PLACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t_": lambda x: x.t_(),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(0),
    "transpose_": lambda x: x.transpose_(0, 1),
    "resize_ to less": lambda x: x.resize_(2),
    "resize_ to as much": lambda x: x.resize_(3, 2),
    "resize_as_": lambda x: x.resize_as_(torch.zeros(6)),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("made", ["before", "within"])
def test_a_tensor_reshaped_in_place_is_itself_and_still_its_base(
    name: str, made: str, recorder: Recorder
) -> None:
    def changed(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        whole = x[:]
        result = IN_PLACE[name](x)
        result.add_(10)  # seen through the other view, too
        assert x.shape == result.shape
        return whole, result is x

    source = torch.arange(6.0).view(2, 3)
    expected, _ = changed(source.clone())
    x = source.clone()
    with cell(recorder):
        whole, same = changed(x if made == "before" else x * 1)
    assert same
    assert torch.equal(whole.cpu(), expected)


@pytest.mark.parametrize("lazy", [False, True])
def test_out_given_empty_becomes_the_result(lazy: bool, recorder: Recorder) -> None:
    x, out = torch.randn(4, 3), torch.empty(0)
    with cell(recorder):
        given = out.clone() if lazy else out
        returned = torch.add(x, 1, out=given)
        assert returned is given
        assert given.shape == (4, 3)
        assert is_lazy(given) or not lazy
        doubled = given * 2
    assert torch.equal(given.cpu(), x + 1)
    assert torch.equal(doubled.cpu(), (x + 1) * 2)


def test_outs_that_stay_empty_do_not_disturb_the_others(recorder: Recorder) -> None:
    outs = torch.ones(0, 0), torch.ones(0), torch.zeros(3, 3)
    with cell(recorder):
        torch.linalg.svd(torch.ones(0, 3), out=outs)
    assert torch.equal(outs[2], torch.eye(3))


def test_growing_memory_that_others_share_is_refused(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.ones(2, 2) * 3
        view = x.view(4)
        with pytest.raises(CaptureError, match=r"needs more memory(?s:.)*Make a new tensor"):
            x.resize_(5)
        view.add_(1)
    assert torch.equal(x.cpu(), torch.full((2, 2), 4.0))


@pytest.mark.native_recorder(reason="the Python recorder refuses to let memory grow")
def test_growing_memory_keeps_what_it_had(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.ones(2, 2) * 3
        x.resize_(5)
        x[4] = 1
    assert x.cpu().tolist() == [3, 3, 3, 3, 1]


def test_chunks_that_torch_calls_unsafe_share_memory(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.zeros(6) + 1
        torch.unsafe_chunk(x, 2)[1].add_(1)
    assert torch.equal(x.cpu(), torch.tensor([1.0, 1, 1, 2, 2, 2]))


def test_an_out_that_only_data_can_size_becomes_the_result(recorder: Recorder) -> None:
    x = torch.tensor([0.0, 2, 0, 3])
    with cell(recorder):
        out = torch.empty(0, dtype=torch.int64).clone()
        torch.nonzero(x.clone(), out=out)
        assert out.shape == (2, 1)
        doubled = out * 2
    assert doubled.cpu().tolist() == [[2], [6]]


@pytest.mark.native_recorder(reason="the Python recorder keeps the shape")
@pytest.mark.parametrize("lazy", [False, True])
def test_addbmm_in_place_takes_the_broadcast_shape(lazy: bool, recorder: Recorder) -> None:
    first, second = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    x = torch.ones(1)
    expected = x.clone().addbmm_(first, second)
    with cell(recorder):
        x = x.clone() if lazy else x
        assert x.addbmm_(first, second) is x
        assert x.shape == (3, 5)
        doubled = x * 2
    assert torch.equal(x.cpu(), expected)
    assert torch.equal(doubled.cpu(), expected * 2)


@pytest.mark.parametrize("lazy", [False, True])
def test_an_out_of_another_shape_is_refused_by_normal(lazy: bool, recorder: Recorder) -> None:
    out = torch.empty(0)
    with cell(recorder), pytest.raises(RuntimeError, match="must match the size"):
        torch.normal(torch.zeros(2, 3), 1.0, out=out.clone() if lazy else out)


@pytest.mark.native_recorder(reason="the Python recorder raises it at the cell's end")
def test_a_view_beyond_its_memory_is_refused_like_eager(recorder: Recorder) -> None:
    x = torch.ones(5)
    with cell(recorder):
        lazy = x.clone()
        assert lazy[:2].as_strided((2, 2), (1, 2), 1).shape == (2, 2)
        for made in (lazy, lazy[1:]):
            with pytest.raises(RuntimeError, match="out of bounds for storage of size 20"):
                made.as_strided((2, 2), (1, 2), 2)
            with pytest.raises(RuntimeError, match="out of bounds for storage of size 20"):
                made.as_strided_((2, 2), (1, 2), 2)
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 20"):
        lazy.as_strided((2, 2), (1, 2), 2)
