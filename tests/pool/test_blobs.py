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
from djinn_lab.pool.blobs.directory import OWNER_FILE, remove_dead_directories, remove_directory
from djinn_lab.pool.blobs.names import checked_digest, checked_name, checked_result_name
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.srg.blob_names import UNHASHED_BYTES_MIN, draw_name, sketch_of

LARGE = UNHASHED_BYTES_MIN


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


def stored(store: BlobStore, name: str) -> bytes:
    """Return the bytes that a worker finds under a name."""
    return (store.directory / "store" / store.stored_name(name)).read_bytes()


def leftovers(store: BlobStore) -> list[str]:
    return [path.name for path in (store.directory / "results").iterdir()]


def test_equal_bytes_are_stored_once_and_each_user_uploads_them(store: BlobStore) -> None:
    digest = put(store, "ann", b"a" * 1000)
    assert store.has("ann", digest)
    assert not store.has("bob", digest)
    put(store, "bob", b"a" * 1000)
    assert store.has("bob", digest)
    assert (store.count, store.nbytes) == (1, 1000)
    assert stored(store, digest) == b"a" * 1000


def test_who_knows_the_bytes_does_not_know_their_file(store: BlobStore) -> None:
    data = b"known to all" * 80
    digest = put(store, "ann", data)
    file = store.stored_name(digest)
    assert file != digest
    assert not (store.directory / "store" / digest).exists()
    assert stored(store, digest) == data
    for letter in b"xyz":
        put(store, "ann", bytes([letter]) * 1000)
    assert not store.has("ann", digest)
    put(store, "ann", data)
    assert store.stored_name(digest) == file  # sessions that hold it on a device share it with new ones


def test_full_blob_store_evicts_the_least_recently_used_but_not_pinned(store: BlobStore) -> None:
    first, second, third = (put(store, "ann", letter * 1000) for letter in (b"a", b"b", b"c"))
    store.pin(first)
    put(store, "ann", b"d" * 1000)
    assert store.has("ann", first)
    assert not store.has("ann", second)
    assert not (store.directory / "store" / second).exists()
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


@pytest.fixture
def large(tmp_path: Path) -> BlobStore:
    """A store that holds four large tensors."""
    directory = tmp_path / "djinn-large-ones"
    for name in ("store", "results"):
        (directory / name).mkdir(parents=True)
    return BlobStore(directory, 4 * LARGE)


def leave(store: BlobStore, data: bytes, name: str | None = None, session: str = "s") -> str:
    """Write a file as a client does before announcing it, and return its name."""
    name = name or draw_name()
    (store.open_session(session) / name).write_bytes(data)
    return name


async def adopt(store: BlobStore, user: str, data: bytes, name: str | None = None) -> str:
    name = leave(store, data, name)
    await store.adopt(user, "s", name, len(data))
    return name


def sketch(data: bytes) -> str:
    return sketch_of(len(data), lambda start, count: data[start : start + count])


def test_new_bytes_are_stored_without_their_digest_until_it_is_asked_for(large: BlobStore) -> None:
    data = os.urandom(LARGE)

    async def upload() -> str:
        assert not large.has_like("ann", sketch(data))
        name = await adopt(large, "ann", data)
        assert large.has("ann", name)
        assert not large.has("ann", digest_of(data))
        assert large.has_like("ann", sketch(data))
        assert not large.has_like("bob", sketch(data))
        await large.identify(sketch(data))
        return name

    name = asyncio.run(upload())
    assert large.has("ann", digest_of(data))
    assert not large.has("bob", name)
    assert large.stored_name(name) == large.stored_name(digest_of(data))
    assert stored(large, name) == data


@pytest.mark.parametrize("second", ["drawn", "digest", "http"])
@pytest.mark.parametrize("together", [True, False])
def test_equal_bytes_are_stored_once_however_they_come(large: BlobStore, second: str, together: bool) -> None:
    data = os.urandom(LARGE + 1)

    async def chunks() -> AsyncIterator[bytes]:
        yield data

    async def upload() -> list[str]:
        names = [draw_name(), draw_name() if second == "drawn" else digest_of(data)]
        first = adopt(large, "ann", data, names[0])
        if second == "http":
            other = asyncio.create_task(large.receive("bob", names[1], chunks()))
        else:
            other = asyncio.create_task(adopt(large, "bob", data, names[1]))  # type: ignore[arg-type]
        if together:
            await asyncio.gather(first, other)
        else:
            await first
            await other
        return names

    ann, bob = asyncio.run(upload())
    assert large.has("ann", ann)
    assert large.has("bob", bob)
    assert large.stored_name(ann) == large.stored_name(bob)
    assert (large.count, large.nbytes) == (1, len(data))


def test_three_alike_that_arrive_together_keep_their_bytes(large: BlobStore) -> None:
    data = bytearray(LARGE)
    other = bytearray(data)
    other[100] = 1  # between two samples
    assert sketch(bytes(data)) == sketch(bytes(other))

    async def upload() -> list[str]:
        contents = [bytes(data), bytes(other), bytes(other), bytes(data)]
        return await asyncio.gather(*(adopt(large, "ann", content) for content in contents))

    names = asyncio.run(upload())
    assert [stored(large, name)[100] for name in names] == [0, 1, 1, 0]
    assert large.count == 2


def test_blob_name_of_other_bytes_is_refused(large: BlobStore) -> None:
    """A drawn name is no claim about content, and a digest is verified."""
    data, other = os.urandom(LARGE), os.urandom(LARGE)

    async def upload() -> None:
        name = await adopt(large, "ann", data)
        with pytest.raises(Refused, match="cannot be stored as"):
            await adopt(large, "eve", other, name)
        with pytest.raises(Refused, match="have the digest"):
            await adopt(large, "eve", other, digest_of(data))
        with pytest.raises(Refused, match="cannot be stored as"):
            await adopt(large, "eve", b"few bytes")
        assert stored(large, name) == data

    asyncio.run(upload())
    assert large.count == 1


def test_evicted_blob_loses_all_its_names(large: BlobStore) -> None:
    first = os.urandom(LARGE)

    async def upload() -> tuple[str, list[str]]:
        name = await adopt(large, "ann", first)
        await large.identify(sketch(first))
        others = []
        for _ in range(4):
            others.append(await adopt(large, "ann", os.urandom(LARGE)))
            large.pin(others[-1])
        with pytest.raises(Refused, match="all in use"):
            await adopt(large, "ann", os.urandom(LARGE))
        return name, others

    name, others = asyncio.run(upload())
    assert not large.has("ann", name)
    assert not large.has("ann", digest_of(first))
    assert not large.has_like("ann", sketch(first))
    assert (large.count, large.nbytes) == (4, 4 * LARGE)
    assert sorted(path.name for path in (large.directory / "store").iterdir()) == sorted(others)


def test_results_move_to_their_session(store: BlobStore) -> None:
    name = "result-" + "0" * 32
    store.open_session("s")
    source = store.results / name
    source.write_bytes(b"x")
    store.deliver("s", name)
    store.discard(name)  # of no effect on what a session has
    assert store.open_result("t", name) is None
    for _ in range(2):
        found = store.open_result("s", name)
        assert found is not None
        with found:
            assert found.read() == b"x"
    store.drop_result("s", name)
    assert store.open_result("s", name) is None
    for bad in ("/etc/passwd", "other", str(source), f"../s/{name}"):
        with pytest.raises(Refused):
            store.deliver("s", bad)
        with pytest.raises(Refused):
            store.discard(bad)
    store.close_session("s")
    assert not (store.directory / "s").exists()


def test_names_are_checked() -> None:
    for bad in ("", "../x", "0" * 63, "A" * 64, "0" * 64 + "\n"):
        with pytest.raises(Refused):
            checked_digest(bad)
        with pytest.raises(Refused):
            checked_result_name(bad)
    for bad in ("fresh-", "fresh-../../x", draw_name() + "\n", draw_name()[:-1]):
        with pytest.raises(Refused):
            checked_name(bad)
    drawn = draw_name()
    assert checked_name(drawn) == drawn


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
