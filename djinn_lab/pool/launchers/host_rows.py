"""The pool's side of the file in which the workers of a device count host memory together
(:mod:`djinn_lab.protocol.host_rows`): who has which row, and what the files of dead workers take."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from djinn_lab.errors import PoolError
from djinn_lab.protocol.host_rows import FILE_BYTES, ROWS_MAX, row

BLOCK_BYTES = 512
"""What ``st_blocks`` counts, on every file system."""


class HostRows:
    """``directory``: where the file is made. Row 0 is the pool's."""

    def __init__(self, directory: Path, device: str) -> None:
        self._device = device
        self.path = directory / f"host-rows-{device.replace(':', '-')}"
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            self._counts = memoryview(mmap.mmap(descriptor, FILE_BYTES)).cast("q")
        finally:
            os.close(descriptor)
        self._given: set[int] = set()

    def give(self) -> int:
        """Return a row for a new worker. Raises PoolError when all are in use."""
        free = next((number for number in range(1, ROWS_MAX) if number not in self._given), None)
        if free is None:
            raise PoolError(
                f"{self._device} has {ROWS_MAX - 1} workers, one for each trust group, which is the most.",
                "Close sessions, or start the pool with --isolation user or account.",
            )
        self._given.add(free)
        return free

    def ended(self, number: int) -> None:
        """Free the row of a worker that has ended. Its files are counted by :meth:`count_dead`."""
        self._given.discard(number)
        place = row(number)
        self._counts[place : place + 3] = memoryview(bytes(24)).cast("q")

    def count_dead(self, files: Iterable[Path]) -> None:
        """Count what the files that dead workers of this device left take of the file system."""
        self._counts[0] = sum(_allocated_bytes(path) for path in files if self._is_of_device(path))

    def _is_of_device(self, path: Path) -> bool:
        return path.name.startswith(f"host-{self._device.replace(':', '-')}-")


def _allocated_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * BLOCK_BYTES
    except FileNotFoundError:
        return 0
