"""The command with which this user started a pool with options on this machine, until `pool stop`.

It lies in the data directory, which outlives the machine's restarts as the runtime directory does not, in one
file for each host, since hosts may share a home directory."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from pathlib import Path

from djinn_lab.protocol.runtime_file import data_directory, replace_file, unwritable

START = ("djinn-lab", "pool", "start")


def remember_start(options: Sequence[str]) -> None:
    """Note the options of a pool that a user started; without any there is nothing to note. Raises
    CannotStartNow where that cannot be written."""
    path = _path()
    if not options:
        forget_start()
        return
    try:
        replace_file(path, f"{shlex.join((*START, *options))}\n".encode())
    except OSError as error:
        raise unwritable(path, error) from None


def remembered_start() -> str:
    """Return the command that starts the pool of this machine's user as it was configured; empty for none."""
    try:
        return _path().read_text().strip()
    except FileNotFoundError:
        return ""


def forget_start() -> bool:
    """Give the pool's configuration up, and return whether there was one."""
    found = _path().exists()
    _path().unlink(missing_ok=True)
    return found


def start_command() -> str:
    """Return the command that starts a pool here: as it was configured, where one was."""
    return remembered_start() or shlex.join(START)


def _path() -> Path:
    return data_directory() / f"started-on-{socket.gethostname()}"
