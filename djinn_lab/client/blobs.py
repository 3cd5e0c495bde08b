"""Tensor bytes on their way to and from the pool: shared memory on the same host, HTTP elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import blake3
import httpx
import torch

from djinn_lab.capture.host.interrupts import check
from djinn_lab.client.connection import PoolConnection
from djinn_lab.client.trust import public_context
from djinn_lab.errors import PoolError, PoolLost, Refused
from djinn_lab.protocol.messages import BlobsMissing, BlobStored, Fetched, QueryBlobs
from djinn_lab.srg.blob_names import UNHASHED_BYTES_MIN, draw_name, sketch_of
from djinn_lab.units import format_bytes

CHUNK_BYTES = 8 * 2**20
"""An interrupt is looked for before each."""
TIMEOUT_S = 300.0


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


def _chunks(data: memoryview) -> Iterator[bytes]:
    for start in range(0, data.nbytes, CHUNK_BYTES):
        check()
        yield bytes(data[start : start + CHUNK_BYTES])


class BlobTransfer:
    """Uploads by content, each once per session; reads results. ``uploaded_bytes`` counts what really
    moved.

    On the pool's host, large contents that the pool has not seen are not hashed: they are written once, under
    a name that is drawn, and the pool computes their digest when it needs one. Its callers hold; what arrives
    meanwhile is raised in Stopped.
    """

    def __init__(self, connection: PoolConnection, token: str) -> None:
        self._connection = connection
        self._known: set[str] = set()
        directory = connection.welcome.blob_directory
        shared = directory is not None and os.access(directory, os.W_OK)  # another user's is not writable
        self._directory = Path(directory) if directory is not None and shared else None
        self._http = httpx.Client(
            base_url=connection.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUT_S,
            trust_env=False,
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
        self.uploaded_bytes += data.nbytes
        self._check(lambda: self._http.put(f"/v1/blobs/{digest}", content=_chunks(data)))

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
        content = bytearray()

        def get() -> httpx.Response:
            with self._http.stream("GET", f"/v1/results/{blob}") as response:
                if response.status_code >= 400:
                    response.read()
                    return response
                for chunk in response.iter_bytes(CHUNK_BYTES):
                    check()
                    content.extend(chunk)
            return response

        self._check(get)
        return content

    def _check(self, request: object) -> httpx.Response:
        assert callable(request)
        try:
            response: httpx.Response = request()
        except httpx.HTTPError as error:
            raise PoolLost(
                f"a tensor could not be moved to or from the pool: {error}", "Run the cell again."
            ) from None
        if response.status_code >= 400:
            raise Refused(f"the pool refused a tensor: {response.json().get('detail', response.text)}")
        return response

    def close(self) -> None:
        self._http.close()
