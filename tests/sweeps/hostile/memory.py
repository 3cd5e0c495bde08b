"""What lies in memory that torch has not written, and what happens to ops that go beyond theirs."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("guard.c")
FILLINGS = (0x55, 0xAA)
_GUARD = "DJINN_HOSTILE_GUARD"
_M_PERTURB = -6
_LIBC = ctypes.CDLL(None)


def restart_guarded() -> None:
    """Run this program again with guarded memory, where there is a C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None or _GUARD in os.environ:
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "guard.so"
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        environment = os.environ | {"LD_PRELOAD": str(library), _GUARD: str(library)}
        sys.exit(
            subprocess.run([sys.executable, *sys.orig_argv[1:]], env=environment, check=False).returncode
        )


def is_guarded() -> bool:
    return _GUARD in os.environ


def start() -> None:
    """In a process that makes hostile calls, before the first."""
    if is_guarded():
        assert _LIBC.guard_start()


@contextmanager
def filled(byte: int) -> Iterator[None]:
    """New memory of tensors holds ``byte``, as does what the C library gives out."""
    fill = ctypes.c_ubyte.in_dll(_LIBC, "guard_fill") if is_guarded() else ctypes.c_ubyte()
    fill.value = byte
    _LIBC.mallopt(_M_PERTURB, ~byte & 0xFF)
    try:
        yield
    finally:
        fill.value = 0
        _LIBC.mallopt(_M_PERTURB, 0)
