"""A device's values by session, and the memory they take.

Bytes are counted per torch storage, once however many values share it, against a limit that is enforced
before an op allocates.
"""

from __future__ import annotations

import torch

from djinn_lab.errors import DeviceMemoryError
from djinn_lab.units import format_bytes


class SessionValues:
    """Tensors by id (None where torch returned an undefined one). Sessions never see each other's."""

    def __init__(self, account: MemoryAccount) -> None:
        self.tensors: dict[int, torch.Tensor | None] = {}
        self._account = account
        self._references: dict[int, int] = {}
        self._memory: dict[int, tuple[int, int]] = {}  # address and bytes when put: an op may resize since
        self.nbytes = 0

    def put(self, identifier: int, tensor: torch.Tensor | None) -> None:
        self.tensors[identifier] = tensor
        if tensor is None or tensor._is_zerotensor():  # forward-mode zeros take no memory
            return
        storage = tensor.untyped_storage()
        address, size = self._memory[identifier] = storage.data_ptr(), storage.nbytes()
        count = self._references.get(address, 0)
        self._references[address] = count + 1
        if count == 0:
            self.nbytes += size
            self._account.add(size)

    def drop(self, identifier: int) -> None:
        tensor = self.tensors.pop(identifier, None)
        if tensor is None or tensor._is_zerotensor():
            return
        address, size = self._memory.pop(identifier)
        count = self._references[address] - 1
        if count:
            self._references[address] = count
            return
        del self._references[address]
        self.nbytes -= size
        self._account.add(-size)

    def clear(self) -> None:
        for identifier in list(self.tensors):
            self.drop(identifier)


class MemoryAccount:
    """Live bytes on the device, with an enforced limit and a high-water mark."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.peak_bytes = 0

    def add(self, nbytes: int) -> None:
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def require(self, nbytes: int, what: str) -> None:
        """Raise DeviceMemoryError when ``nbytes`` more would not fit."""
        if self.used_bytes + nbytes > self.limit_bytes:
            raise DeviceMemoryError(
                f"{what} needs {format_bytes(nbytes)}, and {format_bytes(self.used_bytes)} of the device's "
                f"{format_bytes(self.limit_bytes)} are in use.",
                "Use a smaller batch, delete tensors you no longer need (del x), or ask for a device "
                "with more memory.",
            )
