"""Views of one tensor, whose strides and offsets are known without asking torch (aten/src/ATen/native/
TensorShape.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from djinn_lab.capture.shape_rules.strides import Shape
from djinn_lab.capture.shapes.signature import Signature
from djinn_lab.capture.values import Layout
from djinn_lab.srg.program import row_major

View = tuple[Shape, Shape, int]
"""Shape, stride and the first element's distance from that of the input."""
_Rule = Callable[..., Sequence[View] | None]


def views_of(
    signature: Signature, inputs: Sequence[Layout], args: Sequence[object], kwargs: dict[str, object]
) -> list[tuple[Layout, int]] | None:
    """Return the layouts of the views that an op makes, each with its distance from where the input begins.
    None where torch must be asked."""
    rule = _RULES.get(signature.name)
    given = inputs[0] if len(inputs) == 1 else None
    if rule is None or given is None or given.in_memory is not given or not given.numel or kwargs:
        return None
    made = rule(given.shape, given.stride, *args[1:])
    if made is None:
        return None
    return [(Layout.of(given.dtype, shape, stride), offset) for shape, stride, offset in made]


def makes_list(signature: Signature) -> bool:
    """Return whether the op returns a list of views, and not one."""
    return signature.name in _LISTS


def _viewed(shape: Shape, stride: Shape, size: Sequence[int]) -> Sequence[View] | None:
    wanted, numel = tuple(size), prod(shape)
    if -1 in wanted:
        known = -prod(wanted)
        if known <= 0 or numel % known:
            return None
        place = wanted.index(-1)
        wanted = (*wanted[:place], numel // known, *wanted[place + 1 :])
    if min(wanted, default=1) < 1 or prod(wanted) != numel:
        return None
    if stride == row_major(shape):
        return [(wanted, row_major(wanted), 0)]
    found = _regrouped(shape, stride, wanted)
    return None if found is None else [(wanted, found, 0)]


def _regrouped(shape: Shape, stride: Shape, wanted: Shape) -> Shape | None:
    """``computeStride_impl``: each run of dimensions that lie one after another is divided anew. None where
    a wanted dimension would span two runs."""
    strides = [0] * len(wanted)
    place, step = len(wanted) - 1, stride[-1] if stride else 1
    elements = left = 1
    for at in range(len(shape) - 1, -1, -1):
        elements *= shape[at]
        if at and (shape[at - 1] == 1 or stride[at - 1] == elements * step):
            continue
        while place >= 0 and (left < elements or wanted[place] == 1):
            strides[place] = left * step
            left *= wanted[place]
            place -= 1
        if left != elements:
            return None
        if at:
            step, elements, left = stride[at - 1], 1, 1
    return tuple(strides) if place < 0 else None


def _reordered(shape: Shape, stride: Shape, order: Sequence[int]) -> Sequence[View]:
    return [(tuple([shape[place] for place in order]), tuple([stride[place] for place in order]), 0)]


def _transposed(shape: Shape, stride: Shape, first: int, second: int) -> Sequence[View] | None:
    rank = len(shape)
    if not (-rank <= first < rank and -rank <= second < rank):
        return None
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return _reordered(shape, stride, order)


def _turned(shape: Shape, stride: Shape) -> Sequence[View] | None:
    return [(shape[::-1], stride[::-1], 0)] if len(shape) == 2 else None


def _permuted(shape: Shape, stride: Shape, dimensions: Sequence[int]) -> Sequence[View] | None:
    rank = len(shape)
    if not all(-rank <= one < rank for one in dimensions):
        return None
    order = [one % rank for one in dimensions]
    return _reordered(shape, stride, order) if sorted(order) == list(range(rank)) else None


def _expanded(shape: Shape, stride: Shape, size: Sequence[int]) -> Sequence[View] | None:
    """``inferExpandGeometryImpl``."""
    new = len(size) - len(shape)
    if new < 0 or not shape or any(one < 1 for one in size[:new]):
        return None
    sizes, steps = [*size[:new], *shape], [0] * new + list(stride)
    for at in range(len(size) - 1, -1, -1):
        if at < new:
            steps[at] = sizes[at + 1] * steps[at + 1] if size[at] == 1 else 0
        elif size[at] not in (-1, sizes[at]):
            if sizes[at] != 1 or size[at] < 1:
                return None
            sizes[at], steps[at] = size[at], 0
    return [(tuple(sizes), tuple(steps), 0)]


def _selected(shape: Shape, stride: Shape, dimension: int, index: int) -> Sequence[View] | None:
    rank = len(shape)
    if not -rank <= dimension < rank or not -shape[dimension] <= index < shape[dimension]:
        return None
    dimension %= rank
    begin = index % shape[dimension] * stride[dimension]
    after = dimension + 1
    return [(shape[:dimension] + shape[after:], stride[:dimension] + stride[after:], begin)]


def _sliced(
    shape: Shape,
    stride: Shape,
    dimension: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Sequence[View] | None:
    rank = len(shape)
    if not -rank <= dimension < rank or step < 1:
        return None
    dimension %= rank
    begin, stop, _ = slice(start, end).indices(shape[dimension])
    if stop <= begin:
        return None
    count, after = (stop - begin + step - 1) // step, dimension + 1
    sizes = (*shape[:dimension], count, *shape[after:])
    steps = (*stride[:dimension], stride[dimension] * step, *stride[after:])
    return [(sizes, steps, begin * stride[dimension])]


def _unsqueezed(shape: Shape, stride: Shape, dimension: int) -> Sequence[View] | None:
    rank = len(shape)
    if not -rank - 1 <= dimension <= rank:
        return None
    place = dimension % (rank + 1)
    step = 1 if place == rank else shape[place] * stride[place]
    return [((*shape[:place], 1, *shape[place:]), (*stride[:place], step, *stride[place:]), 0)]


def _squeezed(
    shape: Shape, stride: Shape, dimensions: int | Sequence[int] | None = None
) -> Sequence[View] | None:
    rank = len(shape)
    if dimensions is None:
        dimensions = range(rank)
    elif isinstance(dimensions, int):
        dimensions = (dimensions,)
    if not all(-rank <= one < rank for one in dimensions):
        return None
    if len({one % rank for one in dimensions}) != len(dimensions):
        return None
    gone = {one % rank for one in dimensions if shape[one] == 1}
    return _reordered(shape, stride, [at for at in range(rank) if at not in gone])


def _split(shape: Shape, stride: Shape, size: int, dimension: int = 0) -> Sequence[View] | None:
    rank = len(shape)
    if not -rank <= dimension < rank or size < 1:
        return None
    length = shape[dimension]
    sizes = [min(size, length - begin) for begin in range(0, length, size)]
    return _split_with_sizes(shape, stride, sizes, dimension)


def _split_with_sizes(
    shape: Shape, stride: Shape, sizes: Sequence[int], dimension: int = 0
) -> Sequence[View] | None:
    rank = len(shape)
    if not -rank <= dimension < rank or min(sizes, default=0) < 1 or sum(sizes) != shape[dimension]:
        return None
    dimension %= rank
    made, begin = [], 0
    for size in sizes:
        made.append(((*shape[:dimension], size, *shape[dimension + 1 :]), stride, begin * stride[dimension]))
        begin += size
    return made


def _unbound(shape: Shape, stride: Shape, dimension: int = 0) -> Sequence[View] | None:
    if not -len(shape) <= dimension < len(shape):
        return None
    return [
        one for index in range(shape[dimension]) for one in _selected(shape, stride, dimension, index) or ()
    ]


_RULES: dict[str, _Rule] = {
    "aten.view.default": _viewed,
    "aten.t.default": _turned,
    "aten.transpose.int": _transposed,
    "aten.permute.default": _permuted,
    "aten.expand.default": _expanded,
    "aten.select.int": _selected,
    "aten.slice.Tensor": _sliced,
    "aten.unsqueeze.default": _unsqueezed,
    "aten.squeeze.default": _squeezed,
    "aten.squeeze.dim": _squeezed,
    "aten.squeeze.dims": _squeezed,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split_with_sizes,
    "aten.unbind.int": _unbound,
}
_LISTS = {"aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int"}
