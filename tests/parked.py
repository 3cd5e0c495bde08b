"""The files in which workers keep parked sessions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from real_pool import PoolUnderTest


def arenas(pool: PoolUnderTest) -> set[Path]:
    """Of this pool's workers."""
    (directory,) = Path("/dev/shm").glob(f"djinn-*{pool.info.pool}*/parked")
    return set(directory.iterdir())


def flip_a_byte(paths: Iterable[Path], content: bytes) -> None:
    """In the middle of these bytes, in the file that has them."""
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
