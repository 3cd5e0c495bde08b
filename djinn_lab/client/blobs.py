"""Tensor bytes on their way to and from the pool: shared memory on the same host, HTTP elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import blake3
import httpx
import msgspec
import torch

from djinn_lab.capture.host.interrupts import check
from djinn_lab.client.compression import compressed
from djinn_lab.client.connection import PoolConnection
from djinn_lab.client.trust import public_context
from djinn_lab.client.upload_progress import UploadProgress
from djinn_lab.client.ways import proxy_for
from djinn_lab.errors import PoolError, PoolLost, Refused
from djinn_lab.protocol.messages import BlobsMissing, BlobStored, Fetched, QueryBlobs
from djinn_lab.protocol.rest.transfers import (
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
TIMEOUTS = httpx.Timeout(120.0, connect=10.0, write=30.0)
"""After them a link counts as broken. The answer to an upload waits for what buffers on the way hold."""
PARTIAL = 206
TRY_AGAIN = (408, 502, 503, 504)
"""The way broke between a proxy and the pool, or the pool is being started again."""
TRANSFERS_LOST = "Run the cell again."


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


class Moving:
    """What transfers of a session have done so far, which connections to its pool do not outlive: the
    progress of uploads, and the results of which only a part has come. ``tick`` is called now and then."""

    def __init__(self, tick: Callable[[], None] = lambda: None) -> None:
        self.uploads = UploadProgress()
        self.tick = tick
        self.results: dict[str, bytearray] = {}


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
        self._http = httpx.Client(
            base_url=connection.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUTS,
            trust_env=False,
            proxy=proxy_for(connection.url),
            verify=connection.tls or public_context(),
        )
        self.uploaded_bytes = 0
        self.downloaded_bytes = 0

    def stage(self, data: memoryview) -> str:
        """Upload what the pool lacks; the name of the bytes there."""
        if self._directory is not None and data.nbytes >= UNHASHED_BYTES_MIN and self._is_new(data):
            name = draw_name()
            self._write(self._directory / name, data)
            return name
        digest = digest_of(data)
        if self._lacks(digest):
            self._upload(digest, data)
        self._known.add(digest)
        return digest

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
                self._check(lambda: self._http.put(f"/v1/blobs/{digest}", content=self._sent(data)))
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
        answer = self._check(lambda: self._http.post(path, content=body), but=(404, 405))
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
        return self._check(lambda: self._http.put(path, content=frames), but=(409,))

    def _frames(self, data: memoryview, numbers: Sequence[int]) -> Iterator[bytes]:
        for number in numbers:
            start = number * PIECE_BYTES
            piece = data[start : start + piece_bytes(number, data.nbytes)]
            sent = compressed(piece, self._moving.uploads.link_bytes_per_s) or piece
            yield HEADER.pack(number, len(sent))
            yield from self._sent(memoryview(sent), piece.nbytes / len(sent))

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

    def read(self, fetched: Fetched) -> torch.Tensor:
        """A fetched value as a contiguous plain tensor."""
        dtype: torch.dtype = getattr(torch, fetched.meta.dtype)
        nbytes = fetched.meta.nbytes
        self.downloaded_bytes += nbytes
        if nbytes == 0:
            return torch.empty(fetched.meta.shape, dtype=dtype)
        if fetched.data is not None:
            raw = torch.frombuffer(bytearray(fetched.data), dtype=torch.uint8)
        elif self._directory is not None:
            path = self._directory / str(fetched.blob)
            raw = torch.from_file(str(path), shared=False, size=nbytes, dtype=torch.uint8)
            path.unlink()
        else:
            raw = torch.frombuffer(self._download(str(fetched.blob)), dtype=torch.uint8)
        return raw.view(dtype).view(fetched.meta.shape)

    def _download(self, blob: str) -> bytearray:
        """Fetch a result, from where an earlier attempt broke off, and have the pool delete it."""
        content = self._moving.results.setdefault(blob, bytearray())
        path = f"/v1/results/{blob}"

        def get() -> httpx.Response:
            with self._http.stream("GET", path, headers={"Range": f"bytes={len(content)}-"}) as response:
                if response.status_code >= 400:
                    response.read()
                    return response
                if response.status_code != PARTIAL:  # an older pool, which deletes it by itself
                    content.clear()
                for chunk in response.iter_raw(LINK_CHUNK_BYTES):
                    check()
                    content.extend(chunk)
                    self._moving.tick()
            return response

        answer = self._check(get)
        if answer.status_code == PARTIAL:
            self._leave_deleting(path)
        return self._moving.results.pop(blob)

    def _leave_deleting(self, path: str) -> None:
        """Delete a result beside what comes next, which needs no answer: it goes with its session anyway."""

        def delete() -> None:
            with suppress(httpx.HTTPError, RuntimeError):  # the connection was closed meanwhile
                self._http.delete(path)

        threading.Thread(target=delete, name="delete a result", daemon=True).start()

    def _check(self, request: Callable[[], httpx.Response], but: Sequence[int] = ()) -> httpx.Response:
        """Return the answer. Raises PoolLost where none comes, Refused for a status of 400 and more that is
        not in ``but``."""
        try:
            response = request()
        except httpx.HTTPError as error:
            raise PoolLost(
                f"a tensor could not be moved to or from the pool: {error or type(error).__name__}",
                TRANSFERS_LOST,
            ) from None
        if response.status_code in TRY_AGAIN:
            raise PoolLost(f"the pool did not take a tensor: {_detail(response)}", TRANSFERS_LOST)
        if response.status_code >= 400 and response.status_code not in but:
            raise Refused(f"the pool refused a tensor: {_detail(response)}")
        return response

    def close(self) -> None:
        self._http.close()


def _detail(response: httpx.Response) -> str:
    """Return the pool's own words, or the status of what is no pool's answer."""
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"
