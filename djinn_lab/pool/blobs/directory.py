"""The directories of a pool: in shared memory for tensors on their way, on the disk for parked sessions."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from djinn_lab.errors import PoolError
from djinn_lab.protocol.runtime_file import OWNER_FILE, owner_of, process_is_alive

DIRECTORY_PREFIX = "djinn-"
STORE = "store"
RESULTS = "results"
PARKED = "parked"
SHARE_OF_FREE_SPACE = 0.5


def open_blob_directory(pool: str, fallback: Path) -> Path:
    """Make this pool's directory in shared memory (or below ``fallback``), and remove those of dead pools."""
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else fallback
    directory = own_directory(base, pool)
    for name in (STORE, RESULTS, PARKED):
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
    """Remove the directories of pools whose process is dead."""
    for directory in base.glob(f"{DIRECTORY_PREFIX}*"):
        owner = owner_of(directory)
        if owner is not None and not process_is_alive(owner):
            shutil.rmtree(directory, ignore_errors=True)


def default_bytes_max(directory: Path) -> int:
    """Half of what is free there now."""
    return int(shutil.disk_usage(directory).free * SHARE_OF_FREE_SPACE)


def remove_directory(directory: Path) -> None:
    """Raises PoolError for a path that is not the directory of a pool."""
    if not directory.name.startswith(DIRECTORY_PREFIX):
        raise PoolError(f"{directory} is not the directory of a pool")
    shutil.rmtree(directory, ignore_errors=True)
