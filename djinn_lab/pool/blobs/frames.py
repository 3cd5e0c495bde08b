"""Bodies of requests that are rows of frames: a header, and as many bytes as it says, which may be
compressed."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import zstandard

from djinn_lab.errors import Refused
from djinn_lab.protocol.rest.transfers import PIECE_BYTES


async def frames(
    chunks: AsyncIterator[bytes], header: struct.Struct, length_of: Callable[..., int]
) -> AsyncIterator[tuple[tuple[Any, ...], bytes]]:
    """Cut a body into frames: the fields of each header, and the bytes behind it. ``length_of``: given the
    fields, returns how many bytes follow, or raises Refused. Raises Refused for a body that ends early."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) >= header.size:
            fields = header.unpack_from(buffer)
            end = header.size + length_of(*fields)
            if len(buffer) < end:
                break
            yield fields, bytes(buffer[header.size : end])
            del buffer[:end]
    if buffer:
        raise Refused("The body ends within a frame.")


def decompressed(data: bytes, nbytes: int) -> bytes:
    """Decompress the bytes of a frame, to ``nbytes``. Raises Refused for what has another size, or is no
    zstd."""
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=PIECE_BYTES).stream_reader(data)
        found = bytes(reader.read(nbytes + 1))
    except zstandard.ZstdError as error:
        raise Refused(f"Compressed bytes cannot be read: {error}.") from None
    if len(found) != nbytes:
        raise Refused(f"Compressed bytes are not the {nbytes} that were announced.")
    return found
