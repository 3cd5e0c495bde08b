"""Elementwise ops: the layout that ``at::TensorIterator`` (aten/src/ATen/TensorIterator.cpp) gives the
result."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.capture.shape_rules.strides import (
    Shape,
    channels_last,
    is_channels_last,
    is_dense,
    is_row_major,
    ordered_like,
)
from djinn_lab.srg.program import row_major


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the common shape; None where torch would refuse."""
    first = shapes[0]
    if shapes.count(first) == len(shapes):
        return first
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        start = rank - len(shape)
        for index, size in enumerate(shape, start):
            if size != 1:
                if result[index] not in (1, size):
                    return None
                result[index] = size
    return tuple(result)


def result_layout(shapes: Sequence[Shape], strides: Sequence[Shape]) -> tuple[Shape, Shape] | None:
    """Return shape and stride of the result for these inputs, all of one dtype. None where torch would
    refuse, where there is no element, and where it depends on how the kernel goes about it."""
    shape = broadcast(shapes)
    if shape is None or 0 in shape:
        return None
    operands = [_broadcast_stride(shape, *operand) for operand in zip(shapes, strides, strict=True)]
    stride = ordered_like(shape, operands)
    if all(other == shape for other in shapes) and same_shapes(shape, strides) not in (None, stride):
        return None  # whether a number among the arguments counts as an input makes the difference
    return shape, stride


def same_shapes(shape: Shape, strides: Sequence[Shape]) -> Shape | None:
    """``compute_fast_setup_type``: None where it says NONE."""
    if all(is_row_major(shape, stride) for stride in strides):
        return row_major(shape)
    if len(shape) == 4 and all(is_channels_last(shape, stride) for stride in strides):
        return channels_last(shape)
    first = strides[0]
    if all(stride == first for stride in strides) and is_dense(shape, first):
        return first
    return None


def _broadcast_stride(shape: Shape, own: Shape, stride: Shape) -> Shape:
    start = len(shape) - len(own)
    return (0,) * start + tuple(
        0 if size == 1 and shape[index] != 1 else step
        for index, (size, step) in enumerate(zip(own, stride, strict=True), start)
    )
