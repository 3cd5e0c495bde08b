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


def promoting(layouts: Sequence[Layout]) -> Callable[[LazyValue], torch.Tensor]:
    """Return tensors for type promotion, which looks at dtypes and at whether there are dimensions. What is
    made of them has no elements."""
    flat = not any(layout.shape for layout in layouts)
    return lambda value: torch.zeros((0,) if flat or value.layout.shape else (), dtype=value.layout.dtype)


def no_elements(value: LazyValue) -> torch.Tensor:
    layout = value.layout
    return torch.empty((0,) * max(1, len(layout.shape)), dtype=layout.dtype)


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
    memory = {
        storage: torch.zeros(size, dtype=torch.uint8).untyped_storage()
        for storage, size in _sizes(values).items()
    }
    return lambda value: _on(memory[value.storage], value)


def _sizes(values: Sequence[LazyValue]) -> dict[LazyStorage, int]:
    """Return how many bytes the values need of each memory."""
    sizes: dict[LazyStorage, int] = {}
    for value in values:
        end = value.offset * value.layout.dtype.itemsize + value.layout.span_bytes
        sizes[value.storage] = max(sizes.get(value.storage, 1), end)
    return sizes


def _on(memory: torch.UntypedStorage, value: LazyValue) -> torch.Tensor:
    layout = value.layout
    empty = torch.empty(0, dtype=layout.dtype, device=memory.device)
    return read_as(empty.set_(memory, value.offset, layout.shape, layout.stride), layout)


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
