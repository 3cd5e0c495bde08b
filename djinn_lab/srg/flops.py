"""FLOPs of the ops that ``torch.utils.flop_counter`` counts, with the same conventions and the same results.

A formula is a pure function of a :class:`OpCall`. One multiply-add is two FLOPs; bias, causal masks and
padding are ignored; recomputation inside a fused backward is counted. CPU variants that torch's counter
does not list (``_scaled_dot_product_flash_attention_for_cpu``, ``mkldnn_convolution``) use the formula of
their sibling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import msgspec

from djinn_lab.srg.program import Template, TensorHole, TensorMeta

Shape = Sequence[int]


class OpCall(msgspec.Struct, frozen=True):
    """An op with its tensors replaced by their metas. ``args`` and ``kwargs`` follow the template;
    ``tensors`` are the filled holes in order; ``outputs`` are the results; ``written`` the inputs changed
    in place."""

    args: tuple[Any, ...]
    kwargs: dict[str, object]
    tensors: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    written: tuple[TensorMeta, ...]
    output_slots: tuple[TensorMeta | None, ...]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


def fill_template(
    template: Template,
    inputs: Sequence[TensorMeta | None],
    outputs: Sequence[TensorMeta | None],
    written: Sequence[TensorMeta],
) -> OpCall:
    """Put metas where the holes are."""
    rest = iter(inputs)

    def fill(argument: object) -> object:
        if isinstance(argument, TensorHole):
            return next(rest, None)
        return list(map(fill, argument)) if isinstance(argument, list) else argument

    return OpCall(
        args=tuple(map(fill, template.args)),
        kwargs={name: fill(argument) for name, argument in template.kwargs.items()},
        tensors=tuple([meta for meta in inputs if meta is not None]),
        outputs=tuple([meta for meta in outputs if meta is not None]),
        written=tuple(written),
        output_slots=tuple(outputs),
    )


Formula = Callable[[OpCall], int]
COUNTED: dict[str, Formula] = {}
"""Formulas by base name (``addmm``)."""


def _counts(*names: str) -> Callable[[Formula], Formula]:
    def register(formula: Formula) -> Formula:
        COUNTED.update(dict.fromkeys(names, formula))
        return formula

    return register


def matmul_flops(left: Shape, right: Shape) -> int:
    """Return the FLOPs of ``(..., m, k) @ (..., k, n)`` with equal batch sizes."""
    return 2 * prod(left) * right[-1]


@_counts("mm", "bmm", "_scaled_mm")
def _mm(call: OpCall) -> int:
    return matmul_flops(call.args[0].shape, call.args[1].shape)


@_counts("addmm", "baddbmm")
def _addmm(call: OpCall) -> int:
    return matmul_flops(call.args[1].shape, call.args[2].shape)


def convolution_flops(source: Shape, weight: Shape, result: Shape, transposed: bool) -> int:
    """Return the FLOPs of a convolution: every output point (input point when transposed) meets the whole
    filter."""
    points = prod((source if transposed else result)[2:])
    return 2 * points * prod(weight) * source[0]


@_counts(
    "convolution", "_convolution", "convolution_overrideable", "cudnn_convolution", "_slow_conv2d_forward"
)
def _convolution(call: OpCall) -> int:
    transposed = bool(call.args[6]) if len(call.args) > 7 else False
    return convolution_flops(call.args[0].shape, call.args[1].shape, call.outputs[0].shape, transposed)


@_counts("mkldnn_convolution")
def _mkldnn_convolution(call: OpCall) -> int:
    return convolution_flops(call.args[0].shape, call.args[1].shape, call.outputs[0].shape, False)


def _swapped(shape: Shape) -> list[int]:
    return [shape[1], shape[0], *shape[2:]]


@_counts("convolution_backward", "convolution_backward_overrideable")
def _convolution_backward(call: OpCall) -> int:
    gradient, source, weight = (meta.shape for meta in call.args[:3])
    transposed = bool(call.argument(7, "transposed"))
    wants = call.argument(10, "output_mask")
    flops = 0
    if wants[0] and (result := call.output_slots[0]):
        flops += convolution_flops(gradient, weight, result.shape, not transposed)
    if wants[1] and (result := call.output_slots[1]):
        moving, filtering = (gradient, source) if transposed else (source, gradient)
        flops += convolution_flops(_swapped(moving), _swapped(filtering), _swapped(result.shape), False)
    return flops


def attention_flops(query: Shape, key: Shape, value: Shape) -> int:
    """Return the FLOPs of scores and their product with the values, at the query's number of heads."""
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (width + value[3])


def attention_backward_flops(query: Shape, key: Shape, value: Shape) -> int:
    """Return the FLOPs of the scores again, then two products each for the value and the key side."""
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (3 * width + 2 * value[3])


@_counts(
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
def _attention(call: OpCall) -> int:
    return attention_flops(call.args[0].shape, call.args[1].shape, call.args[2].shape)


@_counts(
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)
def _attention_backward(call: OpCall) -> int:
    return attention_backward_flops(call.args[1].shape, call.args[2].shape, call.args[3].shape)
