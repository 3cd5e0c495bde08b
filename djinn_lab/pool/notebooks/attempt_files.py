"""What a runner has left in its directory: the notebook as far as it got, how the attempt ended, the session
that its kernel opened. It may outlive the pool that started it, for a moment."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from pathlib import Path

import msgspec

from djinn_lab.pool.notebooks import messages as files
from djinn_lab.pool.notebooks.messages import AttemptEnded
from djinn_lab.system.locks import try_lock
from djinn_lab.units import format_bytes

LEFT_GRACE_S = 10.0
EXECUTED_BYTES_MAX = 256 * 2**20

log = logging.getLogger(__name__)


def read_outcome_file(directory: Path, attempt: int) -> AttemptEnded | None:
    """Read how the attempt ended, if its runner wrote that."""
    try:
        left = msgspec.json.decode((directory / files.OUTCOME_FILE).read_bytes(), type=AttemptEnded)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        log.warning("%s is no outcome: %s", directory / files.OUTCOME_FILE, error)
        return None
    return left if left.attempt == attempt else None


def read_executed_file(directory: Path) -> bytes | None:
    """Read the notebook as far as the runner got, unless it has more than EXECUTED_BYTES_MAX."""
    path = directory / files.EXECUTED_FILE
    try:
        nbytes = path.stat().st_size
        if nbytes <= EXECUTED_BYTES_MAX:
            return path.read_bytes()
    except FileNotFoundError:
        return None
    log.warning("%s is not kept: it has %s", path, format_bytes(nbytes))
    return None


def read_session_file(directory: Path) -> str | None:
    """Read the id of the session that the kernel had opened last, if it wrote that."""
    try:
        note = msgspec.json.decode((directory / files.SESSION_FILE).read_bytes(), type=_SessionNote)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        log.warning("a notebook's note of its session cannot be read: %s", error)
        return None
    return note.session


class _SessionNote(msgspec.Struct, frozen=True):
    session: str


async def wait_for_exit(directory: Path) -> None:
    """Wait for the runner of a dead server, which leaves by itself; one that does not is killed."""
    try:
        lock = (directory / files.LOCK_FILE).open("r+")
    except FileNotFoundError:
        return
    with lock:
        deadline_s = asyncio.get_running_loop().time() + LEFT_GRACE_S
        while not try_lock(lock):
            if asyncio.get_running_loop().time() > deadline_s:
                deadline_s += LEFT_GRACE_S
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int(lock.read()), signal.SIGKILL)
            await asyncio.sleep(0.05)


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
