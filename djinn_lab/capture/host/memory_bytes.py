"""A tensor's memory as bytes, without a copy and without numpy (torch would mark the storage as shared
with it for good, and never let it be swapped or resized again)."""

from __future__ import annotations

import ctypes

import torch

from djinn_lab.capture.values import Layout


def travelling(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the tensor itself, or a row-major copy where its memory has gaps."""
    return tensor.contiguous() if layout.span_bytes > layout.nbytes else tensor


def bytes_of(tensor: torch.Tensor, layout: Layout) -> memoryview:
    """Return the bytes that travel (:class:`djinn_lab.srg.program.Source`); ``tensor`` must outlive them."""
    start = tensor.storage_offset() * tensor.element_size()
    return _memory(tensor.untyped_storage(), int(start), layout.meta.blob_bytes)


def bytes_of_storage(storage: torch.UntypedStorage) -> memoryview:
    """Return all bytes of a storage, which must outlive the view."""
    return _memory(storage, 0, storage.nbytes())


def _memory(storage: torch.UntypedStorage, start: int, count: int) -> memoryview:
    if count == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * count).from_address(storage.data_ptr() + start)).cast("B")
