"""Tensors on their way: uploaded ones by content, fetched ones by name.

``<directory>/store/``            what was uploaded; equal bytes once, for all users that uploaded them
``<directory>/uploads/<user>/``   uploads by pieces of which some are missing, by digest
``<directory>/results/``          where workers put fetched values
``<directory>/users/<user>/``     a link to each upload of a user, by each of its names: for a next pool
``<directory>/parked/``           where workers keep the state of idle sessions
``<directory>/<session>/``        one session's own: it writes uploads here and finds its results here

An upload is announced by its digest, which is verified, or without one. Of the latter the digest is computed
only when there is a *twin*, another blob with the same sketch: without any, the bytes are new and belong to
the users that were sent their drawn name. The answer to a user says that a tensor is here only when that same
user uploaded it. Another user's upload of equal bytes is dropped in favour of the copy that is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import uuid
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from djinn_lab.errors import Refused
from djinn_lab.pool.blobs.directory import RESULTS, STORE, UPLOADS, USERS
from djinn_lab.pool.blobs.names import (
    checked_digest,
    checked_name,
    checked_result_name,
    user_directory,
    user_of,
)
from djinn_lab.pool.blobs.piece_uploads import PieceSource, PieceUploads
from djinn_lab.pool.user_limits import OverLimit
from djinn_lab.protocol.rest.transfers import PIECE_BYTES
from djinn_lab.srg.blob_names import UNHASHED_BYTES_MIN, is_digest, sketch_of
from djinn_lab.units import format_bytes

INLINE_VERIFY_BYTES_MAX = 256 * 2**10
"""Hashed on the event loop (about 0.1 ms); more goes to a thread."""
CORES_FOR_MAPPING = 4
"""With fewer, the page faults of a mapping cost more than threads gain: 1.7 instead of 3.1 GB/s."""
READ_BYTES = 2**20
"""Read at once; stays in a core's cache until it is hashed."""

_SESSION = re.compile(r"[0-9a-f]{32}")


class Blob:
    """``file``: its name in the store, as workers know it. ``names``: what programs call it. ``digest``: None
    while it was not needed. ``users``: that uploaded it. ``pins``: how many submits need it. ``wanted``: how
    many runs would need it again, if their worker were lost. ``pieces``: their digests, where it came in
    pieces."""

    def __init__(self, file: str, nbytes: int, sketch: str | None) -> None:
        self.file = file
        self.nbytes = nbytes
        self.sketch = sketch
        self.digest: str | None = None
        self.names: set[str] = set()
        self.users: set[str] = set()
        self.links: set[Path] = set()
        self.pins = 0
        self.wanted = 0
        self.pieces: tuple[bytes, ...] = ()


class BlobStore:
    """Keep all blobs of one pool, least recently used first. ``bytes_max`` bounds the uploaded ones,
    ``user_bytes_max`` those of one user, where equal bytes count for every user that uploaded them."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self.directory = directory
        self.bytes_max = bytes_max
        self.user_bytes_max: Callable[[], int] = lambda: bytes_max
        self.results = directory / RESULTS
        self._store = directory / STORE
        self._users = directory / USERS
        self._key = os.urandom(blake3.key_size)
        self._uploading: Counter[str] = Counter()
        """Bytes of uploads under way, by user."""
        self._blobs: OrderedDict[str, Blob] = OrderedDict()
        """By file."""
        self._named: dict[str, Blob] = {}
        self._alike: dict[str, list[Blob]] = {}
        """By sketch."""
        self.piece_uploads = PieceUploads(self, directory / UPLOADS)

    @property
    def count(self) -> int:
        return len(self._blobs)

    @property
    def nbytes(self) -> int:
        return sum(blob.nbytes for blob in self._blobs.values())

    def has(self, user: str, name: str) -> bool:
        blob = self._named.get(name)
        return blob is not None and user in blob.users

    def has_like(self, user: str, sketch: str) -> bool:
        """Return whether the user uploaded anything with this sketch."""
        return any(user in blob.users for blob in self._alike.get(sketch, ()))

    async def identify(self, sketch: str) -> None:
        """Compute the digests of all blobs with this sketch, so that they are found by digest."""
        while (blob := self._unidentified(sketch)) is not None:
            blob.pins += 1
            try:
                self._learn(blob, await _digest_in_thread(self._store / blob.file))
            finally:
                blob.pins -= 1

    def pin(self, name: str) -> None:
        """Keep a present blob until as many ``unpin`` calls."""
        blob = self._named[name]
        blob.pins += 1
        self._blobs.move_to_end(blob.file)

    def unpin(self, names: Iterable[str]) -> None:
        for name in names:
            blob = self._named.get(name)
            if blob is not None:
                assert blob.pins > 0
                blob.pins -= 1

    def want(self, names: Iterable[str], count: int = 1) -> None:
        """Keep blobs longer than others, until a ``count`` of as many below 0; but not when an upload needs
        their space."""
        for name in names:
            blob = self._named.get(name)
            if blob is not None:
                blob.wanted = max(0, blob.wanted + count)

    def stored_names(self, names: Iterable[str]) -> dict[str, str] | None:
        """Return :meth:`stored_name` of all, None where one is not here any more."""
        found = {name: self._named.get(name) for name in names}
        return {name: blob.file for name, blob in found.items() if blob} if all(found.values()) else None

    def stored_name(self, name: str) -> str:
        """Return the name by which workers know a present blob; equal for all names of equal bytes."""
        return self._named[name].file

    def open_session(self, session: str) -> Path:
        """Make the session's own directory."""
        path = self.directory / session
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def close_session(self, session: str) -> None:
        shutil.rmtree(self.directory / session, ignore_errors=True)

    async def adopt(self, user: str, session: str, name: str, nbytes: int) -> None:
        """Take the file that a client on this host wrote into its session's directory. ``name``: its digest,
        or a drawn name.

        Raises Refused when it is absent, of another size, or has other content than its digest says.
        """
        incoming = self.directory / session / checked_name(name)
        try:
            status = os.lstat(incoming)
        except FileNotFoundError:
            raise Refused(f"No file {name} was written.", "Upload the tensor again.") from None
        if not incoming.is_file() or incoming.is_symlink() or status.st_size != nbytes:
            self._drop(incoming)
            raise Refused(f"The file {name} has {status.st_size} bytes, {nbytes} were announced.")
        if is_digest(name):
            inline = nbytes <= INLINE_VERIFY_BYTES_MAX
            found = _digest_of(incoming) if inline else await _digest_in_thread(incoming)
            await self._take(user, name, nbytes, incoming, found)
        elif nbytes < UNHASHED_BYTES_MIN or name in self._named:
            self._drop(incoming)
            raise Refused(f"{nbytes} bytes cannot be stored as {name}; announce them by their digest.")
        else:
            await self._take(user, name, nbytes, incoming, None)

    async def receive(self, user: str, digest: str, chunks: AsyncIterator[bytes]) -> int:
        """Store an uploaded body; bytes received. Raises Refused like :meth:`adopt`, or when it is too
        large."""
        checked_digest(digest)
        incoming = self.results / f"upload-{uuid.uuid4().hex}"
        hasher = blake3()
        nbytes = 0
        try:
            with incoming.open("wb") as file:
                async for chunk in chunks:
                    nbytes += len(chunk)
                    self._uploading[user] += len(chunk)
                    if nbytes > self.bytes_max:
                        raise Refused(
                            f"The upload exceeds {format_bytes(self.bytes_max)}, all that this pool keeps."
                        )
                    self._forget_for(user, 0)
                    self._evict_for(0)
                    if len(chunk) <= INLINE_VERIFY_BYTES_MAX:
                        file.write(chunk)
                        hasher.update(chunk)
                    else:
                        await asyncio.to_thread(file.write, chunk)
                        await asyncio.to_thread(hasher.update, chunk)
            await self._take(user, digest, nbytes, incoming, hasher.hexdigest(), counted=True)
        finally:
            self._uploading[user] -= nbytes
            incoming.unlink(missing_ok=True)
        return nbytes

    def reserve(self, user: str, nbytes: int) -> None:
        """Take space for an upload that will come. Raises Refused where there is none."""
        if nbytes > self.bytes_max:
            raise Refused(f"The upload exceeds {format_bytes(self.bytes_max)}, all that this pool keeps.")
        self._forget_for(user, nbytes)
        self._evict_for(nbytes)
        self._uploading[user] += nbytes

    def give_back(self, user: str, nbytes: int) -> None:
        """Give back what :meth:`reserve` took."""
        self._uploading[user] -= nbytes

    async def take_pieces(
        self, user: str, digest: str, nbytes: int, incoming: Path, pieces: tuple[bytes, ...]
    ) -> None:
        """Store a file whose pieces have all arrived, and whose space was reserved. Raises Refused where it
        has another digest."""
        await self._take(user, digest, nbytes, incoming, await _digest_in_thread(incoming), counted=True)
        self._named[digest].pieces = pieces

    @contextlib.contextmanager
    def pieces_of(self, user: str, wanted: Container[bytes]) -> Iterator[dict[bytes, PieceSource]]:
        """Find pieces among the user's own uploads, which stay meanwhile."""
        own = [blob for blob in self._blobs.values() if blob.pieces and user in blob.users]
        for blob in own:
            blob.pins += 1
        try:
            yield {
                piece: PieceSource(self._store / blob.file, number * PIECE_BYTES)
                for blob in own
                for number, piece in enumerate(blob.pieces)
                if piece in wanted
            }
        finally:
            for blob in own:
                blob.pins -= 1

    def deliver(self, session: str, name: str) -> None:
        """Move a worker's result to its session. Raises Refused for any other name."""
        source = self.results / checked_result_name(name)
        source.rename(self.directory / session / name)

    def discard(self, result: str) -> None:
        """Delete a worker's result that no session gets. Raises Refused for any other name."""
        (self.results / checked_result_name(result)).unlink(missing_ok=True)

    def has_result(self, session: str, name: str) -> bool:
        """Return whether this session has such a result. Raises Refused for what is no result's name."""
        return (self.directory / session / checked_result_name(name)).is_file()

    def open_result(self, session: str, name: str) -> BinaryIO | None:
        """Open a result of this session; the caller closes the file. None when there is none."""
        try:
            return (self.directory / session / checked_result_name(name)).open("rb")
        except FileNotFoundError:
            return None

    def drop_result(self, session: str, name: str) -> None:
        """Delete a result of this session, if there is one."""
        (self.directory / session / checked_result_name(name)).unlink(missing_ok=True)

    async def _take(
        self, user: str, name: str, nbytes: int, incoming: Path, found: str | None, counted: bool = False
    ) -> None:
        """``found``: the digest that was computed, if any. ``counted``: among the uploads under way."""
        if is_digest(name) and found != name:
            self._drop(incoming)
            raise Refused(
                f"The uploaded bytes have the digest {str(found)[:16]}..., not {name[:16]}... as announced."
            )
        sketch = _sketch_of(incoming, nbytes)
        while sketch is not None and sketch in self._alike:
            if found is None:
                found = await _digest_in_thread(incoming)
            elif self._unidentified(sketch) is not None:
                await self.identify(sketch)
            else:
                break
        # Nothing waits from here on: twins that arrive together see each other.
        blob = self._named.get(found) if found is not None else None
        if blob is None or user not in blob.users:
            try:
                self._forget_for(user, 0 if counted else nbytes)
            except Refused:
                self._drop(incoming)
                raise
            blob = self._named.get(found) if found is not None else None  # may be what was forgotten
        if blob is not None:
            self._drop(incoming)
        else:
            try:
                self._evict_for(0 if counted else nbytes)
            except Refused:
                self._drop(incoming)
                raise
            file = self._file_of(name)
            incoming.rename(self._store / file)
            blob = self._blobs[file] = Blob(file, nbytes, sketch)
            if sketch is not None:
                self._alike.setdefault(sketch, []).append(blob)
            if found is not None:
                self._learn(blob, found)
        blob.names.add(name)
        self._named[name] = blob
        blob.users.add(user)
        self._link(blob)
        self._blobs.move_to_end(blob.file)

    def _file_of(self, name: str) -> str:
        """Return where to store a blob, which its bytes alone do not tell: the same when they were dropped
        and are uploaded again, so that sessions on a device share them still."""
        return blake3(name.encode(), key=self._key).hexdigest() if is_digest(name) else name

    def take_over(self, directories: Iterable[Path]) -> None:
        """Move here what dead pools had: uploads, what had arrived of others, and what is in sessions' own
        directories: results, and what their clients had written."""
        for directory in directories:
            self._take_over_uploads(directory)
            self.piece_uploads.take_over(directory / UPLOADS)
            for path in directory.iterdir():
                if path.is_dir() and _SESSION.fullmatch(path.name):
                    own = self.open_session(path.name)
                    for file in path.iterdir():
                        self._move(file, own / file.name)

    def _take_over_uploads(self, directory: Path) -> None:
        names: defaultdict[int, set[str]] = defaultdict(set)
        users: defaultdict[int, set[str]] = defaultdict(set)
        for link in (directory / USERS).glob("*/*"):
            number = link.stat().st_ino
            names[number].add(link.name)
            users[number].add(user_of(link.parent))
        stored = [(path.stat(), path) for path in (directory / STORE).glob("*")]
        for status, path in sorted(stored, key=lambda one: one[0].st_mtime_ns):
            number = status.st_ino
            if not users[number]:
                continue  # its upload was under way, or given up
            twin = next((self._named[name] for name in names[number] if name in self._named), None)
            blob = twin or self._taken_over(path, status.st_size)
            blob.users |= users[number]
            for name in names[number]:
                blob.names.add(name)
                self._named[name] = blob
                blob.digest = name if is_digest(name) else blob.digest
            self._link(blob)

    def _taken_over(self, path: Path, nbytes: int) -> Blob:
        """Move a file here, by the name that parked state has for it."""
        self._move(path, self._store / path.name)
        sketch = _sketch_of(self._store / path.name, nbytes)
        blob = self._blobs[path.name] = Blob(path.name, nbytes, sketch)
        if sketch is not None:
            self._alike.setdefault(sketch, []).append(blob)
        return blob

    async def take_written(self, user: str, session: str, names: Iterable[str]) -> None:
        """Adopt files that the session's client wrote for a pool that died before it knew."""
        for name in names:
            path = self.directory / session / checked_name(name)
            if not self.has(user, name) and path.is_file():
                with contextlib.suppress(Refused):  # then it is missing, as it is
                    await self.adopt(user, session, name, path.lstat().st_size)

    def _move(self, source: Path, target: Path) -> None:
        if not target.exists():
            source.rename(target)

    def _link(self, blob: Blob) -> None:
        """Let a next pool find the blob by user and name."""
        wanted = {self._users / user_directory(user) / name for user in blob.users for name in blob.names}
        for link in wanted - blob.links:
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            link.hardlink_to(self._store / blob.file)
        for link in blob.links - wanted:
            link.unlink(missing_ok=True)
        blob.links = wanted

    def _unidentified(self, sketch: str) -> Blob | None:
        return next((blob for blob in self._alike.get(sketch, ()) if blob.digest is None), None)

    def _learn(self, blob: Blob, digest: str) -> None:
        blob.digest = digest
        blob.names.add(digest)
        self._named[digest] = blob
        self._link(blob)

    def bytes_of(self, user: str) -> int:
        """Return how many bytes of uploads the user has, with those under way."""
        stored = sum(blob.nbytes for blob in self._blobs.values() if user in blob.users)
        return stored + self._uploading[user]

    def _unpinned(self) -> list[Blob]:
        """Return the blobs that may go, the least recently used first, those that runs want last."""
        unpinned = [blob for blob in self._blobs.values() if blob.pins == 0]
        return sorted(unpinned, key=lambda blob: blob.wanted > 0)

    def _forget_for(self, user: str, nbytes: int) -> None:
        """Forget a user's oldest uploads until ``nbytes`` more are within the user's limit. Raises OverLimit
        where cells need too many of them."""
        limit = self.user_bytes_max()
        if limit >= self.bytes_max:
            return  # the pool's own limit does it
        free = limit - self.bytes_of(user)
        if free < nbytes:
            free += self.piece_uploads.drop_idle(user)
        if free >= nbytes:
            return
        for blob in [blob for blob in self._unpinned() if user in blob.users]:
            blob.users.discard(user)
            self._link(blob)
            if not blob.users:
                self._evict(blob)
            free += blob.nbytes
            if free >= nbytes:
                return
        raise OverLimit(
            f"The uploads of {user} would take more than {format_bytes(limit)}, the limit for a user, and "
            "cells that run or wait need those that are there.",
            "Try again when those cells have finished, or let the pool's administrator raise the limit: "
            "djinn-lab pool start --upload-bytes-per-user.",
            status=413,
        )

    def _evict_for(self, nbytes: int) -> None:
        """Evict what the uploads under way need. Raises Refused where too much is in use."""
        free = self.bytes_max - self.nbytes - self._uploading.total()
        if free < nbytes:
            free += self.piece_uploads.drop_idle()
        for blob in self._unpinned():
            if free >= nbytes:
                break
            free += blob.nbytes
            self._evict(blob)
        if free < nbytes:
            raise Refused(
                f"The pool keeps at most {format_bytes(self.bytes_max)} of uploaded tensors, all in use now.",
                "Try again when other cells have finished, or give the machine more shared memory.",
            )

    def _evict(self, blob: Blob) -> None:
        del self._blobs[blob.file]
        blob.users.clear()
        self._link(blob)
        for name in blob.names:
            del self._named[name]
        if blob.sketch is not None:
            twins = self._alike[blob.sketch]
            twins.remove(blob)
            if not twins:
                del self._alike[blob.sketch]
        self._drop(self._store / blob.file)

    def _drop(self, path: Path) -> None:
        """Delete a file. Freeing the memory of a large one takes long, so that is left to a thread."""
        dropped = self.results / f"dropped-{uuid.uuid4().hex}"
        path.rename(dropped)
        asyncio.get_running_loop().run_in_executor(None, dropped.unlink)


def _digest_of(path: Path) -> str:
    if (os.cpu_count() or 1) >= CORES_FOR_MAPPING:
        return str(blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest())
    hasher = blake3()
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return hasher.hexdigest()


async def _digest_in_thread(path: Path) -> str:
    return await asyncio.to_thread(_digest_of, path)


def _sketch_of(path: Path, nbytes: int) -> str | None:
    """None for so few bytes that they come with a digest."""
    if nbytes < UNHASHED_BYTES_MIN:
        return None
    with path.open("rb", buffering=0) as file:
        return sketch_of(nbytes, lambda start, count: os.pread(file.fileno(), count, start))
