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
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from djinn_lab.errors import PoolError
from djinn_lab.protocol.host_rows import arena_prefix
from djinn_lab.system.files import PAGE_BYTES, allocate, punch
from djinn_lab.units import format_bytes
from djinn_lab.worker.accelerator.device import register_memory, unregister_memory
from djinn_lab.worker.host_account import HostAccount

SLAB_BYTES_MIN, SLAB_BYTES_MAX = 2**24, 2**26
"""Pinning takes the memory, and a third of a second for a GiB."""
SLABS = 64
"""Of all workers of a device together, as far as their sizes allow it: what one has pinned no other has."""

log = logging.getLogger(__name__)


class HostArena:
    """Up to ``capacity_bytes`` of host memory. ``registered_with``: an accelerator that is let read and write
    what is taken by itself (pinned), a slab at a time, so that copies run at the link's rate and beside its
    work. A slab stays pinned when the last piece in it is given back, for the next one.
    ``account``: of all workers of the device. ``refusal``: why nothing was given last, where the file system
    had no space. Not safe for threads, but for :meth:`pin` and :meth:`unpin`, which take long."""

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
        self._moving: set[int] = set()
        """Slabs that are pinned or unpinned now."""
        self._kept = (0, 0)
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
        if self._accelerator is None:
            return 0
        return self.bytes_of((*self._slabs, *self._moving)) - self.used_bytes

    @property
    def is_moving(self) -> bool:
        """Return whether there will be more space without anything given back: slabs are pinned or unpinned
        now."""
        return bool(self._moving)

    def note_kept(self, idle_bytes: int, of_copies_bytes: int) -> None:
        """Say how much of what is used other workers may have if they need it. They may have slabs in which
        nothing is, too."""
        self._kept = (idle_bytes, of_copies_bytes)
        empty = sum(self._extents.slab_size(number) for number, used in self._slabs.items() if not used)
        self.account.note_kept(idle_bytes + empty, of_copies_bytes)

    def take(self, nbytes: int) -> int | None:
        """The offset of ``nbytes`` that are the caller's now, None when there is no space: in the arena, in
        what the device's workers have together, or in the file system (``refusal``)."""
        self.refusal = ""
        offset = self._extents.take(nbytes, self._is_pinned) if self._slabs else None
        if offset is None:
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
            number = offset // self._slab_bytes
            self._slabs[number] -= size
            if not self._slabs[number]:
                self.note_kept(*self._kept)
            return
        self.account.give_back(size)
        first, last = offset // PAGE_BYTES * PAGE_BYTES, -(-(offset + size) // PAGE_BYTES) * PAGE_BYTES
        self._punch(
            max(first, -(-begin // PAGE_BYTES) * PAGE_BYTES), min(last, end // PAGE_BYTES * PAGE_BYTES)
        )

    def view(self, offset: int, nbytes: int) -> torch.Tensor:
        """These bytes themselves, as uint8."""
        return self._bytes.narrow(0, offset, nbytes)

    # -- slabs, pinned and unpinned without what keeps other threads away ----------------------------------

    def begin_slab(self, nbytes: int) -> int | None:
        """Take a slab to be pinned, which :meth:`take` does not give before :meth:`end_slab`; None where so
        many bytes are pinned and free, or there is none left."""
        if self._accelerator is None or self.spare_bytes >= nbytes:
            return None
        numbers = range(-(-self.capacity_bytes // self._slab_bytes))
        number = next(
            (one for one in numbers if one not in self._slabs and self._extents.take_slab(one)), None
        )
        if number is None:
            return None
        if not self.account.take(self._extents.slab_size(number)):
            self._extents.give_back_slab(number)
            return None
        self._moving.add(number)
        return number

    def pin(self, number: int) -> bool:
        """Allocate a slab that was begun and let the accelerator reach it; False where there is no space."""
        begin, nbytes = number * self._slab_bytes, self._extents.slab_size(number)
        if not self._allocate(begin, nbytes):
            return False
        self._register(number, self._bytes.narrow(0, begin, nbytes))
        return True

    def end_slab(self, number: int, pinned: bool) -> None:
        """Let :meth:`take` give a slab that was begun, in the account only where it was pinned."""
        self._moving.discard(number)
        self._extents.give_back_slab(number)
        if pinned:
            self._slabs[number] = 0
            self.note_kept(*self._kept)
        else:
            self.account.give_back(self._extents.slab_size(number))

    def take_empty(self, nbytes: int) -> list[int]:
        """Take slabs in which nothing is, of so many bytes as far as there are, to be unpinned."""
        taken: list[int] = []
        for number in [number for number, used in self._slabs.items() if not used]:
            if nbytes <= 0:
                break
            assert self._extents.take_slab(number)
            del self._slabs[number]
            self._moving.add(number)
            taken.append(number)
            nbytes -= self._extents.slab_size(number)
        return taken

    def bytes_of(self, numbers: Sequence[int]) -> int:
        return sum(map(self._extents.slab_size, numbers))

    def unpin(self, numbers: Sequence[int]) -> None:
        """Return the memory of slabs that were taken to the file system."""
        for number in numbers:
            begin, nbytes = number * self._slab_bytes, self._extents.slab_size(number)
            if number in self._unregistered:
                self._unregistered.discard(number)
            else:
                assert self._accelerator is not None
                unregister_memory(self._bytes.narrow(0, begin, nbytes), self._accelerator)
            self._punch(begin, begin + nbytes)

    def end_unpinned(self, numbers: Sequence[int]) -> None:
        """Let other workers, and :meth:`take`, have slabs that were unpinned."""
        for number in numbers:
            self._moving.discard(number)
            self._extents.give_back_slab(number)
            self.account.give_back(self._extents.slab_size(number))
        self.note_kept(*self._kept)

    # -- parts ---------------------------------------------------------------------------------------------

    def _is_pinned(self, offset: int) -> bool:
        return offset // self._slab_bytes in self._slabs

    def _allocated(self, offset: int, size: int) -> bool:
        if self._accelerator is None:
            return self._take_space(offset, size)
        number = offset // self._slab_bytes
        if number not in self._slabs:
            slab = self._extents.slab_size(number)
            if not self.account.take(slab):
                return False
            if not self.pin(number):
                self.account.give_back(slab)
                return False
            self._slabs[number] = 0
        was_empty = not self._slabs[number]
        self._slabs[number] += size
        if was_empty:
            self.note_kept(*self._kept)
        return True

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

    def _take_space(self, offset: int, size: int) -> bool:
        if not self.account.take(size):
            return False
        if not self._allocate(offset, size):
            self.account.give_back(size)
            return False
        return True

    def _allocate(self, offset: int, size: int) -> bool:
        try:
            allocate(self._file, offset, size)
        except OSError as error:
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
        self._end = capacity_bytes
        self._slab_bytes = slab_bytes or max(1, capacity_bytes)
        self._starts = list(range(0, capacity_bytes, self._slab_bytes))
        self._sizes = [min(self._slab_bytes, capacity_bytes - start) for start in self._starts]

    def take(self, nbytes: int, suits: Callable[[int], bool] = lambda start: True) -> int | None:
        """The offset of a range of ``nbytes``, None when no free range whose start suits is as long."""
        size = rounded(nbytes)
        for place, free in enumerate(self._sizes):
            if free >= size and suits(self._starts[place]):
                offset = self._starts[place]
                if free == size:
                    del self._starts[place], self._sizes[place]
                else:
                    self._starts[place] += size
                    self._sizes[place] -= size
                self.used_bytes += size
                return offset
        return None

    def take_slab(self, number: int) -> bool:
        """Take a whole slab, if all of it is free."""
        start, size = number * self._slab_bytes, self.slab_size(number)
        place = bisect_left(self._starts, start)
        if place == len(self._starts) or (self._starts[place], self._sizes[place]) != (start, size):
            return False
        del self._starts[place], self._sizes[place]
        return True

    def give_back_slab(self, number: int) -> None:
        """Undo :meth:`take_slab`."""
        place = bisect_left(self._starts, number * self._slab_bytes)
        self._starts.insert(place, number * self._slab_bytes)
        self._sizes.insert(place, self.slab_size(number))

    def slab_size(self, number: int) -> int:
        """The last slab may be smaller."""
        return min(self._slab_bytes, self._end - number * self._slab_bytes)

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
