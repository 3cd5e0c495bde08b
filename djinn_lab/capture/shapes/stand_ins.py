"""Tensors of the layout of a value, to learn on them what an op would return, or what a change of shape in
place makes of its argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from djinn_lab.capture.arguments import map_tensors
from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.shapes.signature import Signature
from djinn_lab.capture.values import Layout, LazyStorage, LazyValue, read_as
from djinn_lab.errors import CaptureError

META = torch.device("meta")


def meta(value: LazyValue) -> torch.Tensor:
    layout = value.layout
    if value.offset == 0:
        made = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=META)
    else:
        elements = value.offset + layout.span_bytes // layout.dtype.itemsize
        base = torch.empty(elements, dtype=layout.dtype, device=META)
        made = base.as_strided(layout.shape, layout.stride, value.offset)
    return read_as(made, layout)


def two_elements(value: LazyValue) -> torch.Tensor:
    layout = value.layout
    return torch.ones((2,) if layout.shape else (), dtype=layout.dtype)


def fake(value: LazyValue) -> torch.Tensor:
    layout = value.layout
    return read_as(torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype), layout)


def zeros(value: LazyValue) -> torch.Tensor:
    return _filled(value.layout, 0)


def ones(value: LazyValue) -> torch.Tensor:
    return _filled(value.layout, 1)


def _filled(layout: Layout, number: int) -> torch.Tensor:
    elements = max(1, layout.span_bytes // layout.dtype.itemsize)
    memory = torch.full((elements,), number, dtype=layout.dtype)
    return read_as(memory.as_strided(layout.shape, layout.stride), layout)


def zeros_sharing(values: Sequence[LazyValue]) -> Callable[[LazyValue], torch.Tensor]:
    """Return zeros that share memory where the values do."""
    sizes: dict[LazyStorage, int] = {}
    for value in values:
        end = value.offset * value.layout.dtype.itemsize + value.layout.span_bytes
        sizes[value.storage] = max(sizes.get(value.storage, 1), end)
    memory = {
        storage: torch.zeros(size, dtype=torch.uint8).untyped_storage() for storage, size in sizes.items()
    }

    def stand_in(value: LazyValue) -> torch.Tensor:
        layout = value.layout
        empty = torch.empty(0, dtype=layout.dtype)
        made = empty.set_(memory[value.storage], value.offset, layout.shape, layout.stride)
        return read_as(made, layout)

    return stand_in


def meta_of_lazy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a lazy tensor's shape without its memory; any other tensor as it is."""
    if not is_lazy(tensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def on_meta(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op on the shapes of lazy tensors alone."""
    with paused():
        return signature.func(*map_tensors(meta_of_lazy, args), **kwargs)


def resized_layout(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout:
    """Return the layout that ``resize_`` or ``resize_as_`` gives its first argument."""
    resized = on_meta(signature, args, kwargs)
    shape, stride = tuple(resized.shape), resized.stride()
    return Layout.of(resized.dtype, shape, stride, args[0].is_conj(), args[0].is_neg())


def changed_shape(signature: Signature) -> CaptureError:
    return CaptureError(
        f"{signature.name} changes the shape of a lazy tensor in place.",
        "Use the variant without the trailing underscore, or fetch the tensor with .cpu() first.",
    )
