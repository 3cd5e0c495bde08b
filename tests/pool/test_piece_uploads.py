"""Uploads by pieces: what arrived stays, what the user has is copied, and nothing else is believed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from blake3 import blake3

from djinn_lab.errors import Refused
from djinn_lab.pool.blobs.piece_uploads import NotAnnounced
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.protocol.rest.transfers import HEADER, PIECE_BYTES, PiecesAnnounced

SIZE = 4 * PIECE_BYTES + 100
COUNT = 5


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    directory = tmp_path / "djinn-test"
    for name in ("store", "results"):
        (directory / name).mkdir(parents=True)
    return BlobStore(directory, bytes_max=3 * SIZE)


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


def piece(data: bytes, number: int) -> bytes:
    return data[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]


def announced(data: bytes) -> PiecesAnnounced:
    return PiecesAnnounced(len(data), [digest_of(piece(data, number)) for number in range(COUNT)])


def frames(data: bytes, numbers: Iterable[int]) -> bytes:
    return b"".join(frame(number, piece(data, number)) for number in numbers)


def frame(number: int, data: bytes) -> bytes:
    return HEADER.pack(number, len(data)) + data


async def in_chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 300_000):
        yield body[start : start + 300_000]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def begin(store: BlobStore, data: bytes, user: str = "ann") -> list[int]:
    found: list[int] = run(store.piece_uploads.begin(user, digest_of(data), announced(data)))
    return found


def put(store: BlobStore, data: bytes, numbers: Iterable[int], user: str = "ann") -> list[int]:
    body = in_chunks(frames(data, numbers))
    found: list[int] = run(store.piece_uploads.receive(user, digest_of(data), body))
    return found


def leftovers(store: BlobStore) -> list[Path]:
    return [*store.results.iterdir(), *(store.directory / "uploads").glob("*/*")]


def successor_of(store: BlobStore, bytes_max: int = 3 * SIZE) -> BlobStore:
    """Return the store of the next pool on the same database, after this one was killed."""
    directory = store.directory.with_name(f"{store.directory.name}-next")
    for name in ("store", "results"):
        (directory / name).mkdir(parents=True)
    made = BlobStore(directory, bytes_max)
    made.take_over([store.directory])
    return made


def test_pieces_of_several_requests_make_the_tensor(store: BlobStore) -> None:
    data = os.urandom(SIZE)
    assert begin(store, data) == [0, 1, 2, 3, 4]
    assert put(store, data, [4, 1]) == [0, 2, 3]
    assert begin(store, data) == [0, 2, 3]
    assert not store.has("ann", digest_of(data))
    assert put(store, data, [0, 2, 3]) == []
    assert (store.directory / "store" / store.stored_name(digest_of(data))).read_bytes() == data
    assert (begin(store, data), put(store, data, []), leftovers(store)) == ([], [], [])


def test_pieces_stay_when_the_pool_is_killed(store: BlobStore) -> None:
    data = os.urandom(SIZE)
    begin(store, data)
    put(store, data, [4, 1])
    with next((store.directory / "uploads").glob("*/*")).open("r+b") as file:
        file.seek(2 * PIECE_BYTES)
        file.write(piece(data, 2)[:1000])  # the server was killed while it wrote
    after = successor_of(store)
    assert after.bytes_of("ann") == SIZE
    assert begin(after, data, "ben") == [0, 1, 2, 3, 4]
    assert begin(after, data) == [0, 2, 3]
    assert put(after, data, [0, 2, 3]) == []
    assert after.has("ann", digest_of(data))
    assert after.bytes_of("ann") == SIZE


def test_what_was_left_of_an_upload_goes_when_another_needs_its_space(store: BlobStore) -> None:
    data, other = os.urandom(SIZE), os.urandom(SIZE)
    begin(store, data)
    put(store, data, [4, 1])
    after = successor_of(store, bytes_max=SIZE)
    assert begin(after, other, "ben") == [0, 1, 2, 3, 4]
    assert len(leftovers(after)) == 1
    assert after.bytes_of("ann") == 0
    assert leftovers(successor_of(after, bytes_max=SIZE - 1)) == []


def test_pieces_stay_of_a_body_that_broke_off(store: BlobStore) -> None:
    data = os.urandom(SIZE)

    async def broken() -> AsyncIterator[bytes]:
        yield frames(data, [0, 1, 2])[: 2 * PIECE_BYTES + PIECE_BYTES // 2]
        raise ConnectionError

    begin(store, data)
    with pytest.raises(ConnectionError):
        run(store.piece_uploads.receive("ann", digest_of(data), broken()))
    assert begin(store, data) == [2, 3, 4]


def test_only_pieces_that_the_same_user_uploaded_are_known(store: BlobStore) -> None:
    data = os.urandom(SIZE)
    begin(store, data)
    put(store, data, range(COUNT))
    changed = data[:-1] + bytes([data[-1] ^ 1])
    assert begin(store, changed, "bob") == [0, 1, 2, 3, 4]
    assert begin(store, changed) == [4]
    assert put(store, changed, [4]) == []
    assert (store.directory / "store" / store.stored_name(digest_of(changed))).read_bytes() == changed


def test_equal_pieces_of_one_tensor_are_all_written(store: BlobStore) -> None:
    data = bytes(SIZE)
    assert begin(store, data) == [0, 1, 2, 3, 4]
    assert put(store, data, range(COUNT)) == []
    turned = data[:-1] + b"\1"
    assert begin(store, turned) == [4]


def test_pieces_may_be_compressed(store: BlobStore) -> None:
    data = bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)
    begin(store, data)
    body = b"".join(frame(number, zstandard.compress(piece(data, number))) for number in range(COUNT))
    assert run(store.piece_uploads.receive("ann", digest_of(data), in_chunks(body))) == []
    assert (store.directory / "store" / store.stored_name(digest_of(data))).read_bytes() == data


def test_wrong_bytes_are_refused_and_not_stored(store: BlobStore) -> None:
    data, other = os.urandom(SIZE), os.urandom(SIZE)
    begin(store, data)
    with pytest.raises(Refused, match="Piece 1 does not have the digest"):
        run(store.piece_uploads.receive("ann", digest_of(data), in_chunks(frames(other, [1]))))
    for body, text in (
        (frame(5, bytes(9)), "no piece 5"),
        (HEADER.pack(1, PIECE_BYTES + 1) + bytes(9), "more than piece 1 has"),
        (frame(1, b"nothing"), "cannot be read"),
        (frame(1, zstandard.compress(bytes(PIECE_BYTES - 1))), "are not the 1048576 that"),
        (frame(1, zstandard.compress(bytes(2**26))), "too much memory"),
        (frame(1, zstandard.compress(bytes(PIECE_BYTES))), "have the digest"),
        (frames(data, [3])[:-1], "ends within a frame"),
    ):
        with pytest.raises(Refused, match=text):
            run(store.piece_uploads.receive("ann", digest_of(data), in_chunks(body)))
    assert begin(store, data) == [0, 1, 2, 3, 4]


def test_pieces_of_another_tensor_than_was_announced_are_refused(store: BlobStore) -> None:
    data, name = os.urandom(SIZE), digest_of(b"another")
    run(store.piece_uploads.begin("ann", name, announced(data)))
    with pytest.raises(Refused, match="have the digest"):
        run(store.piece_uploads.receive("ann", name, in_chunks(frames(data, range(COUNT)))))
    assert not store.has("ann", name)
    assert (store.bytes_of("ann"), store.nbytes) == (0, 0)


@pytest.mark.parametrize(("nbytes", "pieces"), [(SIZE, 4), (SIZE, 6), (0, 0), (-5, 0), (-5, 1)])
def test_announcements_that_do_not_fit_are_refused(store: BlobStore, nbytes: int, pieces: int) -> None:
    wrong = PiecesAnnounced(nbytes, [digest_of(b"")] * pieces)
    with pytest.raises(Refused, match="were announced"):
        run(store.piece_uploads.begin("ann", digest_of(b"x"), wrong))
    with pytest.raises(NotAnnounced):
        put(store, os.urandom(SIZE), [0])


def test_an_upload_of_which_nothing_comes_gives_way_to_another(store: BlobStore) -> None:
    first, *more = (os.urandom(SIZE) for _ in range(4))
    begin(store, first)
    put(store, first, [0])
    for data in more:
        begin(store, data)
        put(store, data, range(COUNT))
    assert begin(store, first) == [0, 1, 2, 3, 4]


def test_a_tensor_beyond_the_limit_is_refused_at_once(store: BlobStore) -> None:
    with pytest.raises(Refused, match="exceeds"):
        run(
            store.piece_uploads.begin("ann", digest_of(b""), PiecesAnnounced(4 * SIZE, [digest_of(b"")] * 17))
        )
    assert store.bytes_of("ann") == 0
