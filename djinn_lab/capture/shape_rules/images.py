"""Ops of convolutional networks: convolutions, pooling and batch norms, with their backwards.

For row-major floating-point numbers of one type. Torch lays their results out in the memory format of the
input and the weights (``suggest_memory_format``), row-major for these. Shapes are those of
aten/src/ATen/native/ConvUtils.h and Pool.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from djinn_lab.capture.shape_rules.layers import Answer, fresh, layouts_of, ordinary
from djinn_lab.capture.values import Layout


def _packed(*layouts: Layout | None) -> bool:
    """Ordinary, with row-major strides also in dimensions of size 1, by which torch distinguishes memory
    formats."""
    return ordinary(*layouts) and all(one is not None and one.row_major for one in layouts)


def convolution(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    given, weight, bias = layouts_of(inputs, args, 3)
    if len(args) != 9 or given is None or weight is None:
        return None
    shape = _convolved(given, weight, *args[3:])
    if shape is None or (bias is not None and (not _packed(given, bias) or bias.shape != shape[1:2])):
        return None
    return [fresh(given.dtype, shape)]


def convolution_backward(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """The gradients of the input, the weights and the bias that ``output_mask`` asks for."""
    if len(args) != 11 or len(inputs) != 3:
        return None
    gradient, given, weight = inputs
    shape, mask = _convolved(given, weight, *args[4:10]), args[10]
    if shape is None or not _packed(given, gradient) or gradient.shape != shape:
        return None
    shapes = (given.shape, weight.shape, shape[1:2])
    return [fresh(given.dtype, one) if asked else None for one, asked in zip(shapes, mask, strict=True)]


def _convolved(
    given: Layout,
    weight: Layout,
    steps: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> tuple[int, ...] | None:
    """The shape of a convolution that is not transposed."""
    rank = len(weight.shape) - 2
    if not _packed(given, weight) or len(given.shape) != rank + 2 or rank not in (1, 2, 3):
        return None
    if transposed or any(output_padding) or groups < 1 or weight.shape[0] % groups:
        return None
    if given.shape[1] != weight.shape[1] * groups:
        return None
    space = _windows(given.shape[2:], weight.shape[2:], steps, padding, dilation)
    return None if space is None else (given.shape[0], weight.shape[0], *space)


def _windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    steps: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool = False,
) -> list[int] | None:
    """How many places a window of this size has in each dimension. None where torch would refuse."""
    rank = len(sizes)
    if any(len(numbers) != rank for numbers in (kernel, steps, padding, dilation)):
        return None
    if min(steps) < 1 or min(dilation) < 1 or min(padding) < 0:
        return None
    counts = []
    for size, window, step, pad, spread in zip(sizes, kernel, steps, padding, dilation, strict=True):
        left = size + 2 * pad - spread * (window - 1) - 1
        if left < 0:
            return None
        count = (left + (step - 1 if ceil else 0)) // step + 1
        if ceil and (count - 1) * step >= size + pad:  # the last window begins in the padding at the end
            count -= 1
        counts.append(count)
    return counts


def max_pool(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``max_pool2d_with_indices``: the maxima and where they are."""
    [given] = inputs
    shape = _max_pooled(given, *args[1:])
    return None if shape is None else [fresh(given.dtype, shape), fresh(torch.int64, shape)]


def max_pool_backward(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    if len(inputs) != 3 or len(args) != 8:
        return None
    gradient, given, indices = inputs
    shape = _max_pooled(given, *args[2:7])
    if shape is None or not _packed(given, gradient) or not gradient.shape == indices.shape == shape:
        return None
    return [fresh(given.dtype, given.shape)] if indices.dtype is torch.int64 else None


def _max_pooled(
    given: Layout,
    kernel: Sequence[int],
    steps: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil: bool = False,
) -> tuple[int, ...] | None:
    if len(given.shape) not in (3, 4) or not _packed(given) or len(kernel) != 2 or min(kernel) < 1:
        return None
    if len(padding) != 2 or any(2 * pad > window for pad, window in zip(padding, kernel, strict=True)):
        return None
    counts = _windows(given.shape[-2:], kernel, steps or kernel, padding, dilation, ceil)
    return None if counts is None else (*given.shape[:-2], *counts)


def average_pool(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``avg_pool2d``."""
    [given] = inputs
    shape = _average_pooled(given, *args[1:])
    return None if shape is None else [fresh(given.dtype, shape)]


def average_pool_backward(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    if len(inputs) != 2 or len(args) != 8:
        return None
    gradient, given = inputs
    shape = _average_pooled(given, *args[2:])
    fits = shape is not None and _packed(given, gradient) and gradient.shape == shape
    return [fresh(given.dtype, given.shape)] if fits else None


def _average_pooled(
    given: Layout,
    kernel: Sequence[int],
    steps: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil: bool = False,
    include: bool = True,
    divisor: int | None = None,
) -> tuple[int, ...] | None:
    return None if divisor == 0 else _max_pooled(given, kernel, steps, padding, (1, 1), ceil)


def adaptive_pool(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``_adaptive_avg_pool2d``."""
    [given] = inputs
    if len(given.shape) not in (3, 4) or not _packed(given) or len(args[1]) != 2 or min(args[1]) < 1:
        return None
    return [fresh(given.dtype, (*given.shape[:-2], *args[1]))]


def adaptive_pool_backward(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    gradient, given = inputs
    if not _packed(given, gradient) or len(given.shape) not in (3, 4):
        return None
    return [fresh(given.dtype, given.shape)] if gradient.shape[:-2] == given.shape[:-2] else None


def batch_norm(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``native_batch_norm``: the result, and in training the means and the reciprocals of the deviations."""
    given, *others = layouts_of(inputs, args, 5)
    if len(args) != 8 or given is None or not _by_channel(given, others):
        return None
    means, variances, training = others[2], others[3], args[5]
    if (means is None) is not (variances is None) or (means is None and not training):
        return None
    saved = fresh(given.dtype, given.shape[1:2] if training else (0,))
    return [fresh(given.dtype, given.shape), saved, saved]


def batch_norm_backward(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    gradient, given, *others = layouts_of(inputs, args, 7)
    if len(args) != 10 or given is None or args[7] is not True or not _by_channel(given, others):
        return None
    if not _packed(given, gradient) or gradient is None or gradient.shape != given.shape:
        return None
    if others[3] is None or others[4] is None:
        return None
    shapes = (given.shape, given.shape[1:2], given.shape[1:2])
    return [fresh(given.dtype, one) if asked else None for one, asked in zip(shapes, args[9], strict=True)]


def _by_channel(given: Layout, others: Sequence[Layout | None]) -> bool:
    """Whether the others hold a number for each channel of ``given``."""
    present = [layout for layout in others if layout is not None]
    fits = all(layout.shape == given.shape[1:2] for layout in present)
    return fits and len(given.shape) >= 2 and _packed(given, *present)
