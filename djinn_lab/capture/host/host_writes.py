"""What ops of a cell wrote on the host, and what was there before.

Some ops run on plain tensors at once, while the cell is recorded: those on numbers (``optimizer`` counts its
steps so). Where the pool then does not compute what the cell recorded around them, these tensors are to be
what they were."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch

from djinn_lab.capture.sending.segment import Place, Segment

NBYTES_MAX = 2**20
"""Of a tensor's memory. Numbers stay on the host, and larger tensors where numpy or a process sees them."""
NUMBER_BYTES_MAX = 64
"""Of memory, each of whose writes is kept, and not the first alone."""


class _Write(NamedTuple):
    """Of the memory ``storage``, at a place of the recording. ``before``: its bytes then."""

    storage: torch.UntypedStorage
    before: bytes
    place: Place

    @property
    def key(self) -> int:
        return self.storage.data_ptr()


class HostWrites:
    """Of the cell that is recorded, as a follower of its parts."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._kept: list[_Write] = []
        self._known: set[int] = set()
        self._left: dict[int, bytes] | None = None
        """What the memory held when the cell's code had ended."""

    def begin(self) -> None:
        """Begin a cell: forget the one before."""
        self._kept.clear()
        self._known.clear()
        self._left = None

    def remember(self, tensor: torch.Tensor) -> None:
        """An op is about to write it."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        if storage.device.type != "cpu":  # a fake tensor's is not, whatever the tensor says
            return
        key, nbytes = storage.data_ptr(), storage.nbytes()
        if 0 < nbytes <= NBYTES_MAX and (nbytes <= NUMBER_BYTES_MAX or key not in self._known):
            self._segment.settle_launched()  # or it would be taken for a write of the cell before
            self._known.add(key)
            self._kept.append(_Write(storage, _bytes_of(storage), self._segment.place))

    def leave(self) -> None:
        """The cell's code has ended: what others write from now on stays."""
        self._left = {one.key: _bytes_of(one.storage) for one in self._kept}

    def sent(self) -> None:
        pass

    def computed(self, part: int) -> None:
        self._kept = [one for one in self._kept if one.place[0] > part]

    def failed(self, place: Place) -> None:
        """Put back what was written behind a place."""
        self._take_back([one for one in self._kept if one.place > place])

    def take_back(self) -> None:
        """Put back all: nothing of the cell has run."""
        self._take_back(self._kept)

    def _take_back(self, writes: list[_Write]) -> None:
        taken = {id(one) for one in writes}
        for one in reversed(writes):
            if self._left is None or self._left.get(one.key) == _bytes_of(one.storage):
                ctypes.memmove(one.key, one.before, len(one.before))
                if self._left is not None:
                    self._left[one.key] = one.before
        self._kept = [one for one in self._kept if id(one) not in taken]


def _bytes_of(storage: torch.UntypedStorage) -> bytes:
    return ctypes.string_at(storage.data_ptr(), storage.nbytes())
