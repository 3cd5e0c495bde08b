"""Uploads by pieces: what has arrived of one stays when its connection breaks, or the pool is killed. Pieces
that the user has uploaded before, as parts of other tensors, are copied here instead of sent again."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from blake3 import blake3

from djinn_lab.errors import Refused
from djinn_lab.pool.blobs.frames import decompressed, frames
from djinn_lab.pool.blobs.names import checked_digest, user_directory, user_of
from djinn_lab.protocol.messages import AWAY_S
from djinn_lab.protocol.rest.transfers import (
    HEADER,
    PIECE_BYTES,
    PiecesAnnounced,
    piece_bytes,
    piece_count,
)
from djinn_lab.units import format_bytes

if TYPE_CHECKING:
    from djinn_lab.pool.blobs.store import BlobStore


class NotAnnounced(Refused):
    """Pieces came for an upload that was not announced, or was given up since."""


class PieceSource(NamedTuple):
    """Where a piece is found: the file, and the byte at which it begins."""

    path: Path
    start: int


class _Upload:
    """``missing``: numbers of pieces. ``writers``: requests that send some. ``touched_s``: by the event loop,
    when the last one ended."""

    def __init__(self, user: str, digest: str, nbytes: int, pieces: tuple[bytes, ...], path: Path) -> None:
        self.user, self.digest, self.nbytes, self.pieces, self.path = user, digest, nbytes, pieces, path
        self.missing = set(range(len(pieces)))
        self.writers = 0
        self.touched_s = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.user, self.digest

    def write(self, number: int, data: bytes) -> None:
        """Write a piece, which may be compressed, to its place. Raises Refused for other bytes than were
        announced. Blocks."""
        nbytes = piece_bytes(number, self.nbytes)
        if len(data) < nbytes:
            data = decompressed(data, nbytes)
        if blake3(data).digest() != self.pieces[number]:
            raise Refused(f"Piece {number} does not have the digest that was announced.")
        with self.path.open("r+b", buffering=0) as file:
            _write_all(file.fileno(), data, number * PIECE_BYTES)

    def find(self) -> set[int]:
        """Return the numbers of the pieces that the file has. Blocks."""
        with self.path.open("rb", buffering=0) as file:
            return {
                number
                for number, digest in enumerate(self.pieces)
                if blake3(os.pread(file.fileno(), PIECE_BYTES, number * PIECE_BYTES)).digest() == digest
            }

    def copy(self, sources: Iterable[tuple[int, PieceSource]]) -> None:
        """Copy pieces from other files. Blocks."""
        with self.path.open("r+b", buffering=0) as file:
            for number, source in sources:
                with source.path.open("rb", buffering=0) as other:
                    data = os.pread(other.fileno(), piece_bytes(number, self.nbytes), source.start)
                _write_all(file.fileno(), data, number * PIECE_BYTES)


class PieceUploads:
    """Of one :class:`~djinn_lab.pool.blobs.store.BlobStore`. An upload takes all of its space at once.
    ``directory``: where their files are."""

    def __init__(self, store: BlobStore, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._uploads: dict[tuple[str, str], _Upload] = {}
        self._left: dict[tuple[str, str], Path] = {}
        """Of a dead pool, until their clients announce them again: which pieces they have, their digests
        tell."""

    def take_over(self, directory: Path) -> None:
        """Keep what had arrived at a dead pool, where there is space."""
        for path in directory.glob("*/*"):
            user, nbytes = user_of(path.parent), path.stat().st_size
            try:
                self._store.reserve(user, nbytes)
            except Refused:
                continue
            kept = self._left[user, path.name] = self._path_of(user, path.name)
            path.rename(kept)

    async def begin(self, user: str, digest: str, announced: PiecesAnnounced) -> list[int]:
        """Return the numbers of the pieces to send, none where all are here. Raises Refused for what is no
        announcement, and as :meth:`BlobStore.receive`."""
        pieces = _checked(checked_digest(digest), announced)
        if self._store.has(user, digest):
            return []
        upload = self._uploads.get((user, digest))
        if upload is not None and (upload.nbytes, upload.pieces) != (announced.nbytes, pieces):
            raise Refused("This tensor is being uploaded in other pieces.", "Try again in two hours.")
        if upload is None:
            left = (user, digest) in self._left
            upload = self._open(user, digest, announced.nbytes, pieces)
            if left:
                await self._find_left(upload)
        await self._copy_known(upload)
        if not upload.missing:
            await self._finish(upload)
        return sorted(upload.missing)

    async def receive(self, user: str, digest: str, chunks: AsyncIterator[bytes]) -> list[int]:
        """Store the pieces of a request's body; return the numbers of those that are still missing. What came
        before the body broke off stays. Raises NotAnnounced, and Refused for wrong bytes."""
        upload = self._uploads.get((user, checked_digest(digest)))
        if upload is None:
            if self._store.has(user, digest):
                return []
            raise NotAnnounced(f"No upload of {digest[:16]}... was announced, or it was given up.")
        upload.writers += 1
        try:
            async for (number, _), data in frames(chunks, HEADER, partial(_piece_length, upload.nbytes)):
                if number in upload.missing:
                    await asyncio.to_thread(upload.write, number, data)
                    upload.missing.discard(number)
        finally:
            upload.writers -= 1
            upload.touched_s = asyncio.get_running_loop().time()
        if not upload.missing:
            await self._finish(upload)
        return sorted(upload.missing)

    def drop_idle(self, user: str | None = None, before_s: float | None = None) -> int:
        """Give up the uploads of a user, or of all, of which nothing comes now, or none since ``before_s``;
        return how many bytes that frees."""
        idle = [
            one
            for one in self._uploads.values()
            if not one.writers and user in (None, one.user) and (before_s is None or one.touched_s < before_s)
        ]
        for one in idle:
            self._close(one)
        left = [] if before_s is not None else [key for key in self._left if user in (None, key[0])]
        return sum(one.nbytes for one in idle) + sum(map(self._drop_left, left))

    def drop_old(self) -> None:
        """Give up the uploads of which nothing has come for as long as a client is waited for."""
        self.drop_idle(before_s=asyncio.get_running_loop().time() - AWAY_S)
        before_s = time.time() - AWAY_S
        for key in [key for key, path in self._left.items() if path.stat().st_mtime < before_s]:
            self._drop_left(key)

    def _path_of(self, user: str, digest: str) -> Path:
        """Return where the file of an upload is; its directory is there."""
        path = self._directory / user_directory(user) / digest
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def _open(self, user: str, digest: str, nbytes: int, pieces: tuple[bytes, ...]) -> _Upload:
        path = self._left.get((user, digest))
        if path is not None and path.stat().st_size != nbytes:
            self._drop_left((user, digest))
        if self._left.pop((user, digest), None) is None:
            self._store.reserve(user, nbytes)
        upload = _Upload(user, digest, nbytes, pieces, self._path_of(user, digest))
        upload.touched_s = asyncio.get_running_loop().time()
        with upload.path.open("ab") as file:
            file.truncate(nbytes)
        self._uploads[upload.key] = upload
        return upload

    async def _find_left(self, upload: _Upload) -> None:
        """Find the pieces that had arrived at a dead pool."""
        upload.writers += 1
        try:
            found = await asyncio.to_thread(upload.find)
        finally:
            upload.writers -= 1
        upload.missing -= found

    async def _copy_known(self, upload: _Upload) -> None:
        wanted = {upload.pieces[number]: number for number in upload.missing}
        with self._store.pieces_of(upload.user, wanted) as found:
            same = [
                (number, found[upload.pieces[number]])
                for number in upload.missing
                if upload.pieces[number] in found
            ]
            if same:
                upload.writers += 1
                try:
                    await asyncio.to_thread(upload.copy, same)
                finally:
                    upload.writers -= 1
        upload.missing.difference_update(number for number, _ in same)

    async def _finish(self, upload: _Upload) -> None:
        """Store what has arrived whole; only the first of several callers does."""
        if self._uploads.pop(upload.key, None) is not upload:
            return
        try:
            await self._store.take_pieces(
                upload.user, upload.digest, upload.nbytes, upload.path, upload.pieces
            )
        finally:
            self._store.give_back(upload.user, upload.nbytes)
            upload.path.unlink(missing_ok=True)

    def _drop_left(self, key: tuple[str, str]) -> int:
        """Return how many bytes that frees."""
        path = self._left.pop(key)
        nbytes = path.stat().st_size
        self._store.give_back(key[0], nbytes)
        path.unlink()
        return nbytes

    def _close(self, upload: _Upload) -> None:
        del self._uploads[upload.key]
        self._store.give_back(upload.user, upload.nbytes)
        upload.path.unlink(missing_ok=True)


def _checked(digest: str, announced: PiecesAnnounced) -> tuple[bytes, ...]:
    """Return the pieces' digests. Raises Refused where their number does not fit the bytes."""
    count = piece_count(announced.nbytes) if announced.nbytes > 0 else 0
    if len(announced.pieces) != count or not count:
        raise Refused(
            f"{announced.nbytes} bytes are {count} pieces of {format_bytes(PIECE_BYTES)}; "
            f"{len(announced.pieces)} were announced for {digest[:16]}...."
        )
    return tuple(bytes.fromhex(checked_digest(piece)) for piece in announced.pieces)


def _piece_length(nbytes: int, number: int, length: int) -> int:
    """Return how many bytes follow the header of a piece. Raises Refused for a number that the tensor has
    not, and more bytes than its piece has."""
    if number >= piece_count(nbytes):
        raise Refused(f"There is no piece {number} of a tensor of {nbytes} bytes.")
    if length > piece_bytes(number, nbytes):
        raise Refused(f"{length} bytes are more than piece {number} has.")
    return length


def _write_all(file: int, data: bytes, start: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(file, data[written:], start + written)
