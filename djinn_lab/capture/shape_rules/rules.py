"""Which rule covers which op, and what it needs to know of the op."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from djinn_lab.capture.shape_rules import factories, images, layers
from djinn_lab.capture.shape_rules.elementwise import broadcast, result_layout, same_shapes
from djinn_lab.capture.shape_rules.layers import Rule
from djinn_lab.capture.shape_rules.strides import (
    channels_last,
    is_dense,
    looks_channels_last,
    ordered_like,
)
from djinn_lab.capture.shapes.signature import ArgumentKind, Signature
from djinn_lab.capture.values import Layout
from djinn_lab.srg.program import row_major

_aten = torch.ops.aten
_LAID_OUT_OTHERWISE = {
    f"aten.{name}"
    for name in (
        "_conj_physical.default",
        "angle.default",
        "clone.default",
        "conj_physical.default",
        "deg2rad.default",
        "float_power.Scalar",
        "hardtanh.default",
        "isfinite.default",
        "isinf.default",
        "ldexp.Tensor",
        "masked_fill.Scalar",
        "mvlgamma.default",
        "nan_to_num.default",
        "pow.Scalar",
        "rad2deg.default",
        "relu6.default",
        "rrelu.default",
        "threshold_backward.default",
    )
}
"""Elementwise for torch, but made of other ops or returned as they are."""

_IN_PLACE = {
    *(f"aten.{name}_.Tensor" for name in ("add", "sub", "mul", "div", "lerp")),
    *(f"aten.{name}_.Scalar" for name in ("add", "sub", "mul", "div", "lerp")),
    *(f"aten.{name}_.default" for name in ("abs", "addcdiv", "addcmul", "clamp", "clamp_min", "exp", "log")),
    *(f"aten.{name}_.default" for name in ("neg", "reciprocal", "relu", "rsqrt", "sigmoid", "sqrt", "tanh")),
}

_ACCUMULATED = {
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float64: torch.float64,
}


def rule_for(signature: Signature) -> Rule | None:
    """Return the rule for an op, None when it has none. A rule answers None for a call that torch must be
    asked about."""
    return _NAMED.get(signature.name)


@cache
def is_elementwise(signature: Signature) -> bool:
    """Return whether the op makes one new tensor, broadcast from all the tensors among the arguments."""
    return (
        torch.Tag.pointwise in signature.func.tags
        and signature.name not in _LAID_OUT_OTHERWISE
        and signature.return_aliases == (None,)
        and signature.returns_tensors
        and not signature.written
        and not signature.random
        and ArgumentKind.TENSOR_LIST not in signature.kinds
    )


def stays_as_it_is(signature: Signature, inputs: Sequence[Layout], args: Sequence[object]) -> bool:
    """Return whether an op in place surely fits its result into its first argument, with no reason to refuse
    it."""
    return (
        signature.name in _IN_PLACE
        and not any(isinstance(item, complex) for item in args)
        and layers.fits_in_place(inputs)
    )


def elementwise(dtype: torch.dtype, inputs: Sequence[Layout]) -> list[Layout] | None:
    first = inputs[0]
    if first.row_major and first.numel and all(one is first for one in inputs):
        return [first.in_memory if dtype is first.dtype else Layout.of(dtype, first.shape, first.stride)]
    for layout in inputs:
        if layout.dtype is not dtype and not is_dense(layout.shape, layout.stride):
            return None  # a converted copy is laid out anew
    found = result_layout([layout.shape for layout in inputs], [layout.stride for layout in inputs])
    return None if found is None else [Layout.of(dtype, *found)]


def _cat(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Layout] | None:
    """``TORCH_PRECOMPUTE_META_FUNC(cat)`` in TensorShape.cpp. One-dimensional tensors without elements are
    skipped, as a key-value cache begins, and make the result row-major."""
    joined = [layout for layout in inputs if layout.shape != (0,)]
    if not joined or any(layout.dtype != joined[0].dtype for layout in inputs):
        return None
    first = joined[0]
    rank = len(first.shape)
    dimension = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if not -rank <= dimension < rank:
        return None
    dimension %= rank
    total = 0
    for layout in joined:
        if len(layout.shape) != rank:
            return None
        if any(
            a != b
            for index, (a, b) in enumerate(zip(layout.shape, first.shape, strict=True))
            if index != dimension
        ):
            return None
        total += layout.shape[dimension]
    shape = (*first.shape[:dimension], total, *first.shape[dimension + 1 :])
    if 0 in shape:
        return None
    last = all(looks_channels_last(layout.shape, layout.stride) for layout in inputs)
    return [Layout.of(first.dtype, shape, channels_last(shape) if last else row_major(shape))]


def _masked_fill(
    inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]
) -> list[Layout] | None:
    """A row-major copy, which the kernel then fills."""
    shape = broadcast([layout.shape for layout in inputs])
    if shape is None or 0 in shape or inputs[1].dtype is not torch.bool:
        return None
    return [Layout.of(inputs[0].dtype, shape, row_major(shape))]


def _clone(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Layout] | None:
    return _copied(inputs[0], inputs[0].dtype, kwargs.get("memory_format"))


def _like(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Layout] | None:
    """Written into memory like that of the input."""
    return _copied(inputs[0], inputs[0].dtype, None)


def _triangle(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Layout] | None:
    """``TORCH_META_FUNC(tril)`` in TriangularOps.cpp: row-major, whatever the input is."""
    shape = inputs[0].shape
    return None if len(shape) < 2 or 0 in shape else [Layout.of(inputs[0].dtype, shape, row_major(shape))]


def _flip(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Layout] | None:
    rank = len(inputs[0].shape)
    if len(args) != 2 or not all(-rank <= dimension < rank for dimension in args[1]):
        return None
    if len({dimension % rank for dimension in args[1]}) < len(args[1]):
        return None
    return _like(inputs, args, kwargs)


def _to_copy(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Layout] | None:
    if kwargs.get("layout") not in (None, torch.strided):
        return None
    return _copied(inputs[0], kwargs.get("dtype") or inputs[0].dtype, kwargs.get("memory_format"))


def _sort(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Layout] | None:
    """Values and indices, both laid out as a copy would be."""
    values, indices = (_copied(inputs[0], dtype, None) for dtype in (inputs[0].dtype, torch.int64))
    rank, dimension = len(inputs[0].shape), args[1] if len(args) > 1 else kwargs.get("dim", -1)
    if values is None or indices is None or not -rank <= dimension < rank:
        return None
    return [*values, *indices]


def _copied(
    layout: Layout, dtype: torch.dtype, memory_format: torch.memory_format | None
) -> list[Layout] | None:
    shape, stride = layout.shape, layout.stride
    if 0 in shape:
        return None
    if memory_format is torch.contiguous_format:
        stride = row_major(shape)
    elif memory_format in (None, torch.preserve_format):
        if not is_dense(shape, stride):
            stride = ordered_like(shape, [stride])
    else:
        return None
    return [Layout.of(dtype, shape, stride)]


def _attention(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Layout] | None:
    """``_scaled_dot_product_flash_attention_for_cpu``: query, key and value of shape (batch, heads, length,
    width), perhaps a mask; the attention and its log-sum-exp."""
    query, key, value = inputs[:3]
    if any(len(layout.shape) != 4 or 0 in layout.shape for layout in inputs[:3]):
        return None
    batch, heads, length, width = query.shape
    shared, past = key.shape[1:3]  # grouped queries: several heads read one key
    if key.shape != (batch, shared, past, width) or value.shape != key.shape or heads % shared:
        return None
    if not query.dtype == key.dtype == value.dtype or query.dtype not in _ACCUMULATED:
        return None
    for mask in inputs[3:]:
        full = (batch, heads, length, past)[-len(mask.shape) :]
        if len(mask.shape) not in (2, 4) or any(
            a not in (1, b) for a, b in zip(mask.shape, full, strict=True)
        ):
            return None
    attention = _copied(query, query.dtype, None)
    if attention is None:
        return None
    sums = Layout.of(_ACCUMULATED[query.dtype], (batch, heads, length), (length * heads, 1, heads))
    return [*attention, sums]


def _attention_backward(
    inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]
) -> list[Layout] | None:
    """The gradients of query, key and value, laid out as (batch, length, heads, width) would be."""
    gradient, query, key, value, result, sums = inputs[:6]
    if len(args) != 8 or not query.dtype == key.dtype == value.dtype == gradient.dtype == result.dtype:
        return None
    if query.dtype not in (torch.float32, torch.float64) or len(inputs) != 6 or sums.dtype is not query.dtype:
        return None
    if any(len(layout.shape) != 4 or 0 in layout.shape for layout in inputs[:5]):
        return None
    batch, heads, _, width = query.shape
    if not gradient.shape == result.shape == query.shape or sums.shape != query.shape[:3]:
        return None
    if key.shape != (batch, heads, key.shape[2], width) or value.shape != key.shape:
        return None
    return [_heads_inside(query), _heads_inside(key), _heads_inside(value)]


def _heads_inside(layout: Layout) -> Layout:
    _, heads, length, width = layout.shape
    return Layout.of(layout.dtype, layout.shape, (length * heads * width, width, heads * width, 1))


def _alike(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Layout] | None:
    """Elementwise, of floating-point numbers of one type and shape that lie in one order: the result lies so,
    too."""
    first = inputs[0]
    if not layers.fits_in_place(inputs) or any(layout.shape != first.shape for layout in inputs):
        return None
    stride = same_shapes(first.shape, [layout.stride for layout in inputs])
    return None if stride is None else [Layout.of(first.dtype, first.shape, stride)]


_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")

_ALIKE = ("threshold_backward", "leaky_relu_backward", "hardtanh_backward", "hardswish_backward")

_NAMED: dict[str, Rule] = {
    **{f"aten.{name}.default": _to_copy for name in _LIKE},
    **{f"aten.{name}.default": _alike for name in _ALIKE},
    **{f"aten.{name}.default": factories.constant for name in ("zeros", "ones")},
    **{f"aten.{name}.default": factories.drawn for name in ("rand", "randn")},
    **{f"aten.new_{name}.default": factories.made_like for name in ("empty", "zeros", "ones", "full")},
    "aten.empty.memory_format": factories.constant,
    "aten.full.default": factories.filled,
    "aten.cat.default": _cat,
    "aten.clone.default": _clone,
    "aten._to_copy.default": _to_copy,
    "aten.nan_to_num.default": _like,
    "aten.flip.default": _flip,
    "aten.sort.default": _sort,
    "aten.tril.default": _triangle,
    "aten.triu.default": _triangle,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.masked_fill.Tensor": _masked_fill,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
    "aten.mm.default": layers.matrix_product(2, added=False),
    "aten.addmm.default": layers.matrix_product(2, added=True),
    "aten.bmm.default": layers.matrix_product(3, added=False),
    "aten.baddbmm.default": layers.matrix_product(3, added=True),
    "aten._softmax.default": layers.softmax,
    "aten._log_softmax.default": layers.softmax,
    "aten._softmax_backward_data.default": layers.softmax_backward,
    "aten._log_softmax_backward_data.default": layers.softmax_backward,
    "aten.sum.dim_IntList": layers.reduced,
    "aten.mean.dim": layers.reduced,
    "aten.nll_loss_forward.default": layers.nll_loss,
    "aten.nll_loss_backward.default": layers.nll_loss_backward,
    "aten.mse_loss.default": layers.mean_square,
    "aten.mse_loss_backward.default": layers.mean_square_backward,
    "aten.native_layer_norm.default": layers.layer_norm,
    "aten.native_layer_norm_backward.default": layers.layer_norm_backward,
    "aten.select_backward.default": layers.placed,
    "aten.slice_backward.default": layers.placed,
    "aten.convolution.default": images.convolution,
    "aten.convolution_backward.default": images.convolution_backward,
    "aten.max_pool2d_with_indices.default": images.max_pool,
    "aten.max_pool2d_with_indices_backward.default": images.max_pool_backward,
    "aten.avg_pool2d.default": images.average_pool,
    "aten.avg_pool2d_backward.default": images.average_pool_backward,
    "aten._adaptive_avg_pool2d.default": images.adaptive_pool,
    "aten._adaptive_avg_pool2d_backward.default": images.adaptive_pool_backward,
    "aten.native_batch_norm.default": images.batch_norm,
    "aten.native_batch_norm_backward.default": images.batch_norm_backward,
    "aten.embedding.default": layers.embedding,
    "aten.embedding_dense_backward.default": layers.embedding_backward,
    "aten.mkldnn_rnn_layer.default": layers.recurrent_layer,
    "aten.mkldnn_rnn_layer_backward.default": layers.recurrent_layer_backward,
}
