"""Bytes in and out of a device, through files in the pool's blob directory (shared memory) or inline."""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import FileIO
from pathlib import Path

import torch

from djinn_lab.errors import PoolError, Refused
from djinn_lab.protocol.worker import FetchedTensor
from djinn_lab.srg.program import Source, TensorMeta, row_major
from djinn_lab.system.files import allocate
from djinn_lab.units import format_bytes

INLINE_BYTES_MAX = 64 * 2**10


def load_source(
    source: Source, meta: TensorMeta, blobs: Mapping[str, str], device: torch.device
) -> torch.Tensor:
    """The tensor that a source's bytes describe, with exactly the stride of ``meta``. A blob is mapped
    copy-on-write, so equal weights of several sessions share pages until one of them writes."""
    dtype: torch.dtype = getattr(torch, meta.dtype)
    if meta.numel == 0:
        return torch.empty_strided(meta.shape, meta.stride, dtype=dtype, device=device)
    needed, span_bytes = meta.blob_bytes, meta.span_bytes
    if source.inline is not None and needed == span_bytes and device.type == "cpu":
        return _filled(source, needed, torch.empty_strided(meta.shape, meta.stride, dtype=dtype))
    raw = _raw_bytes(source, needed, blobs)
    elements = raw.view(dtype)
    if needed == span_bytes:
        tensor = elements.as_strided(meta.shape, meta.stride, 0)
        return tensor if device.type == "cpu" else _to_device(elements, meta, device)
    strided = zeros_strided(meta.shape, meta.stride, dtype, device)
    once = tuple(
        slice(0, 1) if step == 0 else slice(None) for step in meta.stride
    )  # expanded: the same memory
    strided[once].copy_(elements.view(meta.shape)[once])
    return strided


def load_shared(
    source: Source, meta: TensorMeta, blobs: Mapping[str, str], device: torch.device
) -> torch.UntypedStorage:
    """A blob's bytes as they are, for sessions that read them. On the CPU they stay the file's pages."""
    raw = _raw_bytes(source, meta.blob_bytes, blobs)
    return raw.to(device).untyped_storage()


def zeros_strided(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Zeros in the gaps, too."""
    made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    zero_memory(made)
    return made


def zero_memory(tensor: torch.Tensor) -> None:
    """Fill a new tensor's whole memory with zeros: what lay there may have been another user's, and a view
    can look between the elements."""
    torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).zero_()


def _raw_bytes(source: Source, expected: int, blobs: Mapping[str, str]) -> torch.Tensor:
    if source.inline is not None:
        return _filled(source, expected, torch.empty(expected, dtype=torch.uint8))
    assert source.blob is not None
    path = blobs[source.blob]
    _expect(source, Path(path).stat().st_size, expected)
    return torch.from_file(path, shared=False, size=expected, dtype=torch.uint8)


def _filled(source: Source, expected: int, memory: torch.Tensor) -> torch.Tensor:
    """Copy a source's bytes to ``memory`` as torch allots it: what some kernels compute depends on where
    their inputs begin, and a restored tensor begins there, too."""
    assert source.inline is not None
    _expect(source, len(source.inline), expected)
    ctypes.memmove(memory.data_ptr(), source.inline, expected)
    return memory


def _expect(source: Source, found: int, expected: int) -> None:
    if found != expected:
        raise Refused(f"value {source.value} came with {found} bytes where its layout needs {expected}.")


def _to_device(elements: torch.Tensor, meta: TensorMeta, device: torch.device) -> torch.Tensor:
    return elements.to(device).as_strided(meta.shape, meta.stride, 0)


def result_name() -> str:
    """Return a new name, which says whose result it is: a pool removes those that a dead worker had not yet
    named in a message."""
    return f"result-{os.getpid():08x}{uuid.uuid4().hex[8:]}"


def new_mapped_file(path: Path, nbytes: int) -> torch.Tensor:
    """Return the bytes of a new file. Its space is allocated now: a write to a page that the file system
    cannot give would kill the process. Raises PoolError where there is too little."""
    with _written(path, nbytes) as file:
        allocate(file.fileno(), 0, nbytes)
    return torch.from_file(str(path), shared=True, size=nbytes, dtype=torch.uint8)


def store_result(value: int, tensor: torch.Tensor, results: Path) -> FetchedTensor:
    """Row-major bytes of a value: inline when few, else in a new file of ``results``."""
    if tensor._is_zerotensor():
        tensor = tensor.clone()
    host = tensor.resolve_conj().resolve_neg().cpu()
    meta, nbytes = _layout(host.dtype, host.shape)
    if nbytes <= INLINE_BYTES_MAX and host.is_contiguous():
        return FetchedTensor(value, meta, ctypes.string_at(host.data_ptr(), nbytes), None)
    host = host.detach()
    if host.dtype is torch.bool:
        host = host.view(torch.uint8)  # a copy of bools would make each byte 0 or 1; a view can read others
    if nbytes <= INLINE_BYTES_MAX:
        flat = torch.empty(host.shape, dtype=host.dtype).copy_(host)  # one element may claim any stride
        data = flat.view(-1).view(torch.uint8).numpy().tobytes() if nbytes else b""
        return FetchedTensor(value, meta, data, None)
    name = result_name()
    path = results / name
    if host.is_contiguous():
        _write(path, host)
    else:
        mapped = new_mapped_file(path, nbytes)
        mapped.view(host.dtype).view(meta.shape).copy_(host)
    return FetchedTensor(value, meta, None, name)


@lru_cache
def _layout(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[TensorMeta, int]:
    """Return the layout of a result, and its bytes."""
    meta = TensorMeta(str(dtype).removeprefix("torch."), tuple(shape), row_major(shape))
    return meta, meta.nbytes


def _write(path: Path, host: torch.Tensor) -> None:
    """Faster than copying into a mapping of a new file, which takes a page fault for every page."""
    content = host.view(-1).view(torch.uint8).numpy().data
    with _written(path, host.nbytes) as file:
        written = 0
        while written < host.nbytes:
            written += file.write(content[written:])


@contextmanager
def _written(path: Path, nbytes: int) -> Iterator[FileIO]:
    """Open a new file for ``nbytes`` of results. Raises PoolError, and leaves it empty, where its file system
    has too little space: a worker may remove no results, which the pool does at its end."""
    try:
        with path.open("wb", buffering=0) as file:
            yield file
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, 0)
        raise PoolError(
            f"{format_bytes(nbytes)} of results could not be written to {path.parent}: {error.strerror}.",
            "Free space in that file system, which is shared memory where parked sessions lie, too, or start "
            "the pool with less --host-memory; then run the cell again.",
        ) from error
