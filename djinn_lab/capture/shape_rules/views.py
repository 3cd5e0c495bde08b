"""Views of whole tensors, whose strides are known without asking torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from djinn_lab.capture.shapes.signature import Signature
from djinn_lab.capture.values import Layout
from djinn_lab.srg.program import row_major


def view_of(signature: Signature, inputs: Sequence[Layout], args: Sequence[Any]) -> Layout | None:
    """The layout of a view that begins where its input does. None where torch must be asked."""
    given = inputs[0] if len(inputs) == 1 else None
    if given is None or given.in_memory is not given or 0 in given.shape:
        return None
    if signature.name == "aten.view.default":
        return _viewed(given, args[1])
    if signature.name == "aten.t.default" and len(given.shape) == 2:
        return Layout.of(given.dtype, given.shape[::-1], given.stride[::-1])
    if signature.name == "aten.transpose.int":
        return _transposed(given, args[1], args[2])
    return None


def _viewed(given: Layout, size: Sequence[int]) -> Layout | None:
    shape = tuple(size)
    if given.stride != row_major(given.shape):  # dimensions of size 1 count, too
        return None
    if -1 in shape:
        known = -prod(shape)
        if known <= 0 or given.numel % known:
            return None
        place = shape.index(-1)
        shape = (*shape[:place], given.numel // known, *shape[place + 1 :])
    if min(shape, default=1) < 1 or prod(shape) != given.numel:
        return None
    return Layout.of(given.dtype, shape, row_major(shape))


def _transposed(given: Layout, first: int, second: int) -> Layout | None:
    rank = len(given.shape)
    if not (-rank <= first < rank and -rank <= second < rank):
        return None
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    shape = tuple(given.shape[place] for place in order)
    return Layout.of(given.dtype, shape, tuple(given.stride[place] for place in order))
