"""The directories of a pool: in shared memory for tensors on their way, on the disk for parked sessions.

Each run of a pool has its own, and removes them when it is stopped. Those of a pool that was killed stay:
the next pool on the same database takes over what is in them. Other pools leave them alone for as long as a
session may wait for its client, counted from when one of them first found the owner dead."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import sqlalchemy as sa

from djinn_lab.errors import PoolError
from djinn_lab.protocol.runtime_file import OWNER_FILE, owner_of, unwritable
from djinn_lab.system.host import SHARED_MEMORY, host_id
from djinn_lab.system.liveness import process_is_alive

DIRECTORY_PREFIX = "djinn-"
STORE = "store"
RESULTS = "results"
PARKED = "parked"
USERS = "users"
UPLOADS = "uploads"
DATABASE_FILE = "database.json"
FOUND_DEAD_FILE = "found-dead"
LED_FILE = "led"
END_WITHIN_S, POLL_S = 3.0, 0.02
"""A pool that was just killed may live for so long."""
SHARE_OF_FREE_SPACE = 0.5


class Belonging(msgspec.Struct, frozen=True):
    """The pool to which a directory belongs. ``database``: a digest of its address; ``file``: its path, empty
    for one that is no file. ``host``: :func:`djinn_lab.protocol.runtime_file.host_id`. ``kept_s``: for so
    long a session waits for its client."""

    database: str
    file: str
    host: str
    kept_s: float

    @classmethod
    def of(cls, database: str, kept_s: float) -> Belonging:
        """``database``: its URL; its password and options are left out."""
        url = sa.make_url(database).set(query={})
        digest = hashlib.blake2b(url.render_as_string(hide_password=True).encode(), digest_size=16)
        file = url.database or "" if url.get_backend_name() == "sqlite" else ""
        return cls(digest.hexdigest(), file, host_id(), kept_s)

    def is_left(self, by: Belonging) -> bool:
        """Return whether this pool may take over what ``by`` left."""
        return (self.database, self.host) == (by.database, by.host)


def open_blob_directory(pool: str, fallback: Path, belonging: Belonging) -> Path:
    """Make this pool's directory in shared memory (or below ``fallback``). Raises CannotStartNow."""
    return own_directory(shared_memory(fallback), pool, belonging, (STORE, RESULTS, PARKED, USERS, UPLOADS))


def shared_memory(fallback: Path) -> Path:
    """Return where this machine has shared memory; ``fallback`` where it has none."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else fallback


def own_directory(base: Path, pool: str, belonging: Belonging, folders: Sequence[str] = ()) -> Path:
    """Make a directory of this pool's with these ``folders``, and remove those of dead pools that no pool
    will take over. Raises CannotStartNow, with nothing made."""
    remove_dead_directories(base, belonging)
    directory = base / f"{DIRECTORY_PREFIX}{pool}"
    try:
        directory.mkdir(mode=0o700, parents=True)
        (directory / DATABASE_FILE).write_bytes(msgspec.json.encode(belonging))
        (directory / OWNER_FILE).write_text(str(os.getpid()))
        for name in folders:
            (directory / name).mkdir(mode=0o700)
    except OSError as error:
        remove_directory(directory)
        raise unwritable(base, error) from None
    return directory


def remove_dead_directories(base: Path, taker: Belonging | None = None) -> None:
    """Remove the directories of pools whose process is dead, but for those that a next pool may take over.
    ``taker``: takes its own over now, however long it could not."""
    for directory in _dead_directories(base):
        belonging = _belonging_of(directory)
        own = taker is not None and belonging is not None and taker.is_left(belonging)
        if not own and not _may_be_taken_over(directory, belonging):
            shutil.rmtree(directory, ignore_errors=True)


def remove_directories_of_lost(base: Path, prefix: str) -> None:
    """Remove those of dead owners whose names begin like this, though a next pool might want them."""
    for directory in _dead_directories(base):
        if directory.name.startswith(f"{DIRECTORY_PREFIX}{prefix}"):
            remove_directory(directory)


def note_lead(directory: Path) -> None:
    """Note that the pool of this directory leads on its database, so that a next one waits for its end."""
    (directory / LED_FILE).touch()


def left_directories(base: Path, belonging: Belonging) -> list[Path]:
    """List the directories of dead pools on the same database, and in the same run of this machine. One that
    led and has lost its database is given a moment to end."""
    deadline_s = time.monotonic() + END_WITHIN_S
    while time.monotonic() < deadline_s and _has_former_leader(base, belonging):
        time.sleep(POLL_S)
    return [
        directory
        for directory in sorted(_dead_directories(base))
        if (by := _belonging_of(directory)) is not None and belonging.is_left(by)
    ]


def claim_directory(directory: Path, needed: Iterable[Path]) -> bool:
    """Make a dead owner's directory this process's, with the files that are ``needed`` of it; without any,
    remove it. Returns whether it is there."""
    files = [path for path in needed if path.is_relative_to(directory) and path.is_file()]
    if not files:
        remove_directory(directory)
        return False
    (directory / OWNER_FILE).write_text(str(os.getpid()))
    kept = {directory / OWNER_FILE, directory / DATABASE_FILE, *files}
    for path in directory.rglob("*"):
        if path not in kept and not path.is_dir():
            path.unlink(missing_ok=True)
    return True


def default_bytes_max(directory: Path) -> int:
    """Half of what is free there now."""
    return int(shutil.disk_usage(directory).free * SHARE_OF_FREE_SPACE)


def remove_directory(directory: Path) -> None:
    """Raises PoolError for a path that is not the directory of a pool."""
    if not directory.name.startswith(DIRECTORY_PREFIX):
        raise PoolError(f"{directory} is not the directory of a pool")
    shutil.rmtree(directory, ignore_errors=True)


def _has_former_leader(base: Path, belonging: Belonging) -> bool:
    """Return whether a pool that led before the present one still lives."""
    for marked in base.glob(f"{DIRECTORY_PREFIX}*/{LED_FILE}"):
        owner, by = owner_of(marked.parent), _belonging_of(marked.parent)
        if owner is not None and by is not None and belonging.is_left(by) and process_is_alive(owner):
            return True
    return False


def _dead_directories(base: Path) -> list[Path]:
    """List those whose owner is known, and dead."""
    owners = ((directory, owner_of(directory)) for directory in base.glob(f"{DIRECTORY_PREFIX}*"))
    return [path for path, owner in owners if owner is not None and not process_is_alive(owner)]


def _may_be_taken_over(directory: Path, belonging: Belonging | None) -> bool:
    """Return whether a next pool on its database may still come."""
    if belonging is None or (belonging.file and not Path(belonging.file).exists()):
        return False
    found = directory / FOUND_DEAD_FILE
    try:
        if not found.exists():
            found.touch()
        return time.time() < found.stat().st_mtime + belonging.kept_s
    except FileNotFoundError:
        return False  # another pool removes it
    except OSError:
        return True  # a full disk does not even take the note, and says nothing about who comes


def _belonging_of(directory: Path) -> Belonging | None:
    try:
        return msgspec.json.decode((directory / DATABASE_FILE).read_bytes(), type=Belonging)
    except (OSError, msgspec.DecodeError):
        return None
