"""The memory of a device's host tier: one file of fixed size in shared memory, mapped once.

It is a file so that what it holds outlives this process: another worker reads the pieces at the paths and
offsets of a manifest. The pool deletes the files of dead workers.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from pathlib import Path

import torch

from djinn_lab.errors import PoolError
from djinn_lab.protocol.host_limit import largest_host_bytes
from djinn_lab.units import format_bytes

PINNED_SLAB_BYTES = 2**30
"""Pinning takes the memory, and a third of a second for so much."""

log = logging.getLogger(__name__)


class HostArena:
    """``capacity_bytes`` of host memory, sparse until written. ``pin``: what is taken is registered with
    CUDA, a slab at a time, so that copies run at the link's rate and beside the device's work. ``fits``:
    whether that much was found to be free, and is shared with arenas of other processes now. Not safe for
    threads."""

    def __init__(
        self,
        capacity_bytes: int,
        directory: Path | None,
        device: str,
        pin: bool = False,
        fits: bool = False,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self._pin = pin
        self._pinned = 0
        """So many slabs, from the first one."""
        self.path: Path | None = None
        self._extents = Extents(capacity_bytes, PINNED_SLAB_BYTES if pin else 0)
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if not capacity_bytes:
            return
        largest = largest_host_bytes()
        if capacity_bytes > largest and not fits:
            raise PoolError(
                f"A host tier of {format_bytes(capacity_bytes)} was asked for {device}, and "
                f"{format_bytes(largest)} of memory are available for it.",
                "Ask for less host memory, or stop what else uses the machine's memory.",
            )
        if directory is None:
            raise PoolError("A host tier needs a directory.", "Pass --host-directory, too.")
        if not fits:
            _check_capacity(capacity_bytes, directory)
        self.path = directory / f"host-{device.replace(':', '-')}-{os.getpid()}.arena"
        self._bytes = torch.from_file(str(self.path), shared=True, size=capacity_bytes, dtype=torch.uint8)

    @property
    def used_bytes(self) -> int:
        return self._extents.used_bytes

    def take(self, nbytes: int) -> int | None:
        """The offset of ``nbytes`` that are the caller's now, None when the arena is full."""
        offset = self._extents.take(nbytes)
        while offset is not None and self._pin and offset + nbytes > self._pinned * PINNED_SLAB_BYTES:
            begin = self._pinned * PINNED_SLAB_BYTES
            size = min(PINNED_SLAB_BYTES, self.capacity_bytes - begin)
            self._pin = _register(self._bytes.narrow(0, begin, size))
            self._pinned += 1
        return offset

    def give_back(self, offset: int, nbytes: int) -> None:
        self._extents.give_back(offset, nbytes)

    def view(self, offset: int, nbytes: int) -> torch.Tensor:
        """These bytes themselves, as uint8."""
        return self._bytes.narrow(0, offset, nbytes)


def _check_capacity(nbytes: int, directory: Path) -> None:
    """Raise PoolError unless the directory's file system has ``nbytes`` free: writing to a page of the arena
    that the file system cannot give would kill the process."""
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    if nbytes > free:
        raise PoolError(
            f"A host tier of {format_bytes(nbytes)} does not fit {directory}, where {format_bytes(free)} are "
            "free.",
            "Ask for less host memory, or make that file system larger (docker run --shm-size).",
        )


def _register(slab: torch.Tensor) -> bool:
    """Register memory with CUDA; False, and an error in the log, when it is refused."""
    result = torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), slab.nbytes, 0)
    if int(result) == 0:
        return True
    log.error(
        "cudaHostRegister refused %s of the host tier (%s): copies to and from there will be slow. Raise the "
        "limit of locked memory (ulimit -l) or make the host tier smaller.",
        format_bytes(slab.nbytes),
        result,
    )
    return False


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

    def give_back(self, offset: int, nbytes: int) -> None:
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
        elif joins_next:
            self._starts[place] = offset
            self._sizes[place] += size
        else:
            self._starts.insert(place, offset)
            self._sizes.insert(place, size)

    @property
    def free_ranges(self) -> list[tuple[int, int]]:
        """Offset and bytes of each, in order."""
        return list(zip(self._starts, self._sizes, strict=True))


def rounded(nbytes: int) -> int:
    """Return the bytes that ``nbytes`` take in an arena."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
