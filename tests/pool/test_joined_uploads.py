"""Small tensors in one request: each is stored as it arrives, and nothing but announced bytes is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3

from djinn_lab.errors import Refused
from djinn_lab.pool.blobs.joined_uploads import receive_joined
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.protocol.rest.transfers import BLOB_HEADER, PIECES_FROM_BYTES

SIZE = 100_000


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    directory = tmp_path / "djinn-test"
    for name in ("store", "results"):
        (directory / name).mkdir(parents=True)
    return BlobStore(directory, bytes_max=10 * PIECES_FROM_BYTES)


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


def frame(data: bytes, sent: bytes | None = None, nbytes: int | None = None) -> bytes:
    sent = data if sent is None else sent
    announced = len(data) if nbytes is None else nbytes
    return BLOB_HEADER.pack(blake3(data).digest(), announced, len(sent)) + sent


def put(store: BlobStore, body: bytes) -> int:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 70_000):
            yield body[start : start + 70_000]

    return asyncio.run(receive_joined(store, "ann", chunks()))


def test_every_tensor_of_a_body_is_stored_also_a_compressed_one(store: BlobStore) -> None:
    tensors = [os.urandom(SIZE) for _ in range(3)]
    even = bytes(SIZE)
    body = b"".join(map(frame, tensors)) + frame(even, zstandard.compress(even))
    assert put(store, body) == 4
    for data in (*tensors, even):
        assert (store.directory / "store" / store.stored_name(digest_of(data))).read_bytes() == data


def test_tensors_stay_that_came_before_the_body_broke_off(store: BlobStore) -> None:
    first, second = os.urandom(SIZE), os.urandom(SIZE)
    with pytest.raises(Refused, match="ends within a frame"):
        put(store, frame(first) + frame(second)[:-1])
    assert store.has("ann", digest_of(first))
    assert not store.has("ann", digest_of(second))
    assert list(store.results.iterdir()) == []


DATA = os.urandom(SIZE)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (frame(DATA, os.urandom(SIZE)), "not .* as announced"),
        (frame(DATA, DATA[:50]), "Compressed bytes cannot be read"),
        (frame(DATA, zstandard.compress(DATA[:-1] * 2)), "cannot be tensor"),
        (frame(DATA, zstandard.compress(bytes(SIZE + 1))), "are not the 100000 that were announced"),
        (frame(DATA, b""), "0 bytes cannot be tensor"),
        (frame(DATA, nbytes=PIECES_FROM_BYTES), "tensors below 4.0 MiB"),
    ],
    ids=["other", "cut", "too short", "too long", "empty", "too large"],
)
def test_what_is_not_as_announced_is_refused_and_not_kept(store: BlobStore, body: bytes, text: str) -> None:
    with pytest.raises(Refused, match=text):
        put(store, body)
    assert store.count == 0
