"""How torch lays out a result: the rules that its kernels share. Shapes and strides in elements."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.srg.program import row_major

Shape = tuple[int, ...]


def is_row_major(shape: Shape, stride: Shape) -> bool:
    """Like ``tensor.is_contiguous()``: strides of dimensions of size 1 do not count."""
    step = 1
    for size, found in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1:
            if found != step:
                return False
            step *= size
    return True


def channels_last(shape: Shape) -> Shape:
    """Strides of ``torch.empty(shape, memory_format=torch.channels_last)`` (or ``channels_last_3d``)."""
    step = 1
    strides = [0] * len(shape)
    for dimension in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[dimension] = step
        step *= shape[dimension]
    return tuple(strides)


def is_channels_last(shape: Shape, stride: Shape) -> bool:
    """Like ``is_contiguous(memory_format=torch.channels_last)``, for four or five dimensions."""
    if len(shape) not in (4, 5):
        return False
    step = 1
    for dimension in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[dimension] != 1:
            if stride[dimension] != step:
                return False
            step *= shape[dimension]
    return True


def looks_channels_last(shape: Shape, stride: Shape) -> bool:
    """c10's ``is_channels_last_strides_2d`` (and ``3d``), by which ``suggest_memory_format`` decides."""
    if len(shape) not in (4, 5) or stride[1] == 0:
        return False
    least = 0
    for dimension in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[dimension] == 0 or stride[dimension] < least:
            return False
        if dimension == 0 and least == stride[1]:
            return False
        least = stride[dimension]
        if shape[dimension] > 1:
            least *= shape[dimension]
    return True


def is_dense(shape: Shape, stride: Shape) -> bool:
    """Like ``is_non_overlapping_and_dense``: the elements fill their memory in some order of dimensions."""
    if is_row_major(shape, stride) or 0 in shape:
        return True
    step = 1
    for found, size in sorted((found, size) for size, found in zip(shape, stride, strict=True) if size > 1):
        if found != step:
            return False
        step *= size
    return True


def may_overlap(shape: Shape, stride: Shape) -> bool:
    """Return whether two elements could share memory, also where strides that do not nest leave it open."""
    end = 1
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size > 1):
        if step < end:
            return 0 not in shape
        end += (size - 1) * step
    return False


def ordered_like(shape: Shape, operands: Sequence[Shape]) -> Shape:
    """Dense strides for ``shape`` in the order of dimensions that the operands' strides have:
    ``TensorIterator::reorder_dimensions`` (and, for one operand, ``infer_dense_strides``). An operand's
    stride is 0 where it is broadcast."""
    rank = len(shape)
    order = list(range(rank - 1, -1, -1))
    for start in range(1, rank):
        place = start
        for other in range(start - 1, -1, -1):
            comparison = _compare(order[other], order[place], shape, operands)
            if comparison > 0:
                order[other], order[place] = order[place], order[other]
                place = other
            elif comparison < 0:
                break
    if order == list(range(rank - 1, -1, -1)):
        return row_major(shape)
    strides = [0] * rank
    step = 1
    for dimension in order:
        strides[dimension] = step
        step *= shape[dimension]
    return tuple(strides)


def _compare(first: int, second: int, shape: Shape, operands: Sequence[Shape]) -> int:
    for stride in operands:
        one, other = stride[first], stride[second]
        if one == 0 or other == 0:
            continue
        if one != other:
            return -1 if one < other else 1
        if shape[first] > shape[second]:
            return 1
    return 0
