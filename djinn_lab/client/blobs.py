"""Tensor bytes on their way to and from the pool: shared memory on the same host, HTTP elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import blake3
import httpx
import msgspec
import torch

from djinn_lab.capture.host.interrupts import check
from djinn_lab.client.compression import compressed
from djinn_lab.client.connection import PoolConnection
from djinn_lab.client.downloads import Downloads
from djinn_lab.client.moving import Moving
from djinn_lab.client.transfer_requests import TRANSFERS_LOST, TransferRequests
from djinn_lab.errors import PoolError, PoolLost
from djinn_lab.protocol.messages import BlobsMissing, BlobStored, Fetched, QueryBlobs
from djinn_lab.protocol.rest.transfers import (
    BLOB_HEADER,
    HEADER,
    PIECE_BYTES,
    PIECES_FROM_BYTES,
    PiecesAnnounced,
    PiecesMissing,
    piece_bytes,
)
from djinn_lab.srg.blob_names import UNHASHED_BYTES_MIN, draw_name, sketch_of
from djinn_lab.units import format_bytes

CHUNK_BYTES = 8 * 2**20
"""An interrupt is looked for before each."""
LINK_CHUNK_BYTES = 64 * 2**10
"""To another host: on a slow link an interrupt waits for this."""
HELD_BYTES_MAX = 16 * 2**20
"""For another host: so much of small tensors is gathered before one request brings it there."""


def digest_of(data: memoryview) -> str:
    """Return the digest that names these bytes on the pool."""
    return blake3.blake3(data, max_threads=blake3.blake3.AUTO).hexdigest()


def write_blob(path: Path, data: memoryview) -> None:
    """The one copy that bytes make on their way to a device on this host: from the tensor's own memory into
    shared memory, where the worker maps them. (Twice as fast as writing to a mapping, which would take a
    page fault for every 4 KiB.)"""
    with path.open("wb", buffering=0) as file:
        written = 0
        while written < data.nbytes:
            check()
            written += file.write(data[written : written + CHUNK_BYTES])


class BlobTransfer:
    """Uploads by content, each once per session; reads results. ``uploaded_bytes`` counts what really
    moved.

    On the pool's host, large contents that the pool has not seen are not hashed: they are written once, under
    a name that is drawn, and the pool computes their digest when it needs one. Its callers hold; what arrives
    meanwhile is raised in Stopped.
    """

    def __init__(self, connection: PoolConnection, token: str, moving: Moving | None = None) -> None:
        self._connection = connection
        self._moving = moving or Moving()
        self._takes_pieces = True
        """Until the pool, of an older version, does not know them."""
        self._known: set[str] = set()
        directory = connection.welcome.blob_directory
        shared = directory is not None and os.access(directory, os.W_OK)  # another user's is not writable
        self._directory = Path(directory) if directory is not None and shared else None
        self._requests = TransferRequests(connection, token)
        self._downloads = Downloads(self._requests, self._moving, connection.joins_transfers)
        self.uploaded_bytes = 0
        self.downloaded_bytes = 0

    def stage(self, data: memoryview) -> str:
        """Upload what the pool lacks; the name of the bytes there. What is small and goes to another host is
        copied, and goes there by :meth:`upload_held` at the latest."""
        if self._directory is not None and data.nbytes >= UNHASHED_BYTES_MIN and self._is_new(data):
            name = draw_name()
            self._write(self._directory / name, data)
            return name
        digest = digest_of(data)
        if self._directory is None and data.nbytes < PIECES_FROM_BYTES:
            self._hold(digest, data)
            return digest
        if self._lacks(digest):
            self._upload(digest, data)
        self._known.add(digest)
        return digest

    def _hold(self, digest: str, data: memoryview) -> None:
        held = self._moving.held
        if digest in self._known or digest in held:
            return
        if data.nbytes + sum(map(len, held.values())) > HELD_BYTES_MAX:
            self.upload_held()
        held[digest] = bytes(data)

    def upload_held(self) -> None:
        """Upload what is held and the pool lacks: one question, and one request. Raises PoolLost where the
        way broke: what is held stays."""
        held = self._moving.held
        if not held:
            return
        missing = set(self._missing(QueryBlobs([*held])).digests)
        lacked = {digest: data for digest, data in held.items() if digest in missing}
        if lacked and self._connection.joins_transfers:
            self._upload_joined(lacked, sum(map(len, held.values())))
        else:
            for digest, data in lacked.items():
                self._upload(digest, memoryview(data))
        self._known.update(held)
        held.clear()

    def _upload_joined(self, lacked: Mapping[str, bytes], total: int) -> None:
        """``total``: bytes of all that is held, with what has arrived."""
        self._moving.uploads.begin(total, total - sum(map(len, lacked.values())))
        try:
            self._requests.check(lambda http: http.put("/v1/blobs", content=self._joined(lacked)))
        finally:
            self._moving.uploads.end()

    def _joined(self, tensors: Mapping[str, bytes]) -> Iterator[bytes]:
        for digest, data in tensors.items():
            header = partial(BLOB_HEADER.pack, bytes.fromhex(digest), len(data))
            yield from self._frame(memoryview(data), header)

    def _frame(self, data: memoryview, header: Callable[[int], bytes]) -> Iterator[bytes]:
        """``header``: given how many bytes follow. They are compressed where that is sooner there."""
        sent = compressed(data, self._moving.uploads.link_bytes_per_s) or data
        yield header(len(sent))
        yield from self._sent(memoryview(sent), data.nbytes / len(sent))

    def _is_new(self, data: memoryview) -> bool:
        """True when this user surely uploaded nothing of the kind."""
        if not self._connection.takes_unhashed:
            return False
        sketch = sketch_of(data.nbytes, lambda start, count: data[start : start + count])
        return sketch in self._missing(QueryBlobs([], [sketch])).sketches

    def _lacks(self, digest: str) -> bool:
        return digest not in self._known and digest in self._missing(QueryBlobs([digest])).digests

    def _missing(self, query: QueryBlobs) -> BlobsMissing:
        self._connection.send(query)
        return self._connection.receive_missing()

    def unpinned(self) -> None:
        """Forget which blobs the pool has: a submit went out, so the pool may evict the blobs pinned for
        it."""
        self._known.clear()

    def _upload(self, digest: str, data: memoryview) -> None:
        if self._directory is not None:
            self._write(self._directory / digest, data)
            return
        try:
            if data.nbytes < PIECES_FROM_BYTES or not self._upload_pieces(digest, data):
                self._moving.uploads.begin(data.nbytes)
                self._requests.check(lambda http: http.put(f"/v1/blobs/{digest}", content=self._sent(data)))
        finally:
            self._moving.uploads.end()

    def _upload_pieces(self, digest: str, data: memoryview) -> bool:
        """Send the pieces that the pool lacks; return whether it knows pieces. Raises PoolLost where the way
        broke: what arrived stays there."""
        if not self._takes_pieces:
            return False
        pieces = [
            digest_of(data[start : start + PIECE_BYTES]) for start in range(0, data.nbytes, PIECE_BYTES)
        ]
        path = f"/v1/blobs/{digest}/pieces"
        body = msgspec.json.encode(PiecesAnnounced(data.nbytes, pieces))
        answer = self._requests.check(lambda http: http.post(path, content=body), but=(404, 405))
        if answer.status_code >= 400:
            self._takes_pieces = False
            return False
        missing = msgspec.json.decode(answer.content, type=PiecesMissing).missing
        while missing:
            left = sum(piece_bytes(number, data.nbytes) for number in missing)
            self._moving.uploads.begin(data.nbytes, data.nbytes - left)
            answer = self._put_pieces(path, self._frames(data, missing))
            if answer.status_code == 409:  # given up for want of space
                raise PoolLost("the pool has dropped what had arrived of a tensor.", TRANSFERS_LOST)
            missing = msgspec.json.decode(answer.content, type=PiecesMissing).missing
        return True

    def _put_pieces(self, path: str, frames: Iterator[bytes]) -> httpx.Response:
        return self._requests.check(lambda http: http.put(path, content=frames), but=(409,))

    def _frames(self, data: memoryview, numbers: Sequence[int]) -> Iterator[bytes]:
        for number in numbers:
            start = number * PIECE_BYTES
            piece = data[start : start + piece_bytes(number, data.nbytes)]
            yield from self._frame(piece, partial(HEADER.pack, number))

    def _sent(self, data: memoryview, worth: float = 1.0) -> Iterator[bytes]:
        """Cut bytes into what is sent at once, and count them. ``worth``: as many bytes of the tensor as each
        byte stands for."""
        for start in range(0, data.nbytes, LINK_CHUNK_BYTES):
            check()
            chunk = bytes(data[start : start + LINK_CHUNK_BYTES])
            yield chunk
            self.uploaded_bytes += len(chunk)
            self._moving.uploads.add(round(worth * len(chunk)), len(chunk))
            self._moving.tick()

    def _write(self, path: Path, data: memoryview) -> None:
        try:
            write_blob(path, data)
            self._connection.send(BlobStored(path.name, data.nbytes))
        except FileNotFoundError as error:  # with the pool's server; its successor has another folder
            raise PoolLost(f"{path.parent} is gone", "Run the cell again.") from error
        except OSError as error:
            path.unlink(missing_ok=True)
            raise PoolError(
                f"{format_bytes(data.nbytes)} could not be written to {path.parent}: {error.strerror}.",
                "Free space there (in shared memory lie results and parked sessions, too), then run the cell "
                "again.",
            ) from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self.uploaded_bytes += data.nbytes

    def read(self, fetched: Sequence[Fetched]) -> list[torch.Tensor]:
        """Return fetched values as contiguous plain tensors."""
        far = [one for one in fetched if self._directory is None and one.data is None and one.meta.nbytes]
        contents = self._downloads.fetch({str(one.blob): one.meta.nbytes for one in far})
        tensors = [self._tensor(one, contents) for one in fetched]
        self.downloaded_bytes += sum(one.meta.nbytes for one in fetched)
        return tensors

    def _tensor(self, fetched: Fetched, contents: Mapping[str, bytearray]) -> torch.Tensor:
        dtype: torch.dtype = getattr(torch, fetched.meta.dtype)
        nbytes = fetched.meta.nbytes
        if nbytes == 0:
            return torch.empty(fetched.meta.shape, dtype=dtype)
        if fetched.data is not None:
            raw = torch.frombuffer(bytearray(fetched.data), dtype=torch.uint8)
        elif self._directory is not None:
            path = self._directory / str(fetched.blob)
            raw = torch.from_file(str(path), shared=False, size=nbytes, dtype=torch.uint8)
            path.unlink()
        else:
            raw = torch.frombuffer(contents[str(fetched.blob)], dtype=torch.uint8)
        return raw.view(dtype).view(fetched.meta.shape)

    def close(self) -> None:
        self._requests.close()
