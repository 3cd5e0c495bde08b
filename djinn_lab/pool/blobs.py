"""Tensors on their way: uploaded ones by content digest, fetched ones by name.

``<directory>/store/<digest>``    what was verified; shared by all who uploaded it
``<directory>/results/``          where workers put fetched values
``<directory>/parked/``           where workers keep the state of idle sessions
``<directory>/<session>/``        one session's own: it writes uploads here and finds its results here

A user is told that a tensor is here only when that same user uploaded it. Another user's upload of equal
bytes is verified and then dropped in favour of the copy that is here.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from djinn_lab.errors import PoolError, Refused
from djinn_lab.protocol.runtime_file import process_is_alive
from djinn_lab.units import format_bytes

DIRECTORY_PREFIX = "djinn-"
OWNER_FILE = "owner.pid"
PARKED = "parked"
INLINE_VERIFY_BYTES_MAX = 256 * 2**10
"""Hashed on the event loop (about 0.1 ms); more goes to a thread."""
SHARE_OF_FREE_SPACE = 0.5
CORES_FOR_MAPPING = 4
"""With fewer, the page faults of a mapping cost more than threads gain: 1.7 instead of 3.1 GB/s."""
READ_BYTES = 2**20
"""Read at once; stays in a core's cache until it is hashed."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"result-[0-9a-f-]{32,36}")


class Blob:
    """``users``: who uploaded it. ``pins``: how many submits need it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.users: set[str] = set()
        self.pins = 0


class BlobStore:
    """All blobs of one pool, least recently used first. ``bytes_max`` bounds the uploaded ones."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self.directory = directory
        self.bytes_max = bytes_max
        self.results = directory / "results"
        self._store = directory / "store"
        self._blobs: OrderedDict[str, Blob] = OrderedDict()

    @property
    def count(self) -> int:
        return len(self._blobs)

    @property
    def nbytes(self) -> int:
        return sum(blob.nbytes for blob in self._blobs.values())

    def has(self, user: str, digest: str) -> bool:
        blob = self._blobs.get(digest)
        return blob is not None and user in blob.users

    def pin(self, digest: str) -> None:
        """Keep a present blob until as many ``unpin`` calls."""
        self._blobs[digest].pins += 1
        self._blobs.move_to_end(digest)

    def unpin(self, digests: Iterable[str]) -> None:
        for digest in digests:
            blob = self._blobs.get(digest)
            if blob is not None:
                assert blob.pins > 0
                blob.pins -= 1

    def path(self, digest: str) -> Path:
        return self._store / checked_digest(digest)

    def open_session(self, session: str) -> Path:
        """The session's own directory."""
        path = self.directory / session
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def close_session(self, session: str) -> None:
        shutil.rmtree(self.directory / session, ignore_errors=True)

    async def adopt(self, user: str, session: str, digest: str, nbytes: int) -> None:
        """Take the file that a client on this host wrote into its session's directory.

        Raises Refused when it is absent, of another size, or has other content than ``digest`` says.
        """
        incoming = self.directory / session / checked_digest(digest)
        try:
            status = os.lstat(incoming)
        except FileNotFoundError:
            raise Refused(f"No file {digest} was written.", "Upload the tensor again.") from None
        if not incoming.is_file() or incoming.is_symlink() or status.st_size != nbytes:
            self._drop(incoming)
            raise Refused(f"The file {digest} has {status.st_size} bytes, {nbytes} were announced.")
        if nbytes <= INLINE_VERIFY_BYTES_MAX:
            found = _digest_of(incoming)
        else:
            found = await asyncio.to_thread(_digest_of, incoming)
        self._take(user, digest, nbytes, incoming, found)

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
                    if nbytes > self.bytes_max:
                        raise Refused(
                            f"The upload exceeds {format_bytes(self.bytes_max)}, all that this pool keeps."
                        )
                    if len(chunk) <= INLINE_VERIFY_BYTES_MAX:
                        file.write(chunk)
                        hasher.update(chunk)
                    else:
                        await asyncio.to_thread(file.write, chunk)
                        await asyncio.to_thread(hasher.update, chunk)
            self._take(user, digest, nbytes, incoming, hasher.hexdigest())
        finally:
            incoming.unlink(missing_ok=True)
        return nbytes

    def deliver(self, session: str, path: str) -> str:
        """Move a worker's result file to its session; its name there. Raises Refused for any other path."""
        source = Path(path)
        if source.parent != self.results or not _NAME.fullmatch(source.name):
            raise Refused(f"the worker named a result file {path!r}")
        source.rename(self.directory / session / source.name)
        return source.name

    def take_result(self, session: str, name: str) -> BinaryIO | None:
        """A result of this session, open and already deleted, for the caller to close; None when there is
        none."""
        path = self.directory / session / checked_result_name(name)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        path.unlink(missing_ok=True)
        return file

    def _take(self, user: str, digest: str, nbytes: int, incoming: Path, found: str) -> None:
        if found != digest:
            self._drop(incoming)
            raise Refused(
                f"The uploaded bytes have the digest {found[:16]}..., not {digest[:16]}... as announced."
            )
        blob = self._blobs.get(digest)
        if blob is not None:
            self._drop(incoming)
        else:
            self._make_room(nbytes, incoming)
            incoming.rename(self._store / digest)
            blob = self._blobs[digest] = Blob(nbytes)
        blob.users.add(user)
        self._blobs.move_to_end(digest)

    def _make_room(self, nbytes: int, incoming: Path) -> None:
        room = self.bytes_max - self.nbytes
        for digest in [digest for digest, blob in self._blobs.items() if blob.pins == 0]:
            if room >= nbytes:
                break
            room += self._blobs.pop(digest).nbytes
            self._drop(self._store / digest)
        if room < nbytes:
            self._drop(incoming)
            raise Refused(
                f"The pool keeps at most {format_bytes(self.bytes_max)} of uploaded tensors, all in use now.",
                "Try again when other cells have finished, or give the machine more shared memory.",
            )

    def _drop(self, path: Path) -> None:
        """Delete a file. Freeing the memory of a large one takes long, so that is left to a thread."""
        dropped = self.results / f"dropped-{uuid.uuid4().hex}"
        path.rename(dropped)
        asyncio.get_running_loop().run_in_executor(None, dropped.unlink)


def checked_digest(digest: str) -> str:
    """``digest`` itself. Raises Refused unless it is one, so that it is safe as a file name."""
    if not _DIGEST.fullmatch(digest):
        raise Refused(f"{digest[:80]!r} is no BLAKE3 digest (64 hexadecimal digits).")
    return digest


def checked_result_name(name: str) -> str:
    """``name`` itself. Raises Refused unless it is a result's name."""
    if not _NAME.fullmatch(name):
        raise Refused(f"{name[:80]!r} is no result's name.")
    return name


def open_blob_directory(pool: str, fallback: Path) -> Path:
    """Make this pool's directory in shared memory (or below ``fallback``), and remove those of dead pools."""
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else fallback
    directory = own_directory(base, pool)
    for name in ("store", "results", PARKED):
        (directory / name).mkdir(mode=0o700)
    return directory


def own_directory(base: Path, pool: str) -> Path:
    """Make a directory of this pool's, and remove those of dead pools."""
    remove_dead_directories(base)
    directory = base / f"{DIRECTORY_PREFIX}{pool}"
    directory.mkdir(mode=0o700, parents=True)
    (directory / OWNER_FILE).write_text(str(os.getpid()))
    return directory


def remove_dead_directories(base: Path) -> None:
    """Those whose pool's process no longer lives."""
    for directory in base.glob(f"{DIRECTORY_PREFIX}*"):
        try:
            owner = int((directory / OWNER_FILE).read_text())
        except (OSError, ValueError):
            continue
        if not process_is_alive(owner):
            shutil.rmtree(directory, ignore_errors=True)


def default_bytes_max(directory: Path) -> int:
    """Half of what is free there now."""
    return int(shutil.disk_usage(directory).free * SHARE_OF_FREE_SPACE)


def remove_directory(directory: Path) -> None:
    """Raises PoolError for a path that is no pool's directory."""
    if not directory.name.startswith(DIRECTORY_PREFIX):
        raise PoolError(f"{directory} is no pool's directory")
    shutil.rmtree(directory, ignore_errors=True)


def _digest_of(path: Path) -> str:
    if (os.cpu_count() or 1) >= CORES_FOR_MAPPING:
        return str(blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest())
    hasher = blake3()
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return hasher.hexdigest()
