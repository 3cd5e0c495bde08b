"""Bytes of small values, to and from a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from djinn_lab.errors import Refused
from djinn_lab.srg.program import Source, TensorMeta, row_major
from djinn_lab.worker.transfer import load_source, store_result

CPU = torch.device("cpu")
MATRIX = torch.arange(6.0).view(2, 3)
WAVES = torch.tensor([1 + 2j, 3 - 4j])
RESULTS = {
    "contiguous": (MATRIX, MATRIX),
    "a part": (MATRIX[1:], MATRIX[1:].clone()),
    "transposed": (MATRIX.T, MATRIX.T.contiguous()),
    "expanded": (torch.tensor([7.0]).expand(2, 3), torch.full((2, 3), 7.0)),
    "one element with a stride": (torch.tensor([5.0, 6.0]).as_strided((1, 1), (9, 4)), torch.tensor([[5.0]])),
    "one number": (torch.tensor(2.5), torch.tensor(2.5)),
    "no elements": (torch.empty(0, 3), torch.empty(0, 3)),
    "conjugated": (WAVES.conj(), torch.tensor([1 - 2j, 3 + 4j])),
    "negated": (WAVES.conj().imag, torch.tensor([-2.0, 4.0])),
    "zeros without memory": (torch._efficientzerotensor(2, 2), torch.zeros(2, 2)),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_small_result_has_its_elements_in_row_major_order(kind: str, tmp_path: Path) -> None:
    value, plain = RESULTS[kind]
    found = store_result(1, value, tmp_path)
    shape = tuple(plain.shape)
    assert found.meta == TensorMeta(str(plain.dtype).removeprefix("torch."), shape, row_major(shape))
    assert (found.data, found.blob) == (plain.numpy().tobytes(), None)


@pytest.mark.parametrize("step", [1, 2])
def test_result_of_bools_keeps_bytes_that_are_neither_0_nor_1(step: int, tmp_path: Path) -> None:
    odd = torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)[::step]
    assert store_result(1, odd, tmp_path).data == bytes([0, 1, 2, 255][::step])


def test_inline_source_lies_as_its_layout_says_in_memory_of_its_own() -> None:
    content = MATRIX.numpy().tobytes()
    for shape, stride in (((2, 3), (3, 1)), ((3, 2), (1, 3)), ((2, 2, 3), (0, 3, 1))):
        meta = TensorMeta("float32", shape, stride)
        made = load_source(Source(1, 1, 0, "input", None, content), meta, {}, CPU)
        assert torch.equal(made, MATRIX.as_strided(shape, stride))
        assert (made.stride(), made.untyped_storage().nbytes()) == (stride, 24)
        assert made.data_ptr() % 64 == 0


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("nbytes", [0, 23, 25])
def test_inline_source_of_another_length_is_refused(nbytes: int, device: str) -> None:
    source = Source(1, 1, 0, "input", None, bytes(nbytes))
    with pytest.raises(Refused, match=f"came with {nbytes} bytes where its layout needs 24"):
        load_source(source, TensorMeta("float32", (2, 3), (3, 1)), {}, torch.device(device))
