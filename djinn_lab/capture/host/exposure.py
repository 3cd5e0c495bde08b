"""Host memory that a lazy tensor shares with others: numpy arrays, plain tensors, other processes.

``.numpy()`` of a lazy tensor is a window on the host's copy of its storage, and ``lazy.data = plain`` makes
it share ``plain``'s memory, as both do for any other tensor. Others read and write there unseen,
so while they hold that memory

- the host's copy stays current: ops that write it run here;
- the pool's copy is compared, by digest, before each use, and sent again when the memory was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import blake3
import torch

from djinn_lab.capture.host.memory_bytes import bytes_of_storage
from djinn_lab.capture.values import Exposure


class SharedStorage(Protocol):
    """A storage of either recorder. ``host``: its bytes in this process, ``exposure`` of them, or None."""

    host: Any
    exposure: Any

    def written_on_host(self) -> None: ...


Storage = TypeVar("Storage", bound=SharedStorage)


class Exposures(Generic[Storage]):
    """Exposures of the storages of one recorder. ``refer``: to one of them, without keeping it alive.
    ``is_held``: do others still have its host memory?"""

    def __init__(
        self, refer: Callable[[Storage], Callable[[], Storage | None]], is_held: Callable[[Storage], bool]
    ) -> None:
        self._refer = refer
        self._is_held = is_held
        self._exposed: list[Callable[[], Storage | None]] = []

    @property
    def present(self) -> bool:
        """Return whether any storage's memory is shared, or was lately."""
        return bool(self._exposed)

    def expose(self, storage: Storage, for_good: bool = False) -> None:
        """Note that others hold this storage's host memory from now on; the memory is current."""
        if storage.exposure is None:
            storage.exposure = Exposure(digest_of(storage.host))
            self._exposed.append(self._refer(storage))
        storage.exposure.for_good |= for_good

    def refresh(self, storage: Storage) -> None:
        """Notice what others wrote since the last look, and whether they are gone."""
        exposure = storage.exposure
        if exposure is None:
            return
        digest = digest_of(storage.host)
        if digest != exposure.digest:
            exposure.digest = digest
            storage.written_on_host()
        if not exposure.for_good and not self._is_held(storage):
            storage.exposure = None

    def look_again(self) -> None:
        """Refresh all exposures, once per cell, and keep those that are still shared."""
        known = [storage for reference in self._exposed if (storage := reference()) is not None]
        for storage in known:
            if storage.exposure is not None:
                storage.exposure.pinned = None
            self.refresh(storage)
        self._exposed = [self._refer(storage) for storage in known if storage.exposure is not None]

    def covers(self, tensor: torch.Tensor) -> bool:
        """Return whether a lazy tensor shares this plain tensor's memory."""
        if not self._exposed:
            return False
        address = tensor.untyped_storage().data_ptr()
        known = (storage for reference in self._exposed if (storage := reference()) is not None)
        return any(storage.host is not None and storage.host.data_ptr() == address for storage in known)


def is_seen_by_others(tensor: torch.Tensor) -> bool:
    """Return whether others can see this plain tensor's memory, or once could: an array, which torch tells by
    never resizing such memory, or another process."""
    memory = tensor.untyped_storage()
    return not memory.resizable() or memory.is_shared()


def digest_of(memory: torch.UntypedStorage) -> bytes:
    """Return the digest by which two states of exposed memory are compared."""
    return blake3.blake3(bytes_of_storage(memory)).digest()
