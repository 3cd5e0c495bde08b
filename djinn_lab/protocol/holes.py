"""Returns parts of a file to its file system, as the arenas of parked state need it on both sides."""

from __future__ import annotations

import ctypes
import os

PAGE_BYTES = 4096
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of linux/falloc.h
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


def punch(descriptor: int, begin: int, end: int) -> None:
    """Return the whole pages between two offsets; what lies in them reads as zeros. Raises OSError."""
    first, last = -(-begin // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
    if last > first and _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, first, last - first):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
