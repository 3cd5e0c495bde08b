"""Landlock: which files are in reach of this process, and of the threads that it starts from here on."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Mapping
from enum import IntFlag
from pathlib import Path

from djinn_lab.worker.sandbox import kernel

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG = 1
PATH_BENEATH = 1
NETWORK_FROM, SCOPES_FROM = 4, 6
TCP = 0b11
SIGNALS_AND_ABSTRACT_SOCKETS = 0b11
BITS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
BITS = 16


class Access(IntFlag):
    """What may be done beneath a directory, or to a file."""

    EXECUTE = 1 << 0
    WRITE = 1 << 1
    READ = 1 << 2
    LIST = 1 << 3
    REMOVE = 1 << 5
    MAKE = 1 << 8
    TRUNCATE = 1 << 14
    OF_FILES = EXECUTE | WRITE | READ | TRUNCATE


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


def version() -> int:
    """Return the version of the kernel's interface, 0 for none."""
    if sys.platform != "linux":
        return 0
    try:
        return kernel.syscall(CREATE_RULESET, None, 0, VERSION_FLAG)
    except OSError:
        return 0


def restrict(reach: Mapping[Path, Access]) -> None:
    """Leave these files and directories in reach, in these ways, and no others; no TCP, and no signals to
    other processes. What does not exist is left out. Raises OSError where the kernel has no Landlock."""
    known = version()
    handled = (1 << BITS_BY_VERSION.get(known, BITS)) - 1
    ruleset = _Ruleset(
        handled,
        TCP if known >= NETWORK_FROM else 0,
        SIGNALS_AND_ABSTRACT_SOCKETS if known >= SCOPES_FROM else 0,
    )
    size = 8 if known < NETWORK_FROM else 16 if known < SCOPES_FROM else 24
    descriptor = kernel.syscall(CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    try:
        for path, access in reach.items():
            _allow(descriptor, path, access & handled)
        kernel.syscall(RESTRICT_SELF, descriptor, 0)
    finally:
        os.close(descriptor)


def _allow(ruleset: int, path: Path, access: int) -> None:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        allowed = access if path.is_dir() else access & Access.OF_FILES
        rule = _Beneath(allowed, descriptor)
        kernel.syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)
