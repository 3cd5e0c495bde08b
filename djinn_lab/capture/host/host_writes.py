"""What ops of a cell wrote on the host, and what was there before.

Some ops run on plain tensors at once, while the cell is recorded: those on numbers (``optimizer`` counts its
steps so). Where the pool then runs nothing of the cell, these tensors are to be what they were."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch

NBYTES_MAX = 2**20
"""Of a tensor's memory. Numbers stay on the host, and larger tensors where numpy or a process sees them."""


class HostWrite(NamedTuple):
    """``before`` and ``after`` the cell."""

    storage: torch.UntypedStorage
    before: bytes
    after: bytes

    def take_back(self) -> None:
        """Put the bytes back, unless something else was written since."""
        if len(self.before) == len(self.after) and _bytes_of(self.storage) == self.after:
            ctypes.memmove(self.storage.data_ptr(), self.before, len(self.before))


class HostWrites:
    """Of the cell that is recorded."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.UntypedStorage, bytes]] = {}

    def begin(self) -> None:
        self._before.clear()

    def remember(self, tensor: torch.Tensor) -> None:
        """An op is about to write it."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        if storage.device.type != "cpu":  # a fake tensor's is not, whatever the tensor says
            return
        key = storage.data_ptr()
        if key not in self._before and 0 < storage.nbytes() <= NBYTES_MAX:
            self._before[key] = storage, _bytes_of(storage)

    def collect(self) -> Sequence[HostWrite]:
        """The cell has ended; return what it wrote."""
        found = [HostWrite(storage, was, _bytes_of(storage)) for storage, was in self._before.values()]
        self._before.clear()
        return [one for one in found if one.before != one.after]


def _bytes_of(storage: torch.UntypedStorage) -> bytes:
    return ctypes.string_at(storage.data_ptr(), storage.nbytes())
