"""Uploaded tensors: verified, shared by content, bounded, pinned while needed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from blake3 import blake3

from djinn_lab.errors import PoolError, Refused
from djinn_lab.pool.blobs import (
    OWNER_FILE,
    BlobStore,
    checked_digest,
    checked_result_name,
    remove_dead_directories,
    remove_directory,
)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    directory = tmp_path / "djinn-test"
    for name in ("store", "results"):
        (directory / name).mkdir(parents=True)
    return BlobStore(directory, bytes_max=3000)


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


def put(store: BlobStore, user: str, data: bytes, digest: str | None = None) -> str:
    async def chunks() -> AsyncIterator[bytes]:
        yield data[: len(data) // 2]
        yield data[len(data) // 2 :]

    digest = digest or digest_of(data)
    asyncio.run(store.receive(user, digest, chunks()))
    return digest


def leftovers(store: BlobStore) -> list[str]:
    return [path.name for path in (store.directory / "results").iterdir()]


def test_equal_bytes_are_stored_once_and_each_user_uploads_them(store: BlobStore) -> None:
    digest = put(store, "ann", b"a" * 1000)
    assert store.has("ann", digest)
    assert not store.has("bob", digest)
    put(store, "bob", b"a" * 1000)
    assert store.has("bob", digest)
    assert (store.count, store.nbytes) == (1, 1000)
    assert store.path(digest).read_bytes() == b"a" * 1000


def test_the_least_recently_used_makes_room_and_pinned_ones_stay(store: BlobStore) -> None:
    first, second, third = (put(store, "ann", letter * 1000) for letter in (b"a", b"b", b"c"))
    store.pin(first)
    put(store, "ann", b"d" * 1000)
    assert store.has("ann", first)
    assert not store.has("ann", second)
    assert not store.path(second).exists()
    store.pin(third)
    with pytest.raises(Refused, match="all in use"):
        put(store, "ann", b"e" * 2500)
    assert leftovers(store) == []
    store.unpin([first, third])
    put(store, "ann", b"e" * 2500)
    assert store.nbytes == 2500


def test_uploads_that_lie_leave_nothing(store: BlobStore) -> None:
    with pytest.raises(Refused, match="have the digest"):
        put(store, "ann", b"x", digest_of(b"y"))
    with pytest.raises(Refused, match="exceeds"):
        put(store, "ann", b"x" * 3001)
    assert (store.count, leftovers(store)) == (0, [])


def test_large_uploads_are_verified_off_the_loop(tmp_path: Path) -> None:
    directory = tmp_path / "djinn-large"
    for name in ("store", "results"):
        (directory / name).mkdir(parents=True)
    store = BlobStore(directory, 2**24)
    data = os.urandom(2**20)
    put(store, "ann", data)
    (store.open_session("s") / digest_of(data)).write_bytes(data)
    asyncio.run(store.adopt("bob", "s", digest_of(data), len(data)))
    assert store.has("bob", digest_of(data))
    assert store.count == 1


def test_results_move_to_their_session(store: BlobStore) -> None:
    name = "result-" + "0" * 32
    store.open_session("s")
    source = store.results / name
    source.write_bytes(b"x")
    assert store.deliver("s", str(source)) == name
    assert store.take_result("t", name) is None
    found = store.take_result("s", name)
    assert found is not None
    with found:
        assert found.read() == b"x"
    assert store.take_result("s", name) is None
    for path in ("/etc/passwd", str(store.results / "other"), str(store.results / ".." / name)):
        with pytest.raises(Refused):
            store.deliver("s", path)
    store.close_session("s")
    assert not (store.directory / "s").exists()


def test_names_are_checked() -> None:
    for bad in ("", "../x", "0" * 63, "A" * 64, "0" * 64 + "\n"):
        with pytest.raises(Refused):
            checked_digest(bad)
        with pytest.raises(Refused):
            checked_result_name(bad)


def test_directories_of_dead_pools_are_removed(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    for name, pid in (("djinn-dead", process.pid), ("djinn-alive", os.getpid()), ("other", process.pid)):
        (tmp_path / name).mkdir()
        (tmp_path / name / OWNER_FILE).write_text(str(pid))
    (tmp_path / "djinn-unknown").mkdir()
    remove_dead_directories(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["djinn-alive", "djinn-unknown", "other"]
    with pytest.raises(PoolError):
        remove_directory(tmp_path / "other")
