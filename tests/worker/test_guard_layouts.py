"""Guarded ops get tensors of any strides, and return what they return for the same numbers side by side."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from sweeps.hostile.recorded import Recorded, dispatched_calls
from sweeps.operators.samples import operators, tensors_of
from torch.utils._pytree import tree_flatten, tree_unflatten

from djinn_lab.errors import Refused
from djinn_lab.srg.ops import allowed_ops, base_name, words
from djinn_lab.worker.guards import Guard, find_guard

OPERATORS = words(
    """cdist fft.fft fft.irfft fft.rfft gcd lcm linalg.lu linalg.lu_solve log_softmax lu_unpack narrow_copy
    native_batch_norm softmax triu nn.functional.adaptive_avg_pool2d nn.functional.adaptive_avg_pool3d
    nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d nn.functional.avg_pool3d
    nn.functional.batch_norm nn.functional.binary_cross_entropy nn.functional.ctc_loss
    nn.functional.embedding_bag nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
    nn.functional.grid_sample nn.functional.group_norm nn.functional.layer_norm
    max_pool2d_with_indices_backward nn.functional.multi_margin_loss nn.functional.nll_loss nn.functional.pad
    nn.functional.pdist nn.functional.rrelu nn.functional.scaled_dot_product_attention"""
)
SAMPLES_MAX, CALLS_MAX = 2, 3


@cache
def recorded() -> dict[str, list[Recorded]]:
    return dispatched_calls([op for op in operators() if op.name in OPERATORS], samples_max=SAMPLES_MAX)


def overload(op: str) -> Any:
    _, name, kind = op.split(".")
    return getattr(getattr(torch.ops.aten, name), kind)


def guard_of(op: str) -> Guard | None:
    return find_guard(op, overload(op)._schema)


def looks_at_tensors(op: str) -> bool:
    guard = guard_of(op)
    return guard is not None and bool(guard.checks) and not overload(op)._schema.is_mutable


GUARDED = sorted(filter(looks_at_tensors, allowed_ops()))


def other_strides(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Return the same numbers, or equal ones, lying otherwise."""
    if not tensor.dim() or not tensor.numel():
        return
    yield tensor.transpose(0, -1).contiguous().transpose(0, -1)
    apart = tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])
    apart[..., ::2] = tensor
    yield apart[..., ::2]
    yield tensor[:1].clone().expand(tensor.shape)
    yield tensor.flatten()[0].clone().expand(tensor.shape)


def returned(op: str, args: Any, kwargs: Any) -> list[torch.Tensor] | Exception:
    """Return the tensors that a worker makes, or what it raises; without those that tell how it made them."""
    guard = guard_of(op)
    assert guard is not None
    try:
        made = guard(overload(op), args, kwargs)
    except (Refused, RuntimeError, IndexError, ValueError) as error:
        return error
    found = tensors_of(made)[:1] if "embedding_bag" in op else tensors_of(made)
    return [one for one in found if one.dtype is not torch.uint8]


@pytest.mark.parametrize("op", GUARDED)
def test_a_guarded_op_takes_tensors_of_any_strides(op: str) -> None:
    for call in recorded().get(op, [])[:CALLS_MAX]:
        leaves, spec = tree_flatten(call.arguments.tree())
        for place, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor) or leaf.dtype is torch.uint8:  # oneDNN's own bytes
                continue
            for other in other_strides(leaf):
                results = []
                for given in (other.contiguous(), other):
                    args, kwargs = tree_unflatten([*leaves[:place], given, *leaves[place + 1 :]], spec)
                    torch.manual_seed(1)
                    results.append(returned(op, args, kwargs))
                assert_alike(*results, f"argument {place} with strides {other.stride()} of {other.shape}")


def assert_alike(right: Any, ours: Any, what: str) -> None:
    if isinstance(right, Exception):
        assert type(ours) is type(right), f"{what}: {ours}"
        return
    if isinstance(ours, RuntimeError) and "ontiguous" in str(ours):
        return  # torch's own word, as anywhere
    assert isinstance(ours, list), f"{what}: {ours}"
    for one, other in zip(right, ours, strict=True):
        close = torch.allclose(other, one, rtol=2e-3, atol=1e-4, equal_nan=True)
        assert close, f"{what}: {other} where {one} is right"


def test_most_guarded_ops_are_tried() -> None:
    tried = {base_name(op) for op in recorded()}
    assert {base_name(op) for op in GUARDED} - tried == {
        "_embedding_bag_dense_backward",
        "_embedding_bag_forward_only",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "batch_norm_backward",
        "rrelu_with_noise_functional",
    }
