"""Uploads on one host: new contents are written once and not hashed, and never left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_lab.client import blobs
from djinn_lab.client.blobs import BlobTransfer, digest_of
from djinn_lab.errors import PoolError, PoolLost
from djinn_lab.protocol.messages import BlobsMissing, BlobStored, QueryBlobs
from djinn_lab.srg.blob_names import UNHASHED_BYTES_MIN, is_drawn, sketch_of

LARGE = UNHASHED_BYTES_MIN


class PoolStandIn:
    """A pool that knows which blobs were stored, and records every message in ``sent``."""

    def __init__(self, directory: Path, takes_unhashed: bool = True) -> None:
        self.url = "http://127.0.0.1:1"
        self.tls = None
        self.welcome = SimpleNamespace(blob_directory=str(directory))
        self.takes_unhashed = takes_unhashed
        self.joins_transfers = True
        self.directory = directory
        self.held: set[str] = set()
        self.sketches: set[str] = set()
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, BlobStored):
            self.hold((self.directory / message.digest).read_bytes())

    def hold(self, data: bytes) -> None:
        self.held.add(digest_of(memoryview(data)))
        if len(data) >= LARGE:
            self.sketches.add(sketch_of(len(data), lambda start, count: data[start : start + count]))

    def receive_missing(self) -> BlobsMissing:
        query = self.sent[-1]
        assert isinstance(query, QueryBlobs)
        return BlobsMissing(
            [digest for digest in query.digests if digest not in self.held],
            [sketch for sketch in query.sketches if sketch not in self.sketches],
        )


@pytest.fixture
def pool(tmp_path: Path) -> PoolStandIn:
    return PoolStandIn(tmp_path)


def transfer_to(pool: PoolStandIn) -> BlobTransfer:
    return BlobTransfer(pool, "token")  # type: ignore[arg-type]


@pytest.mark.parametrize("nbytes", [1, LARGE - 1, LARGE, LARGE + 5, 3 * blobs.CHUNK_BYTES + 1])
@pytest.mark.parametrize("takes_unhashed", [True, False])
def test_staged_tensor_is_stored_under_its_name(tmp_path: Path, nbytes: int, takes_unhashed: bool) -> None:
    pool = PoolStandIn(tmp_path, takes_unhashed)
    data = os.urandom(nbytes)
    transfer = transfer_to(pool)
    name = transfer.stage(memoryview(data))
    transfer.close()
    if takes_unhashed and nbytes >= LARGE:
        assert is_drawn(name)
    else:
        assert name == digest_of(memoryview(data))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == data
    assert pool.sent[-1] == BlobStored(name, nbytes)
    assert transfer.uploaded_bytes == nbytes
    assert takes_unhashed or not any(message.sketches for message in pool.sent[:-1])


def test_what_the_pool_holds_is_not_sent_again(pool: PoolStandIn, tmp_path: Path) -> None:
    data = memoryview(os.urandom(LARGE))
    pool.hold(bytes(data))
    transfer = transfer_to(pool)
    for _ in range(2):
        assert transfer.stage(data) == digest_of(data)
        transfer.unpinned()
    transfer.close()
    assert transfer.uploaded_bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_what_only_looks_like_a_tensor_of_the_pool_is_sent(pool: PoolStandIn, tmp_path: Path) -> None:
    data = bytearray(LARGE)
    pool.hold(bytes(data))
    data[100] = 1
    transfer = transfer_to(pool)
    digest = transfer.stage(memoryview(data))
    transfer.close()
    assert digest == digest_of(memoryview(data))
    assert (tmp_path / digest).read_bytes() == data


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            PoolError,
            "could not be written to .*: No space left",
        ),
    ],
)
def test_an_upload_that_ends_early_leaves_nothing(
    *,
    pool: PoolStandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    raised: type[BaseException],
    text: str,
) -> None:
    def ends(path: Path, _data: memoryview) -> None:
        path.write_bytes(b"a beginning")
        raise error

    transfer = transfer_to(pool)
    monkeypatch.setattr(blobs, "write_blob", ends)
    with pytest.raises(raised, match=text):
        transfer.stage(memoryview(bytes(LARGE)))
    assert list(tmp_path.iterdir()) == []
    assert not any(isinstance(message, BlobStored) for message in pool.sent)
    assert transfer.uploaded_bytes == 0
    transfer.close()


def test_upload_to_a_server_that_died_with_its_folder_is_a_lost_pool(pool: PoolStandIn) -> None:
    transfer = transfer_to(pool)
    pool.directory.rmdir()
    with pytest.raises(PoolLost, match="is gone"):
        transfer.stage(memoryview(bytes(1000)))
