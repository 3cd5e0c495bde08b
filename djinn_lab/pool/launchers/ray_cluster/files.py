"""Tensors on their way between hosts: few bytes in the message itself, more through Ray's object store.

Objects are pieces of a file, so that the store never has to have space for a whole large one at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import ray

from djinn_lab.protocol.worker import RemoteFailure

INLINE_BYTES_MAX = 64 * 2**10
OBJECT_BYTES = 32 * 2**20
STORE_FULL = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)


class Content(msgspec.Struct, frozen=True):
    """The bytes of a file: ``inline``, or as objects one after the other."""

    nbytes: int
    inline: bytes = b""
    objects: tuple[Any, ...] = ()


async def read_file(path: Path) -> Content:
    """Raises FileNotFoundError."""
    nbytes = path.stat().st_size
    if nbytes <= INLINE_BYTES_MAX:
        return Content(nbytes, path.read_bytes())
    return await read_parts([(path, 0, nbytes)])


async def read_parts(parts: Iterable[tuple[Path, int, int]]) -> Content:
    """Read parts of files, each by its offset and bytes, one after the other. Raises OSError."""
    return await asyncio.to_thread(_put, list(parts))


def _put(parts: list[tuple[Path, int, int]]) -> Content:
    """Fill objects, since parts may be small or large."""
    objects, waiting = [], bytearray()
    for found in _read(parts):
        if waiting and len(waiting) + len(found) > OBJECT_BYTES:
            objects.append(ray.put(np.frombuffer(waiting, np.uint8)))
            waiting = bytearray()
        waiting += found
    if waiting:
        objects.append(ray.put(np.frombuffer(waiting, np.uint8)))
    return Content(sum(nbytes for _, _, nbytes in parts), objects=tuple(objects))


def _read(parts: list[tuple[Path, int, int]]) -> Iterator[bytes]:
    for path, offset, nbytes in parts:
        end = offset + nbytes
        with path.open("rb", buffering=0) as file:
            for begin in range(offset, end, OBJECT_BYTES):
                found = os.pread(file.fileno(), min(OBJECT_BYTES, end - begin), begin)
                if len(found) != min(OBJECT_BYTES, end - begin):
                    raise OSError(f"{path.name} ends before byte {end}")
                yield found


async def write_file(path: Path, content: Content) -> None:
    """Write a file whole, or not at all. Raises ray.exceptions.RayError when an object is lost."""
    incoming = path.with_name(f".{path.name}")
    try:
        with incoming.open("wb", buffering=0) as file:
            if content.inline:
                file.write(content.inline)
            for one in content.objects:
                part = await one
                await asyncio.to_thread(_write, file.fileno(), part)
        incoming.rename(path)
    finally:
        incoming.unlink(missing_ok=True)


def _write(descriptor: int, part: np.ndarray[Any, Any]) -> None:
    view, written = part.data, 0
    while written < len(view):
        written += os.write(descriptor, view[written:])


async def read_files(directory: Path, names: Iterable[str]) -> Mapping[str, Content]:
    """Read files by name. One that is not there is left out, so that the worker says what it misses."""
    found = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            found[name] = await read_file(directory / name)
    return found


def store_full_failure(what: str, error: Exception, node: str) -> RemoteFailure:
    """Return how a cell fails for which ``node`` had no space in its object store. ``what``: begins it."""
    cause = str(error).strip().splitlines()[-1].partition(".")[0]
    advice = f"Free space on the disk of {node}, or start Ray there with more --object-store-memory."
    return RemoteFailure("pool", "ObjectStoreFull", f"{what}: {cause}. {advice}", None, None, [])
