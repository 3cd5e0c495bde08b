"""The pool's side of the file in which the workers of a device count host memory together
(:mod:`djinn_lab.protocol.host_rows`): who has which row, and what dead workers left. Of that, copies of
sessions that are on a device again give way to new ones (:meth:`.premises.Premises.give_way`)."""

from __future__ import annotations

import mmap
import os
from array import array
from pathlib import Path

from djinn_lab.errors import PoolError
from djinn_lab.protocol.host_rows import DEAD_ROW, FILE_BYTES, row
from djinn_lab.system.files import allocate


class HostRows:
    """``directory``: where the file is made."""

    def __init__(self, directory: Path, device: str) -> None:
        self._device = device
        self.path = directory / f"host-rows-{device.replace(':', '-')}"
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            allocate(descriptor, 0, FILE_BYTES)
            self._counts = memoryview(mmap.mmap(descriptor, FILE_BYTES)).cast("q")
        finally:
            os.close(descriptor)
        self._given: set[int] = set()

    def give(self) -> int:
        """Return a row for a new worker. Raises PoolError when all are in use."""
        free = next((number for number in range(DEAD_ROW) if number not in self._given), None)
        if free is None:
            raise PoolError(
                f"{self._device} has {DEAD_ROW} workers, one for each trust group, which is the most.",
                "Close sessions, or start the pool with --isolation user or account.",
            )
        self._given.add(free)
        return free

    def ended(self, number: int) -> None:
        """Free the row of a worker that has ended."""
        self._given.discard(number)
        place = row(number)
        self._counts[place : place + 3] = memoryview(bytes(24)).cast("q")

    def count_dead(self, taken_bytes: int, of_copies_bytes: int) -> None:
        """Count what files of dead workers take; ``of_copies_bytes``: of it, what may give way."""
        place = row(DEAD_ROW)
        self._counts[place : place + 3] = memoryview(array("q", (taken_bytes, 0, of_copies_bytes)))
