"""What a GPU computes in place of a CPU's kernels gives the same numbers. ``make sweep-cuda`` has a GPU."""

from __future__ import annotations

import pytest
import torch

from djinn_lab.worker.accelerator.kernels import find_kernel
from djinn_lab.worker.host_arena import Extents

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradients_are_those_of_the_recorded_op(causal: bool) -> None:
    query, key, value, grad = torch.randn(4, 2, 4, 16, 32)
    forward, backward = (
        find_kernel(f"aten.{ATTENTION}.default"),
        find_kernel(f"aten.{ATTENTION}_backward.default"),
    )
    assert forward is not None
    assert backward is not None
    recorded = getattr(torch.ops.aten, ATTENTION).default(query, key, value, 0.0, causal)
    torch.testing.assert_close(forward(query, key, value, 0.0, causal)[0], recorded[0])
    recorded_grads = getattr(torch.ops.aten, f"{ATTENTION}_backward").default(
        grad, query, key, value, *recorded, 0.0, causal
    )
    torch.testing.assert_close(
        backward(grad, query, key, value, *recorded, 0.0, causal), tuple(recorded_grads)
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_a_layer_of_an_lstm_is_that_of_the_recorded_op(reverse: bool) -> None:
    source, hidden, cell = torch.randn(7, 4, 12), torch.randn(1, 4, 8), torch.randn(1, 4, 8)
    weights = [torch.randn(shape) for shape in ((32, 12), (32, 8), (32,), (32,))]
    given = (source, *weights, hidden, cell, reverse, [], 2, 8, 1, True, False, False, True)
    kernel = find_kernel("aten.mkldnn_rnn_layer.default")
    assert kernel is not None
    with torch.no_grad():
        recorded = torch.ops.aten.mkldnn_rnn_layer.default(*given)
        found = kernel(*given)
    for one, other in zip(found[:3], recorded[:3], strict=True):
        torch.testing.assert_close(one.view(-1), other.view(-1), atol=1e-5, rtol=1e-4)


def test_no_range_of_an_arena_crosses_the_bounds_of_a_slab() -> None:
    extents = Extents(1000 * 64, slab_bytes=100 * 64)
    taken = [extents.take(60 * 64) for _ in range(10)]
    assert [offset // 64 for offset in taken if offset is not None] == list(range(0, 1000, 100))
    assert extents.take(60 * 64) is None
    for offset in taken:
        assert offset is not None
        extents.give_back(offset, 60 * 64)
    assert extents.free_ranges == [(start * 64, 100 * 64) for start in range(0, 1000, 100)]
