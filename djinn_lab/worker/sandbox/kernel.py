"""Calls of the kernel that Python has no functions for."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION = 0x20080522


def prctl(option: int, *arguments: int) -> int:
    """Raises OSError."""
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    return _checked(_libc.prctl(option, *padded))


def syscall(number: int, *arguments: object) -> int:
    """Raises OSError."""
    passed = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *passed))


def drop_capabilities() -> None:
    """Give up what root can do, for good. Raises OSError."""
    number = CAPSET.get(os.uname().machine)
    if number is None:
        return
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    syscall(number, ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
