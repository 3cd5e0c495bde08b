"""Tensor bytes on their way to and from the pool: shared memory on the same host, HTTP elsewhere."""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import blake3
import httpx
import torch

from djinn_lab.capture.interrupts import held
from djinn_lab.client.connection import Connection
from djinn_lab.errors import PoolLost, Refused
from djinn_lab.protocol.messages import BlobStored, Fetched, QueryBlobs

CHUNK_BYTES = 8 * 2**20
TIMEOUT_S = 300.0
AHEAD_BYTES_MIN = 4 * 2**20
"""Fewer bytes are written only when the pool said that it lacks them; a thread would gain nothing."""


def digest_of(data: memoryview) -> str:
    """What names these bytes on the pool."""
    return blake3.blake3(data, max_threads=blake3.blake3.AUTO).hexdigest()


def write_blob(path: Path, data: memoryview) -> None:
    """The one copy that bytes make on their way to a device on this host: from the tensor's own memory into
    shared memory, where the worker maps them. (Twice as fast as writing to a mapping, which would take a
    page fault for every 4 KiB.)"""
    with path.open("wb", buffering=0) as file:
        written = 0
        while written < data.nbytes:
            written += file.write(data[written:])


class BlobTransfer:
    """Uploads by content, each once per session; reads results. ``uploaded_bytes`` counts what really
    moved."""

    def __init__(self, connection: Connection, token: str) -> None:
        self._connection = connection
        self._known: set[str] = set()
        self._held_sizes: set[int] = set()
        self._writer = ThreadPoolExecutor(1, "djinn-upload")
        directory = connection.welcome.blob_directory
        shared = directory is not None and os.access(directory, os.W_OK)  # another user's is not writable
        self._directory = Path(directory) if directory is not None and shared else None
        self._http = httpx.Client(
            base_url=connection.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUT_S,
            trust_env=False,
        )
        self.uploaded_bytes = 0
        self.downloaded_bytes = 0

    def stage(self, data: memoryview) -> str:
        """Upload what the pool lacks; its digest.

        Large data is written while it is hashed, unless the pool had what was staged last of this size: then
        it probably has this, too.
        """
        if self._directory is None or data.nbytes < AHEAD_BYTES_MIN or data.nbytes in self._held_sizes:
            digest = digest_of(data)
            if self._lacks(digest, data.nbytes):
                self._upload(digest, data)
        else:
            digest = self._write_ahead(data, self._directory)
        self._known.add(digest)
        return digest

    def _write_ahead(self, data: memoryview, directory: Path) -> str:
        ahead = directory / uuid.uuid4().hex
        writing = self._writer.submit(write_blob, ahead, data)
        try:
            digest = digest_of(data)
            if self._lacks(digest, data.nbytes):
                writing.result()
                ahead.rename(directory / digest)
                self._stored(digest, data.nbytes)
        finally:
            wait([writing])  # the thread reads the tensor
            ahead.unlink(missing_ok=True)
        return digest

    @held()  # the next question would get the answer to this one
    def _lacks(self, digest: str, nbytes: int) -> bool:
        if digest in self._known:
            return False
        self._connection.send(QueryBlobs([digest]))
        lacks = digest in self._connection.receive_missing().digests
        (self._held_sizes.discard if lacks else self._held_sizes.add)(nbytes)
        return lacks

    def unpinned(self) -> None:
        """A submit went out: from now on the pool may evict what it was told to keep."""
        self._known.clear()

    def _upload(self, digest: str, data: memoryview) -> None:
        if self._directory is not None:
            write_blob(self._directory / digest, data)
            self._stored(digest, data.nbytes)
            return
        self.uploaded_bytes += data.nbytes
        chunks = (bytes(data[start : start + CHUNK_BYTES]) for start in range(0, data.nbytes, CHUNK_BYTES))
        self._check(lambda: self._http.put(f"/v1/blobs/{digest}", content=chunks))

    def _stored(self, digest: str, nbytes: int) -> None:
        self.uploaded_bytes += nbytes
        self._connection.send(BlobStored(digest, nbytes))

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
            response = self._check(lambda: self._http.get(f"/v1/results/{fetched.blob}"))
            raw = torch.frombuffer(bytearray(response.content), dtype=torch.uint8)
        return raw.view(dtype).view(fetched.meta.shape)

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
        self._writer.shutdown()
        self._http.close()
