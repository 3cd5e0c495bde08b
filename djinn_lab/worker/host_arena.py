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
from djinn_lab.worker.accelerator.device import register_memory, unregister_memory
from djinn_lab.worker.host_account import HostAccount

SLAB_BYTES_MIN, SLAB_BYTES_MAX = 2**24, 2**26
"""Pinning takes the memory, and a third of a second for a GiB, in which running cells may wait."""
SLABS = 64
"""Of all workers of a device together, as far as their sizes allow it: what one has pinned no other has."""

log = logging.getLogger(__name__)


class HostArena:
    """Up to ``capacity_bytes`` of host memory. ``registered_with``: an accelerator that is let read and write
    what is taken by itself, a slab at a time, so that copies run at the link's rate and beside its work.
    ``account``: of all workers of the device. ``refusal``: why nothing was given last, where the file system
    had no space. Not safe for threads."""

    def __init__(
        self,
        capacity_bytes: int,
        directory: Path | None,
        device: str,
        registered_with: torch.device | None = None,
        account: HostAccount | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.account = account or HostAccount(capacity_bytes)
        self.refusal = ""
        self._accelerator = registered_with
        self._unregistered: set[int] = set()
        """Slabs that it refused."""
        self._slab_bytes = min(SLAB_BYTES_MAX, max(SLAB_BYTES_MIN, rounded(capacity_bytes // SLABS)))
        self._slabs: dict[int, int] = {}
        """Of pinned slabs, bytes in use, by number."""
        self.path: Path | None = None
        self._extents = Extents(capacity_bytes, self._slab_bytes if registered_with else 0)
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

    @property
    def spare_bytes(self) -> int:
        """Return what is this worker's in the account and in no use: the rest of slabs."""
        taken = sum(self._slab_size(number) for number in self._slabs)
        return taken - self.used_bytes if self._slabs else 0

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
        if self._accelerator is not None:
            self._leave_slab(offset // self._slab_bytes, size)
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
        if self._accelerator is None:
            return self._take_space(offset, size)
        number = offset // self._slab_bytes
        if number not in self._slabs:
            begin, slab = number * self._slab_bytes, self._slab_size(number)
            if not self._take_space(begin, slab):
                return False
            self._register(number, self._bytes.narrow(0, begin, slab))
            self._slabs[number] = 0
        self._slabs[number] += size
        return True

    def _slab_size(self, number: int) -> int:
        return min(self._slab_bytes, self.capacity_bytes - number * self._slab_bytes)

    def _register(self, number: int, slab: torch.Tensor) -> None:
        """Register a slab with the accelerator; an error in the log, when it is refused."""
        assert self._accelerator is not None
        problem = register_memory(slab, self._accelerator)
        if problem:
            self._unregistered.add(number)
            log.error(
                "%s of the host tier are not registered with the device (%s): copies to and from there will "
                "be slow. Raise the limit of locked memory (ulimit -l) or make the host tier smaller.",
                format_bytes(slab.nbytes),
                problem,
            )

    def _leave_slab(self, number: int, size: int) -> None:
        """Return a slab's memory with the last piece in it."""
        self._slabs[number] -= size
        if self._slabs[number]:
            return
        del self._slabs[number]
        begin = number * self._slab_bytes
        slab = self._bytes.narrow(0, begin, self._slab_size(number))
        if number in self._unregistered:
            self._unregistered.discard(number)
        else:
            assert self._accelerator is not None
            unregister_memory(slab, self._accelerator)
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
