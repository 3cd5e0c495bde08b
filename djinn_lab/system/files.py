"""Who may read a file, and the space that a file takes."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

PAGE_BYTES = 4096

if sys.platform == "win32":

    def is_private(status: os.stat_result) -> bool:
        """Return whether this user alone may read or write a file. Windows keeps what lies in a user's
        profile from others, and says nothing of it in the mode."""
        return True

else:

    def is_private(status: os.stat_result) -> bool:
        """Return whether this user alone may read or write a file."""
        return not status.st_mode & 0o077 and status.st_uid == os.getuid()


if sys.platform == "linux":
    _KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of linux/falloc.h
    _fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)

    def allocate(descriptor: int, offset: int, nbytes: int) -> None:
        """Have the file system give a part of a file its space now. Raises OSError."""
        os.posix_fallocate(descriptor, offset, nbytes)

    def _punch(descriptor: int, offset: int, nbytes: int) -> None:
        if _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, nbytes):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

elif sys.platform == "darwin":
    import fcntl

    _F_PUNCHHOLE = 99  # of sys/fcntl.h
    _ZEROS = bytes(2**20)

    def allocate(descriptor: int, offset: int, nbytes: int) -> None:
        """Have the file system give a part of a file its space now, by zeros. Raises OSError."""
        for at in range(offset, offset + nbytes, len(_ZEROS)):
            os.pwrite(descriptor, _ZEROS[: offset + nbytes - at], at)

    def _punch(descriptor: int, offset: int, nbytes: int) -> None:
        fcntl.fcntl(descriptor, _F_PUNCHHOLE, struct.pack("IIqq", 0, 0, offset, nbytes))

else:

    def allocate(descriptor: int, offset: int, nbytes: int) -> None:
        """Raises OSError: no pool runs here."""
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    _punch = allocate


def punch(descriptor: int, begin: int, end: int) -> None:
    """Return the whole pages between two offsets of a file to its file system; what lies in them reads as
    zeros. Raises OSError."""
    first, last = -(-begin // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
    if last > first:
        _punch(descriptor, first, last - first)
