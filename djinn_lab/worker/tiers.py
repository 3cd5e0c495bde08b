"""What all sessions of a device have in common: fences, the pieces on host and disk, shared weights."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from djinn_lab.worker.host_account import HostAccount
from djinn_lab.worker.host_arena import HostArena
from djinn_lab.worker.pieces import PieceStore
from djinn_lab.worker.shared_weights import SharedWeights
from djinn_lab.worker.storages import Storage


class Fences:
    """Keep ops and copies apart that use the bytes of one storage.

    Read after write: a copy begins to read no storage that an op is writing. Write after read: an op that
    writes a storage, and an op that frees it, waits until the copy has done with the piece it is reading.
    Both sides announce themselves before they look, so an op on a storage that no copy has ever seen takes
    no lock.

    ``lock`` guards everything that is stored, parked or counted for the tiers. It is never held while
    bytes are copied. ``changed`` is notified when a read or a write ends."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)

    def begin_read(self, storage: Storage) -> bool:
        """False when an op is writing it, another copy reads it, or it is gone."""
        with self.lock:
            storage.tracked = True
            if storage.writing or storage.reading or not storage.alive:
                return False
            storage.reading = True
            return True

    def end_read(self, storage: Storage) -> None:
        with self.lock:
            storage.reading = False
            self.changed.notify_all()

    def wait_for_readers(self, storage: Storage) -> None:
        """Called with the lock held, before a write or free."""
        while storage.reading:
            self.changed.wait()

    def end_write(self, storage: Storage) -> None:
        with self.lock:
            storage.writing = False
            self.changed.notify_all()

    def wait_for_writer(self, storage: Storage) -> None:
        """Until no op writes it, or a moment has passed: the waiting copy looks again at what it copies."""
        with self.lock:
            if storage.writing:
                self.changed.wait(0.05)


@dataclass(frozen=True)
class TierLimits:
    """Limits of the host and disk tiers, from the worker's command line; 0 bytes: no such tier.
    ``link_bytes_per_second``: of the throttle that stands for a CPU device's link, 0 for none.
    ``host_account``: of all workers of the device; None: this process counts alone."""

    host_bytes: int = 0
    host_directory: Path | None = None
    disk_bytes: int = 0
    disk_directory: Path | None = None
    link_bytes_per_second: float = 0.0
    host_account: HostAccount | None = None


@dataclass(frozen=True)
class Tiers:
    store: PieceStore = field(default_factory=lambda: PieceStore(HostArena(0, None, "")))
    fences: Fences = field(default_factory=Fences)
    weights: SharedWeights = field(default_factory=SharedWeights)

    def pin_for(self, nbytes: int) -> None:
        """Have so much of the host tier pinned and free, as far as there is space. Without the lock, since
        pinning takes long."""
        arena = self.store.arena
        while True:
            with self.fences.lock:
                slab = arena.begin_slab(nbytes)
            if slab is None:
                return
            pinned = False
            try:
                pinned = arena.pin(slab)
            finally:
                with self.fences.lock:
                    arena.end_slab(slab, pinned)
                    self.fences.changed.notify_all()
            if not pinned:
                return

    def release_host(self, nbytes: int, from_copies: bool = False) -> None:
        """Return so many bytes that no session needs to the other workers of the device, as far as there
        are."""
        with self.fences.lock:
            empty = self.store.arena.take_empty(nbytes)
            self.store.release(nbytes - self.store.arena.bytes_of(empty), from_copies)
            empty += self.store.arena.take_empty(nbytes - self.store.arena.bytes_of(empty))
        self._unpin(empty)

    def release_idle_host(self) -> None:
        """Return all that neither a session nor a whole copy holds."""
        with self.fences.lock:
            self.store.release_idle()
            empty = self.store.arena.take_empty(self.store.arena.capacity_bytes)
        self._unpin(empty)

    def _unpin(self, slabs: Sequence[int]) -> None:
        arena = self.store.arena
        try:
            arena.unpin(slabs)
        finally:
            with self.fences.lock:
                arena.end_unpinned(slabs)
                self.fences.changed.notify_all()
