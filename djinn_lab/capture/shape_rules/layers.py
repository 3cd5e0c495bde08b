"""Ops that layers are made of: products, reductions, softmax, norms, losses, embeddings.

Torch's own rules for them are written in Python and many times slower. These answer for what layers mostly
get, which is row-major floating-point numbers of one type, and leave the rest to torch. Shapes are those of
the ``TORCH_META_FUNC`` of each op (aten/src/ATen/native).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from djinn_lab.capture.shape_rules.elementwise import broadcast
from djinn_lab.capture.shape_rules.strides import is_row_major
from djinn_lab.capture.values import Layout
from djinn_lab.srg.ops import RECURRENT_MODES
from djinn_lab.srg.program import row_major

Answer = Sequence[Layout | None] | None
"""None: ask torch. Of a result: None where the op returns no tensor."""
Rule = Callable[[Sequence[Layout], Sequence[Any], dict[str, Any]], Answer]
_FLOATING = {torch.float32, torch.float64}
_MEAN, _SUM = 1, 2


def fresh(dtype: torch.dtype, shape: Sequence[int]) -> Layout:
    sizes = tuple(shape)
    return Layout.of(dtype, sizes, row_major(sizes))


def ordinary(*layouts: Layout | None) -> bool:
    """Return whether all are row-major floating-point numbers of one type, at least one of each."""
    first = layouts[0]
    return (
        first is not None
        and first.dtype in _FLOATING
        and all(
            layout is not None
            and layout.dtype is first.dtype
            and layout.numel > 0
            and not layout.conjugate
            and not layout.negative
            and (layout.row_major or is_row_major(layout.shape, layout.stride))
            for layout in layouts
        )
    )


def layouts_of(inputs: Sequence[Layout], args: Sequence[object], count: int) -> list[Layout | None]:
    """Return the layouts of the first ``count`` arguments, None where there is none."""
    ready = iter(inputs)
    found = [next(ready) if isinstance(item, torch.Tensor) else None for item in args[:count]]
    return found + [None] * (count - len(found))


def _multiplied(left: Layout, right: Layout) -> tuple[int, ...] | None:
    """The shape of a product of matrices, or of as many of them as there are."""
    same = left.shape[:-2] == right.shape[:-2] and left.shape[-1] == right.shape[-2]
    return (*left.shape[:-1], right.shape[-1]) if same else None


def matrix_product(rank: int, added: bool) -> Rule:
    """``mm`` and ``bmm``; with a term that is added, ``addmm`` and ``baddbmm``. Any strides will do."""

    def rule(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
        if len(inputs) != 2 + added or kwargs.get("out_dtype") or not _one_floating_type(inputs):
            return None
        left, right = inputs[-2:]
        if not len(left.shape) == len(right.shape) == rank or not left.numel or not right.numel:
            return None
        shape = _multiplied(left, right)
        if shape is None or (added and broadcast([inputs[0].shape, shape]) != shape):
            return None
        return [fresh(left.dtype, shape)]

    return rule


def softmax(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``_softmax`` and ``_log_softmax``. Raises IndexError, as their kernels do and torch's rule does not."""
    last = max(1, len(inputs[0].shape)) - 1
    if not -last - 1 <= args[1] <= last:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-last - 1}, {last}], but got {args[1]})"
        )
    if len(inputs) != 1 or len(args) != 3 or args[2] or not ordinary(*inputs):
        return None
    [given] = inputs
    return [given] if _is_dimension(args[1], given) and given.stride == row_major(given.shape) else None


def softmax_backward(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    if len(inputs) != 2 or len(args) != 4 or not ordinary(*inputs) or inputs[0].shape != inputs[1].shape:
        return None
    if args[3] is not inputs[0].dtype or not _is_dimension(args[2], inputs[0]):
        return None
    return [fresh(inputs[0].dtype, inputs[0].shape)]


def _is_dimension(dimension: object, layout: Layout) -> bool:
    rank = len(layout.shape)
    return rank > 0 and isinstance(dimension, int) and -rank <= dimension < rank


def reduced(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``sum`` and ``mean`` over some dimensions."""
    [given] = inputs
    rank, dimensions = len(given.shape), args[1] if len(args) > 1 else None
    if not ordinary(given) or kwargs or not dimensions or not rank:
        return None
    if not all(_is_dimension(one, given) for one in dimensions):
        return None
    gone = {one % rank for one in dimensions}
    if len(gone) != len(dimensions):
        return None
    if len(args) > 2 and args[2]:
        return [fresh(given.dtype, [1 if at in gone else size for at, size in enumerate(given.shape)])]
    return [fresh(given.dtype, [size for at, size in enumerate(given.shape) if at not in gone])]


def nll_loss(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``nll_loss_forward`` of a batch, without weights: the loss and the weight of all."""
    scores, target, weight = layouts_of(inputs, args, 3)
    if len(args) != 5 or weight is not None or not _are_classes(scores, target):
        return None
    assert scores is not None
    losses = () if args[3] in (_MEAN, _SUM) else scores.shape[:1]
    return [fresh(scores.dtype, losses), fresh(scores.dtype, ())]


def nll_loss_backward(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    gradient, scores, target, weight = layouts_of(inputs, args, 4)
    if len(args) != 7 or weight is not None or not _are_classes(scores, target):
        return None
    assert scores is not None
    if not ordinary(gradient, scores) or args[4] not in (_MEAN, _SUM):
        return None
    assert gradient is not None
    return [fresh(scores.dtype, scores.shape)] if gradient.shape == () else None


def _are_classes(scores: Layout | None, target: Layout | None) -> bool:
    if scores is None or target is None or not ordinary(scores) or target.dtype is not torch.int64:
        return False
    return len(scores.shape) == 2 and target.shape == scores.shape[:1]


def mean_square(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``mse_loss`` as one number."""
    reduction = args[2] if len(args) > 2 else _MEAN
    same = len(inputs) == 2 and ordinary(*inputs) and inputs[0].shape == inputs[1].shape
    return [fresh(inputs[0].dtype, ())] if same and reduction in (_MEAN, _SUM) else None


def mean_square_backward(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    if len(inputs) != 3 or len(args) != 4 or not ordinary(*inputs) or args[3] not in (_MEAN, _SUM):
        return None
    gradient, given, target = inputs
    return [fresh(given.dtype, given.shape)] if gradient.shape == () and given.shape == target.shape else None


def layer_norm(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """The result, the means and the reciprocals of the deviations."""
    given, _, weight, bias = layouts_of(inputs, args, 4)
    present = [layout for layout in (given, weight, bias) if layout is not None]
    if len(args) != 5 or given is None or not ordinary(given, *present):
        return None
    normalized = tuple(args[1])
    if not normalized or given.shape[-len(normalized) :] != normalized:
        return None
    if any(layout.shape != normalized for layout in (weight, bias) if layout is not None):
        return None
    kept = len(given.shape) - len(normalized)
    each = (*given.shape[:kept], *[1] * len(normalized))
    return [fresh(given.dtype, given.shape), fresh(given.dtype, each), fresh(given.dtype, each)]


def layer_norm_backward(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """The gradients of the input, the weight and the bias that ``output_mask`` asks for."""
    if len(args) != 8 or len(inputs) != 6 or not ordinary(*inputs):
        return None
    gradient, given, mean, deviation, weight, bias = inputs
    normalized = tuple(args[2])
    kept = len(given.shape) - len(normalized)
    each = (*given.shape[:kept], *[1] * len(normalized))
    fits = gradient.shape == given.shape and mean.shape == each == deviation.shape
    if not normalized or not fits or not given.shape[kept:] == weight.shape == bias.shape == normalized:
        return None
    shapes = (given.shape, normalized, normalized)
    return [fresh(given.dtype, one) if asked else None for one, asked in zip(shapes, args[7], strict=True)]


def embedding(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    weight, indices = inputs
    if len(weight.shape) != 2 or not ordinary(weight) or 0 in indices.shape:
        return None
    if indices.dtype is not torch.int64 or not is_row_major(indices.shape, indices.stride):
        return None
    return [fresh(weight.dtype, (*indices.shape, weight.shape[1]))]


def embedding_backward(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    gradient, indices = inputs
    if len(args) != 5 or not ordinary(gradient) or indices.dtype is not torch.int64 or not args[2]:
        return None
    fits = gradient.shape[:-1] == indices.shape and 0 not in indices.shape
    return [fresh(gradient.dtype, (args[2], gradient.shape[-1]))] if fits else None


def placed(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``select_backward`` and ``slice_backward``: zeros, with the gradient copied to where it is from."""
    size, dimension, *where = args[1:]
    rank = len(size)
    if len(args) not in (4, 6) or not -rank <= dimension < rank or min(size) < 1:
        return None
    dimension %= rank
    length = size[dimension]
    if len(where) == 1:
        fits = -length <= where[0] < length
        part: tuple[int, ...] = ()
    else:
        start, end, step = where
        fits = step > 0
        part = (len(range(*slice(start, end, step).indices(length))),) if fits else ()
    shape = (*size[:dimension], *part, *size[dimension + 1 :])
    return [fresh(inputs[0].dtype, size)] if fits and inputs[0].shape == shape else None


def fits_in_place(inputs: Sequence[Layout]) -> bool:
    """Return whether all are floating-point numbers of one type, broadcast to the shape of the first."""
    first = inputs[0]
    if not first.numel or not _one_floating_type(inputs):
        return False
    return broadcast([item.shape for item in inputs]) == first.shape


def _one_floating_type(inputs: Sequence[Layout]) -> bool:
    dtype = inputs[0].dtype
    return dtype in _FLOATING and all(layout.dtype is dtype for layout in inputs)


def _is_whole_on_cpus(mode: int, source: Layout) -> bool:
    return mode == RECURRENT_MODES["lstm"] and source.dtype is torch.float32


def recurrent_layer(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``mkldnn_rnn_layer`` as accelerators compute it: the output, both last states and a byte that nothing
    reads. A CPU's kernel, which there is for few of its modes and dtypes, lays them out by itself."""
    source, states = inputs[0], inputs[5:7]
    if _is_whole_on_cpus(args[9], source):
        return None
    steps, batch, _ = source.shape
    last = [fresh(source.dtype, state.shape) for state in states]
    return [fresh(source.dtype, (steps, batch, args[10])), *last, fresh(torch.uint8, (1,))]


def recurrent_layer_backward(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """The gradients of the source, the weights and both states."""
    if _is_whole_on_cpus(args[14], inputs[0]):
        return None
    return [fresh(one.dtype, one.shape) for one in inputs[:7]]
