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
def test_set_to_memory_on_the_host_keeps_the_negative_bit_of_the_tensor(recorder: Recorder) -> None:
    memory = torch.arange(3.0)
    with cell(recorder):
        negative = torch._neg_view(torch.ones(3))
        negative.set_(memory[1:])
    assert negative.tolist() == [-1.0, -2.0]
    with cell(recorder):
        memory.fill_(5.0)
    assert negative.tolist() == [-5.0, -5.0]


@native_only
def test_an_out_that_shares_no_memory_may_grow_outside_a_cell(recorder: Recorder) -> None:
    with cell(recorder):
        out = torch.arange(3.0)
    torch.add(torch.zeros(6), 1, out=out)
    assert out.tolist() == [1.0] * 6


@native_only
@pytest.mark.parametrize("shared", [False, True])
def test_an_out_that_would_be_resized_while_an_input_shares_its_memory_is_refused(
    shared: bool, recorder: Recorder
) -> None:
    with cell(recorder):
        x = torch.arange(6.0).view(2, 3) + 1
        out = x[:] if shared else x
        with pytest.raises(CaptureError, match="whose memory an input shares"):
            torch.sum(x, 0, out=out)
    assert x.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_a_resized_out_gets_the_strides_that_the_kernel_gives_it(recorder: Recorder) -> None:
    x, out = torch.arange(6.0).view(2, 1, 3).transpose(0, 2), torch.zeros(8)
    with cell(recorder):
        torch.neg(x, out=out)
    assert out.stride() == torch.neg(x, out=torch.zeros(8)).stride()
    assert torch.equal(out.cpu(), -x)


@native_only
def test_empty_out_tensor_resized_keeps_its_storage_offset(recorder: Recorder) -> None:
    with cell(recorder):
        base = torch.zeros(2, 0, 3) + 1
        out = base.unbind(2)[-1]
        torch.neg(torch.zeros(2, 0, 1, 3), out=out)
    assert (out.shape, out.storage_offset()) == ((2, 0, 1, 3), 2)


@pytest.mark.parametrize("exponent", [True, 1])
def test_type_promotion_is_the_kernels_own(exponent: int, recorder: Recorder) -> None:
    x = torch.tensor([True, False])
    with cell(recorder):
        result = x.logical_or(x).pow(exponent)
    expected = x.pow(exponent)
    assert (result.dtype, result.tolist()) == (expected.dtype, expected.tolist())


@pytest.mark.parametrize("op", ["fmod", "fmod_", "remainder_"])
def test_zeros_that_stand_in_for_data_are_never_divided_by(op: str, recorder: Recorder) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(x[0], op)(x[1])
        return result

    x = torch.tensor([[7, 3], [5, 2]], dtype=torch.uint8)
    expected = run(x.t().clone())
    with cell(recorder):
        result = run(x.t().clone())
    assert torch.equal(result.cpu(), expected)


def test_bytes_of_a_bool_are_fetched_as_they_are(recorder: Recorder) -> None:
    x = torch.tensor([False, False, True, True])
    with cell(recorder):
        flags = x.logical_or(x)
    with cell(recorder):
        number = flags.view(torch.float32).fill_(1)
    assert flags.tolist() == [False, False, True, True]
    assert number.tolist() == [1.0]


@native_only
def test_memory_that_its_holders_let_grow_is_read_as_far_as_it_was_lazy(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.zeros(0, 3) + 1
    torch.zeros(()).set_(x.untyped_storage(), 0, (1,))
    with cell(recorder):
        result = x.mean(1)
    assert result.shape == (0,)


@native_only
def test_memory_of_a_result_may_grow_as_any_other_tensors(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.arange(2, dtype=torch.float16) + 1
        y = torch.zeros(3) + 1
        y.set_(x.untyped_storage(), 0, (5,))
        y[1:] = 2
    assert x.tolist() == [1.0, 2.0]
    assert (y.shape, y[1:].tolist()) == ((5,), [2.0] * 4)
    with cell(recorder):
        doubled = x * 2
    x.untyped_storage().resize_(400)
    assert doubled.tolist() == [2.0, 4.0]
    assert x.data_ptr() == y.data_ptr() == x.untyped_storage().data_ptr()
    assert x.tolist() == [1.0, 2.0]


@native_only
def test_a_plain_tensor_and_a_lazy_one_of_one_memory_see_what_either_writes(recorder: Recorder) -> None:
    plain = torch.arange(3.0)
    with cell(recorder):
        lazy = torch.zeros(3) + 1
        doubled = plain * 2
        lazy.data = plain
        plain.add_(1)
        assert lazy.tolist() == [1.0, 2.0, 3.0]
        lazy.mul_(2)
        again = plain * 2
    assert doubled.tolist() == [0.0, 2.0, 4.0]
    assert again.tolist() == [4.0, 8.0, 12.0]
    assert plain.tolist() == lazy.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("dims", [(0,), (1,), (-1, 0)])
def test_flip_keeps_the_strides_of_its_input(dims: tuple[int, ...], recorder: Recorder) -> None:
    for x in (torch.arange(4.0).view(1, 4).t(), torch.zeros(2, 3, 4)[..., ::2].transpose(0, 2)):
        expected = x.flip(dims)
        with cell(recorder):
            result = x.flip(dims)
        assert result.stride() == expected.stride()
        assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32, torch.int64])
def test_nan_to_num_keeps_the_strides_of_its_input(dtype: torch.dtype, recorder: Recorder) -> None:
    x = torch.ones(1, 4, dtype=dtype).t()
    expected = x.nan_to_num()
    with cell(recorder):
        result = x.nan_to_num()
    assert result.stride() == expected.stride() == (1, 4)
    assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("op", ["tril", "triu"])
def test_triangle_is_row_major_whatever_its_input_is(op: str, recorder: Recorder) -> None:
    x = torch.arange(4).view(1, 4).t()
    expected = getattr(x, op)()
    with cell(recorder):
        result = getattr(x * 1, op)()
    assert result.stride() == expected.stride() == (1, 1)
    assert torch.equal(result.cpu(), expected)


def test_plain_tensor_with_overlaps_and_gaps_is_written_in_place(recorder: Recorder) -> None:
    def run() -> torch.Tensor:
        base = torch.arange(6.0).view(2, 3)
        view = base.expand(2, 2, 3).select(2, -1)  # 4 elements in a memory of 4, but only at 2 places
        view.fill_(-1.5)
        return base

    expected = run()
    with cell(recorder):
        result = run()
    assert torch.equal(result.cpu(), expected)


def test_lazy_view_with_overlaps_and_gaps_is_read_without_losing_what_it_leaves_out(
    recorder: Recorder,
) -> None:
    with cell(recorder):
        x = torch.arange(4.0) + 1
        view = x.as_strided((2, 2), (0, 3))
    assert view.tolist() == [[1.0, 4.0], [1.0, 4.0]]
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0]


@native_only
@pytest.mark.parametrize("shape", [(0, 1, 3), (0,)])
def test_empty_tensor_is_put_into_a_view_of_itself(shape: tuple[int, ...], recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.zeros(shape) + 1
        x[:-1].index_put_((torch.zeros(0, dtype=torch.int64),), x)
    assert x.shape == shape


@native_only
def test_tensor_put_into_itself_is_refused_as_eager_does(recorder: Recorder) -> None:
    def run(shape: tuple[int, ...]) -> torch.Tensor:
        x = torch.zeros(shape) + 1
        return x.index_put_((torch.zeros(0, dtype=torch.int64),), x)

    with pytest.raises(RuntimeError, match="single memory location"):
        run((0,))
    with cell(recorder), pytest.raises(RuntimeError, match="single memory location"):
        run((0,))


def test_backward_of_a_mask_runs_in_a_later_cell(recorder: Recorder) -> None:
    x = torch.ones(1, 8)[..., ::2].requires_grad_()
    with cell(recorder):
        row = x[(0,)]
        kept = row[row.bool()]
    with cell(recorder):
        kept.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0] * 4]


def test_a_resized_negative_view_stays_negative(recorder: Recorder) -> None:
    with cell(recorder):
        base = torch.arange(1.0, 5.0).view(2, 2) * 2
        negative = torch._neg_view(base).resize_(2)
    assert negative.is_neg()
    assert negative.tolist() == [-2.0, -4.0]
    assert base.tolist() == [[2.0, 4.0], [6.0, 8.0]]


@native_only
def test_a_negative_view_that_is_resized_after_the_cell_stays_negative(recorder: Recorder) -> None:
    with cell(recorder):
        base = torch.arange(1.0, 5.0).view(2, 2) * 2
        negative = torch._neg_view(base)
    negative.resize_(2)
    assert negative.is_neg()
    assert negative.tolist() == [-2.0, -4.0]
    assert base.tolist() == [[2.0, 4.0], [6.0, 8.0]]


@native_only
def test_torch_resizing_shown_memory_by_itself_is_an_error(recorder: Recorder) -> None:
    """matmul resizes its out= before any op of it is recorded; that ended the process."""
    given, other = torch.randn(2, 2, 3), torch.randn(3, 4).expand(2, 3, 4)
    with cell(recorder):
        out = torch.ones(1) + 1
        out.numpy()
        with pytest.raises(RuntimeError, match="not resizable"):
            torch.matmul(given, other, out=out)
        made = torch.ones(2) + 1
    assert made.tolist() == [2.0, 2.0]
