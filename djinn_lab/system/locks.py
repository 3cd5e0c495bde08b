"""Locks between processes, on open files. A lock ends with its process or with its file."""

from __future__ import annotations

import sys
from typing import IO, Any

if sys.platform == "win32":
    import os
    import time

    _POLL_S = 0.05

    _PLACE = 2**30
    """Windows keeps others from reading what is locked, so a byte far behind the content is."""

    def try_lock(file: IO[Any]) -> bool:
        """Lock an open file for this process, and return whether no other process has it."""
        import msvcrt

        before = os.lseek(file.fileno(), 0, os.SEEK_CUR)
        os.lseek(file.fileno(), _PLACE, os.SEEK_SET)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(file.fileno(), before, os.SEEK_SET)
        return True

    def lock(file: IO[Any]) -> None:
        """Wait until this process has the lock of an open file."""
        while not try_lock(file):
            time.sleep(_POLL_S)

    def is_locked(file: IO[Any]) -> bool:
        """Return whether another process has the lock of an open file; the file is closed next."""
        return not try_lock(file)

else:
    import fcntl

    def try_lock(file: IO[Any]) -> bool:
        """Lock an open file for this process, and return whether no other process has it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(file: IO[Any]) -> None:
        """Wait until this process has the lock of an open file."""
        fcntl.flock(file, fcntl.LOCK_EX)

    def is_locked(file: IO[Any]) -> bool:
        """Return whether another process has the lock of an open file; the file is closed next."""
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # others may ask at the same time
        except BlockingIOError:
            return True
        return False
