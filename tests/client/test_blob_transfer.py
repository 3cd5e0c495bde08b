"""Uploads on one host: written while hashed where that is likely to be needed, and never left behind."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_lab.client import blobs
from djinn_lab.client.blobs import AHEAD_BYTES_MIN, BlobTransfer, digest_of
from djinn_lab.protocol.messages import BlobsMissing, BlobStored, QueryBlobs

LARGE = AHEAD_BYTES_MIN


class PoolStandIn:
    """Knows what was stored, and keeps a note of every message."""

    def __init__(self, directory: Path) -> None:
        self.url = "http://127.0.0.1:1"
        self.welcome = SimpleNamespace(blob_directory=str(directory))
        self.held: set[str] = set()
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, BlobStored):
            self.held.add(message.digest)

    def receive_missing(self) -> BlobsMissing:
        query = self.sent[-1]
        assert isinstance(query, QueryBlobs)
        return BlobsMissing([digest for digest in query.digests if digest not in self.held])


@pytest.fixture
def pool(tmp_path: Path) -> PoolStandIn:
    return PoolStandIn(tmp_path)


def transfer_to(pool: PoolStandIn) -> BlobTransfer:
    return BlobTransfer(pool, "token")  # type: ignore[arg-type]


@pytest.mark.parametrize("nbytes", [1, LARGE - 1, LARGE, LARGE + 5])
def test_a_new_tensor_lies_under_its_digest(pool: PoolStandIn, tmp_path: Path, nbytes: int) -> None:
    data = os.urandom(nbytes)
    transfer = transfer_to(pool)
    digest = transfer.stage(memoryview(data))
    transfer.close()
    assert digest == digest_of(memoryview(data))
    assert [path.name for path in tmp_path.iterdir()] == [digest]
    assert (tmp_path / digest).read_bytes() == data
    assert pool.sent[-1] == BlobStored(digest, nbytes)
    assert transfer.uploaded_bytes == nbytes


def test_what_the_pool_holds_is_not_written_ahead_again(
    pool: PoolStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = memoryview(os.urandom(LARGE))
    digest = digest_of(data)
    pool.held.add(digest)
    transfer = transfer_to(pool)
    transfer.stage(data)
    assert list(tmp_path.iterdir()) == [], "what was written ahead in vain is gone"
    monkeypatch.setattr(blobs, "write_blob", None)
    transfer.unpinned()
    transfer.stage(data)
    assert pool.sent == [QueryBlobs([digest])] * 2
    transfer.close()


def test_an_interrupted_upload_leaves_nothing(
    pool: PoolStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_data: memoryview) -> str:
        raise KeyboardInterrupt

    transfer = transfer_to(pool)
    monkeypatch.setattr(blobs, "digest_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transfer.stage(memoryview(bytes(LARGE)))
    assert list(tmp_path.iterdir()) == []
    assert pool.sent == []
    transfer.close()


def test_a_full_directory_is_an_error_of_the_upload(
    pool: PoolStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _data: memoryview) -> None:
        path.write_bytes(b"a beginning")
        raise OSError("no space")

    transfer = transfer_to(pool)
    monkeypatch.setattr(blobs, "write_blob", full)
    with pytest.raises(OSError, match="no space"):
        transfer.stage(memoryview(bytes(LARGE)))
    assert list(tmp_path.iterdir()) == []
    assert not any(isinstance(message, BlobStored) for message in pool.sent)
    transfer.close()
