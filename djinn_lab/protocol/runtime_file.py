"""The file by which a user's programs find that user's running pool, as Jupyter's runtime files do.

It holds a token, so it is written with mode 0600 in a directory of mode 0700, atomically.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

import msgspec
import platformdirs

from djinn_lab.errors import CannotStartNow, PoolError
from djinn_lab.system.files import is_private
from djinn_lab.system.host import host_id
from djinn_lab.system.liveness import process_is_alive
from djinn_lab.system.locks import is_locked

DIRECTORY_VARIABLE = "DJINN_RUNTIME_DIR"
FILE_NAME = "pool.json"
SUPERVISOR_FILE = "supervisor.lock"
OWNER_FILE = "owner.pid"
SUPERVISOR_PID_BYTES = 32
"""At the beginning of the supervisor's file; behind them stands why its server cannot start now. The file is
written over in its place, which a full disk allows."""
SUPERVISOR_FILE_BYTES = 1024
PROBE_BYTES = 2**16
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
Setting = str | int | bool


class RuntimeInfo(msgspec.Struct, frozen=True):
    """Where a ready pool listens. ``started_at``: seconds since the epoch. ``standing_by``: it waits until
    another pool on its database is gone. ``settings``: what it was started with
    (:mod:`djinn_lab.pool.start_settings`). ``certificate``: the only one, in PEM, that an ``https`` pool may
    show. ``arguments``: of ``python -m djinn_lab.pool``, with which a pool that crashed is started as it was.
    ``supervised``: a supervisor starts it again when it crashes."""

    url: str
    token: str
    pool: str
    pid: int
    host: str
    version: str
    protocol_version: int
    started_at: float
    standing_by: bool = False
    settings: dict[str, Setting] = {}
    certificate: str = ""
    arguments: tuple[str, ...] = ()
    supervised: bool = True


def runtime_directory() -> Path:
    """The private directory of the runtime file, lock and log; created with mode 0700. Raises
    CannotStartNow when it cannot be."""
    override = os.environ.get(DIRECTORY_VARIABLE)
    return _made(Path(override) if override else _runtime_base() / "djinn-lab")


def data_directory() -> Path:
    """Return the directory of the pool's database: beside the runtime file when that is overridden, else user
    data. Raises CannotStartNow when it cannot be made."""
    override = os.environ.get(DIRECTORY_VARIABLE)
    return _made(Path(override) if override else platformdirs.user_data_path("djinn-lab", appauthor=False))


def check_writable() -> None:
    """Raises CannotStartNow, with what to do, when a pool cannot write its files."""
    for directory in dict.fromkeys((runtime_directory(), data_directory())):
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                file.write(bytes(PROBE_BYTES))
        except OSError as error:
            raise unwritable(directory, error) from None


def unwritable(path: Path, error: OSError) -> CannotStartNow:
    """Say why files at ``path`` cannot be written, and what to do."""
    if error.errno in NO_SPACE:
        advice = f"Free some space, or raise the quota, of {path} (see: df -h {path}; df -i {path})."
    else:
        advice = f"Make it writable for this user, or set {DIRECTORY_VARIABLE} to another directory."
    return CannotStartNow(f"{path} cannot be written: {error.strerror or error}.", advice)


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(directory, error) from None
    return directory


def read_runtime() -> RuntimeInfo | None:
    """The running pool, or None when there is no file or its process is dead.

    Raises PoolError when the file can be read by others or is not ours, since its token is then no secret.
    """
    info = _read()
    return info if info is not None and process_is_alive(info.pid) else None


def read_crashed() -> RuntimeInfo | None:
    """Return the last pool of this runtime directory where it ended without being stopped, in this run of the
    machine: the next one has its port and the owner's token. Raises PoolError as :func:`read_runtime`."""
    info = _read()
    crashed = info is not None and not process_is_alive(info.pid) and info.host == host_id()
    return info if crashed else None


def _read() -> RuntimeInfo | None:
    path = runtime_directory() / FILE_NAME
    try:
        status = path.stat()
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if not is_private(status):
        raise PoolError(
            f"{path} can be read or was written by another user, so its token is not to be trusted.",
            f"Stop the pool, delete {path} and start the pool again.",
        )
    try:
        return msgspec.json.decode(content, type=RuntimeInfo)
    except msgspec.DecodeError as error:
        raise PoolError(
            f"{path} is not a runtime file: {error}", f"Delete {path} and start the pool again."
        ) from None


def write_runtime(info: RuntimeInfo) -> None:
    """Publish a ready pool."""
    content = msgspec.json.format(msgspec.json.encode(info), indent=2)
    replace_file(runtime_directory() / FILE_NAME, content)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that this user alone may read: whole, or not at all. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def remove_runtime(pid: int) -> None:
    """Withdraw the file, if it still names process ``pid``."""
    path = runtime_directory() / FILE_NAME
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        if msgspec.json.decode(path.read_bytes(), type=RuntimeInfo).pid == pid:
            path.unlink()


def owner_of(directory: Path) -> int | None:
    """Return the process of the pool to which a directory of tensors belongs; None where none is named."""
    try:
        return int((directory / OWNER_FILE).read_text())
    except (OSError, ValueError):
        return None


def _runtime_base() -> Path:
    """The session's runtime directory where there is one. (platformdirs would otherwise answer a path in
    /tmp, which others can create first.)"""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and os.access(given, os.W_OK):
        return Path(given)
    return platformdirs.user_data_path(appauthor=False)


def supervisor_process() -> int | None:
    """Return the process that runs this user's pool and starts it again when it crashes, None for none."""
    try:
        with (runtime_directory() / SUPERVISOR_FILE).open("rb") as file:
            if not is_locked(file):
                return None
    except FileNotFoundError:
        return None
    return int(_supervisor_file()[:SUPERVISOR_PID_BYTES].strip() or b"0") or None


def note_start_waits(reason: str) -> None:
    """Say why the server of this user's supervisor cannot start now; empty once it has."""
    text = " ".join(reason.split()).encode()[: SUPERVISOR_FILE_BYTES - SUPERVISOR_PID_BYTES]
    padded = text.ljust(SUPERVISOR_FILE_BYTES - SUPERVISOR_PID_BYTES)
    try:
        opened = (runtime_directory() / SUPERVISOR_FILE).open("r+b", buffering=0)
    except FileNotFoundError:
        return  # no supervisor
    with opened as file:
        file.seek(SUPERVISOR_PID_BYTES)
        file.write(padded)


def start_waits_for() -> str:
    """Return why the server of this user's supervisor cannot start now; empty where that is not known."""
    return _supervisor_file()[SUPERVISOR_PID_BYTES:].decode(errors="ignore").strip()


def _supervisor_file() -> bytes:
    try:
        return (runtime_directory() / SUPERVISOR_FILE).read_bytes()
    except FileNotFoundError:
        return b""
