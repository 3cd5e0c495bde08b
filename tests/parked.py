"""The files in which workers keep parked sessions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from real_pool import PoolUnderTest


def arenas(pool: PoolUnderTest) -> set[Path]:
    """Return the files in which this pool's workers keep parked state."""
    (directory,) = Path("/dev/shm").glob(f"djinn-*{pool.info.pool}*/parked")
    return {path for path in directory.rglob("*") if path.is_file()}


def flip_a_byte(paths: Iterable[Path], content: bytes) -> None:
    """Flip one bit in the middle of ``content``, in the first of the files that has it."""
    for path in paths:
        start = path.read_bytes().find(content)
        if start >= 0:
            with path.open("r+b") as file:
                file.seek(start + len(content) // 2)
                (byte,) = file.read(1)
                file.seek(start + len(content) // 2)
                file.write(bytes([byte ^ 1]))
            return
    raise AssertionError("none of the files holds these bytes")
