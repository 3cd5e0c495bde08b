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

PINNED_SLAB_BYTES = 8 * 2**30

log = logging.getLogger(__name__)


class HostArena:
    """``capacity_bytes`` of host memory, sparse until written. ``pinned``: registered with CUDA, so that
    copies run at the link's rate and beside the device's work. ``fits``: whether that much was found to be
    free, and is shared with arenas of other processes now. Not safe for threads."""

    def __init__(
        self,
        capacity_bytes: int,
        directory: Path | None,
        device: str,
        pin: bool = False,
        fits: bool = False,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.pinned = False
        self.path: Path | None = None
        self._extents = Extents(capacity_bytes)
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
        if pin:
            self.pinned = _pin(self._bytes)

    @property
    def used_bytes(self) -> int:
        return self._extents.used_bytes

    def take(self, nbytes: int) -> int | None:
        """The offset of ``nbytes`` that are the caller's now, None when the arena is full."""
        return self._extents.take(nbytes)

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


def _pin(memory: torch.Tensor) -> bool:
    """Register all of ``memory`` with CUDA; False, and an error in the log, when a slab is refused."""
    runtime = torch.cuda.cudart()
    for offset in range(0, memory.nbytes, PINNED_SLAB_BYTES):
        size = min(PINNED_SLAB_BYTES, memory.nbytes - offset)
        result = runtime.cudaHostRegister(memory.data_ptr() + offset, size, 0)
        if int(result) != 0:
            log.error(
                "cudaHostRegister refused %s of the host tier at %s (%s): copies to and from it will be "
                "slow. Raise the limit of locked memory (ulimit -l) or make the host tier smaller.",
                format_bytes(size),
                format_bytes(offset),
                result,
            )
            return False
    return True


ALIGNMENT_BYTES = 64


class Extents:
    """Free ranges of an arena of ``capacity_bytes``: first fit, neighbours joined. Not safe for threads."""

    def __init__(self, capacity_bytes: int) -> None:
        self.used_bytes = 0
        self._starts: list[int] = [0] if capacity_bytes else []
        self._sizes: list[int] = [capacity_bytes] if capacity_bytes else []

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
        joins_next = place < len(self._starts) and offset + size == self._starts[place]
        joins_previous = place > 0 and self._starts[place - 1] + self._sizes[place - 1] == offset
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
