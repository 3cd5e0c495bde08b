"""What an op will return is found out without a kernel of this process that has data to work on."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
import torch
from test_shape_rules import overloads, random_call
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from djinn_lab.capture.shapes.inference import OpPlan, ShapeInference
from djinn_lab.capture.shapes.signature import signature_of
from djinn_lab.capture.values import Layout
from djinn_lab.errors import CaptureError

pytestmark = pytest.mark.native_recorder(reason="no recorder takes part: once is enough")
_aten = torch.ops.aten
MAKES_OR_VIEWS = ("empty", "set_", "as_strided", "_conj", "_neg_view", "detach", "new_empty", "resize_")


class Value(NamedTuple):
    layout: Layout
    offset: int
    storage: object


class RanWithData(TorchDispatchMode):
    """Keeps the names of ops that ran on elements in the CPU's memory, but for single numbers; ``without``:
    also of those that ran on none."""

    def __init__(self, without: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.without = without

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        for item in pytree.tree_leaves((args, kwargs)):
            real = isinstance(item, torch.Tensor) and not isinstance(item, FakeTensor)
            has_elements = real and item.dim() and item.numel()
            makes_or_views = str(func).removeprefix("aten.").startswith(MAKES_OR_VIEWS)
            if real and item.device.type == "cpu" and (has_elements or self.without) and not makes_or_views:
                self.names.append(str(func))
        return returned


def planned(inference: ShapeInference, func: OpOverload, args: list[Any], **kwargs: Any) -> OpPlan:
    """Plan a call on values that are laid out like the tensors among the arguments."""
    tensors = [item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
    memories = {tensor.untyped_storage().data_ptr(): object() for tensor in tensors}
    values: list[Any] = [
        Value(
            Layout.of_tensor(tensor),
            int(tensor.storage_offset()),
            memories[tensor.untyped_storage().data_ptr()],
        )
        for tensor in tensors
    ]
    return inference.plan(signature_of(func), args, kwargs, values)


def test_no_kernel_gets_data_for_any_op() -> None:
    chance, inference, ran = random.Random(5), ShapeInference(), []
    for func in overloads():
        args, _ = random_call(chance, func, signature_of(func))
        with RanWithData() as watch:
            # refused, as eager torch would; or a call that no capture makes
            with suppress(RuntimeError, IndexError, ValueError, TypeError, AssertionError, CaptureError):
                planned(inference, func, args)
        ran += watch.names
    assert ran == []


def matrix(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(3, 3, dtype=dtype)


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (
            _aten.linalg_ldl_solve.default,
            [torch.eye(3), torch.arange(1, 4, dtype=torch.int32), torch.zeros(3, 4)],
        ),
        (_aten.pow.Tensor_Scalar, [torch.zeros(2, dtype=torch.bool), True]),
        (_aten.linalg_eig.default, [torch.eye(3)]),
        (_aten.pow.Tensor_Tensor, [matrix().t(), matrix()]),
        (_aten.logical_and.default, [matrix().t(), matrix().expand(2, 3, 3)]),
        (_aten._embedding_bag.default, [matrix(), torch.zeros(4, dtype=torch.int64), torch.tensor([0, 2])]),
        (_aten.add.Tensor, [torch.zeros(0, 3), torch.zeros(1, 3)]),
        (_aten.add.Tensor, [matrix(torch.int32), matrix()]),
        (_aten.max_unpool2d.default, [torch.zeros(1, 1, 2, 2), torch.arange(4).view(1, 1, 2, 2), [4, 4]]),
    ],
)
def test_layouts_are_those_of_the_kernel_and_it_gets_no_data_here(func: OpOverload, args: list[Any]) -> None:
    with RanWithData() as watch:
        plan = planned(ShapeInference(), func, args)
    assert watch.names == []
    returned = func(*args)
    made = returned if isinstance(returned, (tuple, list)) else [returned]
    assert not plan.dynamic
    assert list(plan.layouts) == [Layout.of_tensor(tensor) for tensor in made]


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (_aten.add_.Tensor, [torch.zeros(1).expand(3), torch.zeros(3)]),
        (_aten.bitwise_and.Tensor, [matrix(), matrix(torch.float64)]),
        (_aten.linalg_cholesky_ex.default, [matrix(torch.float16)]),
        (_aten.mm.default, [torch.zeros(2, 3), torch.zeros(4, 5)]),
    ],
)
def test_a_refusal_has_the_words_of_the_kernel_which_gets_no_data_here(
    func: OpOverload, args: list[Any]
) -> None:
    with pytest.raises(Exception) as eager:
        func(*args)
    with RanWithData() as watch, pytest.raises(type(eager.value)) as ours:
        planned(ShapeInference(), func, args)
    assert str(ours.value) == str(eager.value)
    assert watch.names == []


HALF = torch.float16


@pytest.mark.parametrize("size", [4, 2**20])
@pytest.mark.parametrize(
    ("func", "args"),
    [
        (_aten.convolution.default, [None, (1, 1, 3), None, [1], [0], [1], False, [0], 1]),
        (
            _aten.convolution_backward.default,
            [None, None, (1, 1, 1), [0], [1], [0], [1], False, [0], 1, [True, True, False]],
        ),
        (_aten._fft_r2c.default, [None, [2], 0, True]),
        (_aten.scaled_dot_product_attention.default, [None, None, None]),
    ],
)
def test_a_librarys_kernel_is_not_called_here_for_half_precision(
    func: OpOverload, args: list[Any], size: int
) -> None:
    """Called for no elements, such kernels divide by zero on some processors, which ends the process."""
    inputs = torch.zeros(1, 1, size, dtype=HALF)
    made = [
        torch.zeros(item, dtype=HALF)
        if isinstance(item, tuple)
        else inputs
        if item is None and i < 3
        else item
        for i, item in enumerate(args)
    ]
    with RanWithData(without=True) as watch, suppress(RuntimeError, CaptureError):
        planned(ShapeInference(), func, made)
    assert watch.names == []


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (_aten._weight_norm.default, [torch.tensor(1.0), torch.ones(1, 2, 1, 1, dtype=torch.float64)]),
        (_aten._masked_softmax.default, [torch.ones(1), torch.ones(1, dtype=torch.bool)]),
        (
            _aten._sobol_engine_ff_.default,
            [
                *(torch.zeros(2, 3, 3, 1, dtype=torch.int64), 1),
                *(torch.zeros(2, 3, 3, 1, dtype=torch.int64), 1, 1),
            ],
        ),
    ],
)
def test_a_kernel_that_needs_elements_is_not_called_without(func: OpOverload, args: list[Any]) -> None:
    with RanWithData(without=True) as watch, suppress(RuntimeError):
        planned(ShapeInference(), func, args)
    assert watch.names == []
