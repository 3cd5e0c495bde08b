"""Many small tensors in one request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from djinn_lab.errors import Refused
from djinn_lab.pool.blobs.frames import decompressed, frames
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.protocol.rest.transfers import BLOB_HEADER, PIECES_FROM_BYTES
from djinn_lab.units import format_bytes


async def receive_joined(store: BlobStore, user: str, chunks: AsyncIterator[bytes]) -> int:
    """Store each tensor of a request's body as it arrives; return how many. Those before the body broke off
    stay. Raises Refused as :meth:`BlobStore.receive`, and for a frame that is malformed."""
    count = 0
    async for (digest, nbytes, _), data in frames(chunks, BLOB_HEADER, _length):
        whole = data if len(data) == nbytes else await asyncio.to_thread(decompressed, data, nbytes)
        await store.receive(user, digest.hex(), _one(whole))
        count += 1
    return count


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _length(digest: bytes, nbytes: int, length: int) -> int:
    if not 0 < length <= nbytes < PIECES_FROM_BYTES:
        raise Refused(
            f"{length} bytes cannot be tensor {digest.hex()[:16]}... of {nbytes} bytes; one request takes "
            f"tensors below {format_bytes(PIECES_FROM_BYTES)}."
        )
    return length
