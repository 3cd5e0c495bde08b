"""The memory of a worker's host tier: one file in shared memory, mapped once, of which only what is in use is
there.

It is a file so that what it holds outlives this process: another worker reads the pieces at the paths and
offsets of a manifest. The pool deletes the files of dead workers. Space is allocated before it is written,
since a write to a page that the file system cannot give would kill the process, and returned when it is given
back.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from pathlib import Path

import torch

from djinn_lab.errors import PoolError
from djinn_lab.protocol.holes import PAGE_BYTES, punch
from djinn_lab.protocol.host_rows import arena_prefix
from djinn_lab.units import format_bytes
from djinn_lab.worker.host_account import HostAccount

PINNED_SLAB_BYTES = 2**30
"""Pinning takes the memory, and a third of a second for so much."""

log = logging.getLogger(__name__)


class HostArena:
    """Up to ``capacity_bytes`` of host memory. ``pin``: what is taken is registered with CUDA, a slab at a
    time, so that copies run at the link's rate and beside the device's work. ``account``: of all workers of
    the device. ``refusal``: why nothing was given last, where the file system had no space. Not safe for
    threads."""

    def __init__(
        self,
        capacity_bytes: int,
        directory: Path | None,
        device: str,
        pin: bool = False,
        account: HostAccount | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.account = account or HostAccount(capacity_bytes)
        self.refusal = ""
        self._pin = pin
        self._slabs: dict[int, int] = {}
        """Of pinned slabs, bytes in use, by number."""
        self.path: Path | None = None
        self._extents = Extents(capacity_bytes, PINNED_SLAB_BYTES if pin else 0)
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if not capacity_bytes:
            return
        if directory is None:
            raise PoolError("A host tier needs a directory.", "Pass --host-directory, too.")
        self.path = directory / f"{arena_prefix(device)}{os.getpid()}.arena"
        self._bytes = torch.from_file(str(self.path), shared=True, size=capacity_bytes, dtype=torch.uint8)
        self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    @property
    def used_bytes(self) -> int:
        return self._extents.used_bytes

    def take(self, nbytes: int) -> int | None:
        """The offset of ``nbytes`` that are the caller's now, None when there is no space: in the arena, in
        what the device's workers have together, or in the file system (``refusal``)."""
        self.refusal = ""
        offset = self._extents.take(nbytes)
        if offset is None:
            return None
        if not self._allocated(offset, rounded(nbytes)):
            self._extents.give_back(offset, nbytes)
            return None
        return offset

    def give_back(self, offset: int, nbytes: int) -> None:
        begin, end = self._extents.give_back(offset, nbytes)
        size = rounded(nbytes)
        if self._pin:
            self._leave_slab(offset // PINNED_SLAB_BYTES, size)
            return
        self.account.give_back(size)
        first, last = offset // PAGE_BYTES * PAGE_BYTES, -(-(offset + size) // PAGE_BYTES) * PAGE_BYTES
        self._punch(
            max(first, -(-begin // PAGE_BYTES) * PAGE_BYTES), min(last, end // PAGE_BYTES * PAGE_BYTES)
        )

    def view(self, offset: int, nbytes: int) -> torch.Tensor:
        """These bytes themselves, as uint8."""
        return self._bytes.narrow(0, offset, nbytes)

    # -- parts ---------------------------------------------------------------------------------------------

    def _allocated(self, offset: int, size: int) -> bool:
        if not self._pin:
            return self._take_space(offset, size)
        number = offset // PINNED_SLAB_BYTES
        if number not in self._slabs:
            begin = number * PINNED_SLAB_BYTES
            slab = min(PINNED_SLAB_BYTES, self.capacity_bytes - begin)
            if not self._take_space(begin, slab):
                return False
            _register(self._bytes.narrow(0, begin, slab))
            self._slabs[number] = 0
        self._slabs[number] += size
        return True

    def _leave_slab(self, number: int, size: int) -> None:
        """Return a slab's memory with the last piece in it."""
        self._slabs[number] -= size
        if self._slabs[number]:
            return
        del self._slabs[number]
        begin = number * PINNED_SLAB_BYTES
        slab = self._bytes.narrow(0, begin, min(PINNED_SLAB_BYTES, self.capacity_bytes - begin))
        torch.cuda.cudart().cudaHostUnregister(slab.data_ptr())
        self.account.give_back(slab.nbytes)
        self._punch(begin, begin + slab.nbytes)

    def _take_space(self, offset: int, size: int) -> bool:
        if not self.account.take(size):
            return False
        try:
            os.posix_fallocate(self._file, offset, size)
        except OSError as error:
            self.account.give_back(size)
            self.refusal = f"shared memory gave no space ({error.strerror})"
            return False
        return True

    def _punch(self, begin: int, end: int) -> None:
        """Return whole pages to the file system."""
        try:
            punch(self._file, begin, end)
        except OSError as error:
            log.error("%s cannot be shortened: %s", self.path, error)


def _register(slab: torch.Tensor) -> None:
    """Register memory with CUDA; an error in the log, when it is refused."""
    result = torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), slab.nbytes, 0)
    if int(result):
        log.error(
            "cudaHostRegister refused %s of the host tier (%s): copies to and from there will be slow. Raise "
            "the limit of locked memory (ulimit -l) or make the host tier smaller.",
            format_bytes(slab.nbytes),
            result,
        )


ALIGNMENT_BYTES = 64


class Extents:
    """Free ranges of an arena of ``capacity_bytes``: first fit, neighbours joined, but not across the bounds
    of slabs of ``slab_bytes``, where these are not 0. Not safe for threads."""

    def __init__(self, capacity_bytes: int, slab_bytes: int = 0) -> None:
        self.used_bytes = 0
        self._slab_bytes = slab_bytes or max(1, capacity_bytes)
        self._starts = list(range(0, capacity_bytes, self._slab_bytes))
        self._sizes = [min(self._slab_bytes, capacity_bytes - start) for start in self._starts]

    def take(self, nbytes: int) -> int | None:
        """The offset of a range of ``nbytes``, None when no free range is as long."""
        size = rounded(nbytes)
        for place, free in enumerate(self._sizes):
            if free >= size:
                offset = self._starts[place]
                if free == size:
                    del self._starts[place], self._sizes[place]
                else:
                    self._starts[place] += size
                    self._sizes[place] -= size
                self.used_bytes += size
                return offset
        return None

    def give_back(self, offset: int, nbytes: int) -> tuple[int, int]:
        """Return the free range that this makes, with its neighbours."""
        size = rounded(nbytes)
        self.used_bytes -= size
        place = bisect_left(self._starts, offset)
        end = offset + size
        joins_next = place < len(self._starts) and end == self._starts[place] and end % self._slab_bytes > 0
        joins_previous = (
            place > 0
            and self._starts[place - 1] + self._sizes[place - 1] == offset
            and offset % self._slab_bytes > 0
        )
        if joins_previous:
            self._sizes[place - 1] += size
            if joins_next:
                self._sizes[place - 1] += self._sizes[place]
                del self._starts[place], self._sizes[place]
            place -= 1
        elif joins_next:
            self._starts[place] = offset
            self._sizes[place] += size
        else:
            self._starts.insert(place, offset)
            self._sizes.insert(place, size)
        return self._starts[place], self._starts[place] + self._sizes[place]

    @property
    def free_ranges(self) -> list[tuple[int, int]]:
        """Offset and bytes of each, in order."""
        return list(zip(self._starts, self._sizes, strict=True))


def rounded(nbytes: int) -> int:
    """Return the bytes that ``nbytes`` take in an arena."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
