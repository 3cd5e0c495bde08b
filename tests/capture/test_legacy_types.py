"""``isinstance(tensor, torch.FloatTensor)``, ``tensor.type()`` and their kind answer as on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from equality import check_cell
from in_process import cell
from torch import nn

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.recorders import Recorder

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def _legacy_types() -> list[Any]:
    return sorted(torch._tensor_classes, key=lambda kind: str(kind))


def _answers(tensor: Any) -> list[Any]:
    legacy = [isinstance(tensor, kind) for kind in _legacy_types()]
    flags = (torch.is_tensor(tensor), isinstance(tensor, torch.Tensor), torch.is_storage(tensor))
    kinds = (tensor.is_floating_point(), tensor.is_complex(), tensor.is_sparse, tensor.is_cuda, tensor.layout)
    return [legacy, flags, kinds, tensor.type(), torch.typename(tensor), isinstance(tensor, nn.Parameter)]


@pytest.mark.parametrize("dtype", _DTYPES)
def test_legacy_types_of_a_lazy_tensor_are_those_of_a_plain_one(
    recorder: Recorder, dtype: torch.dtype
) -> None:
    expected = _answers(torch.ones(3, dtype=dtype))
    with cell(recorder):
        lazy = (torch.ones(3) * 1).to(dtype)
        views = [lazy, lazy[1:], lazy.detach()]
        assert all(is_lazy(view) for view in views)
        assert [_answers(view) for view in views] == [expected] * 3
    assert [_answers(view) for view in views] == [expected] * 3  # outside cells, too
    assert lazy.tolist() == torch.ones(3, dtype=dtype).tolist()


def test_legacy_types_of_conjugates_and_parameters(recorder: Recorder) -> None:
    def body(model: nn.Module) -> list[Any]:
        number = torch.ones(2, dtype=torch.complex64) * 1j
        model(torch.ones(2, 3))
        [weight, bias] = model.parameters()
        tensors: list[Any] = [number.conj(), number.conj().imag, weight, bias, weight.detach()]
        return [[isinstance(item, kind) for kind in _legacy_types()] for item in tensors]

    check_cell(recorder, body, nn.Linear(3, 3))


def test_types_are_converted_by_legacy_names(recorder: Recorder) -> None:
    def body() -> list[Any]:
        x = torch.ones(3) * 1.5
        made = [
            x.type(torch.DoubleTensor),
            x.type("torch.LongTensor"),
            x.type(torch.FloatTensor),
            x.type_as(x),
        ]
        return [*made, [item.type() for item in made], made[2] is x]

    check_cell(recorder, body)


def test_legacy_types_of_what_is_no_lazy_tensor_are_as_ever(recorder: Recorder) -> None:
    with cell(recorder):
        torch.ones(2)
    plain = torch.ones(2)
    assert isinstance(plain, torch.FloatTensor)
    assert isinstance(nn.Parameter(plain), torch.FloatTensor)
    assert not isinstance(plain, torch.DoubleTensor)
    assert not isinstance(plain.to_sparse(), torch.FloatTensor)
    assert not isinstance(plain.to("meta"), torch.FloatTensor)
    assert not isinstance(3, torch.FloatTensor)
    assert not isinstance(torch.FloatTensor, torch.FloatTensor)
    assert issubclass(torch.FloatTensor, torch.FloatTensor)
