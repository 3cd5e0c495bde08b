"""How much host memory the workers of one device use together, counted in a file that all of them map.

A device has a worker for each trust group, and each parks state in an arena of its own. What one drops,
another may take at once, so they count together: each writes a row of its own, and reads the sum. A row has
three numbers: bytes taken, and of these the bytes that no session holds, and those of whole copies alone.
A worker announces what it takes before it looks at the sum, so two never both get the last bytes. The pool
clears the row of a worker that ends, and counts its files in the last one.
"""

from __future__ import annotations

import mmap
import os
import threading

import numpy as np
import numpy.typing as npt

from djinn_lab.protocol.host_rows import FILE_BYTES, ROWS_MAX, row


class HostAccount:
    """``capacity_bytes``: of all workers of the device. ``descriptor``: of the file, which may be closed
    afterwards; None: this process counts alone. Not safe for threads."""

    def __init__(self, capacity_bytes: int, descriptor: int | None = None, number: int = 0) -> None:
        if not 0 <= number < ROWS_MAX:
            raise ValueError(f"row {number} is none of {ROWS_MAX}")
        self.capacity_bytes = capacity_bytes
        mapped = mmap.mmap(-1 if descriptor is None else descriptor, FILE_BYTES)
        self._counts: npt.NDArray[np.int64] = np.frombuffer(mapped, np.int64)
        self._place = row(number)
        self._fence = threading.Lock()

    @classmethod
    def open(cls, path: str | None, number: int, capacity_bytes: int) -> HostAccount:
        """Map the device's file."""
        if path is None:
            return cls(capacity_bytes)
        descriptor = os.open(path, os.O_RDWR)
        try:
            return cls(capacity_bytes, descriptor, number)
        finally:
            os.close(descriptor)

    @property
    def used_bytes(self) -> int:
        """Return what all workers of the device use, dead ones too."""
        return int(self._counts[::3].sum())

    def take(self, nbytes: int) -> bool:
        """Count so many bytes more, if all workers together have them."""
        self._counts[self._place] += nbytes
        with self._fence:  # the row is written before the others are read
            pass
        if self.used_bytes <= self.capacity_bytes:
            return True
        self._counts[self._place] -= nbytes
        return False

    def give_back(self, nbytes: int) -> None:
        self._counts[self._place] -= nbytes

    def note_kept(self, idle_bytes: int, of_copies_bytes: int) -> None:
        """Say how much of this worker's bytes others may have if they need it."""
        self._counts[self._place + 1] = idle_bytes
        self._counts[self._place + 2] = of_copies_bytes

    def kept_by_others(self, of_copies: bool) -> int:
        """Return the bytes of other workers that no session holds, and where wanted those of whole copies."""
        kept = int(self._counts[1::3].sum()) - int(self._counts[self._place + 1])
        if of_copies:
            kept += int(self._counts[2::3].sum()) - int(self._counts[self._place + 2])
        return kept
