"""A session's values on a device, the memory they take, and how much of it is stored.

Bytes are counted per torch storage, once however many values share it. The thread that runs programs puts,
drops and writes; copies, and moves between device and host, come from other threads. What those look at is
``tracked`` and guarded by the fences' lock; the rest takes no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch

from djinn_lab.errors import DeviceMemoryError
from djinn_lab.worker.cuts import KvCut
from djinn_lab.worker.loading import Loading
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.parked import Layout, Parked, ParkedStorage
from djinn_lab.worker.pieces import Piece
from djinn_lab.worker.shared_weights import SharedWeight
from djinn_lab.worker.storages import Chain, Storage
from djinn_lab.worker.tiers import Tiers

State = Literal["resident", "loading", "parked"]


class SessionValues:
    """Tensors by id (None where torch returned an undefined one). Sessions never see each other's.

    ``sole_bytes``: of shared weights that no other session looks at now. ``running``: a program with nodes
    is under way. ``lost``: why values that were here are gone."""

    def __init__(self, account: MemoryAccount, tiers: Tiers | None = None) -> None:
        self.tensors: dict[int, torch.Tensor | None] = {}
        self.storages: dict[int, Storage] = {}
        self.state: State = "resident"
        self.parked: Parked | None = None
        self.loading: Loading | None = None
        self.running = False
        self.closed = False
        self.lost = ""
        self.sole_bytes = 0
        self.stored_bytes = 0
        self.ready_bytes = 0
        self.kv_bytes = 0
        self._account = account
        self._tiers = tiers or Tiers()
        self._storage_of: dict[int, Storage] = {}
        self._own_bytes = 0
        self._looked_at_bytes = 0
        self._recent: list[tuple[Storage, int]] = []
        self._layouts: dict[int, Layout] = {}
        self._released_unseen: set[int] = set()

    @property
    def nbytes(self) -> int:
        """On the device, and nobody else's."""
        return self._own_bytes + self.sole_bytes

    @property
    def unstored_bytes(self) -> int:
        """Without a valid copy on host or disk; of shared weights, too."""
        return max(0, self._own_bytes + self._looked_at_bytes - self.stored_bytes)

    def put(self, identifier: int, tensor: torch.Tensor | None) -> None:
        self._account.add(self.place(identifier, tensor))

    def place(self, identifier: int, tensor: torch.Tensor | None) -> int:
        """As :meth:`put`, for memory that was reserved: returns what it takes besides what was here."""
        self.tensors[identifier] = tensor
        if tensor is None or tensor._is_zerotensor():  # forward-mode zeros take no memory
            return 0
        handle = tensor.untyped_storage()
        key = handle._cdata
        storage = self.storages.get(key)
        added = 0
        if storage is None:
            added = handle.nbytes()
            storage = self.storages[key] = Storage(handle, key, added)
            self._own_bytes += added
        storage.references += 1
        self._storage_of[identifier] = storage
        return added

    def put_shared(self, identifier: int, layout: Layout, weight: SharedWeight) -> None:
        """A value on a weight that others look at, too; called with the lock held."""
        storage = self.look_at(weight)
        storage.references += 1
        self.tensors[identifier] = layout.build(storage.handle, storage.handle.device)
        self._storage_of[identifier] = storage

    def drop(self, identifier: int) -> None:
        storage = self._storage_of.pop(identifier, None)
        self.tensors.pop(identifier, None)
        if storage is None:
            if self.parked is not None:
                self.parked.drop(identifier)
            return
        storage.references -= 1
        if storage.references:
            return
        del self.storages[storage.key]
        storage.alive = False
        if storage.tracked:
            self._forget(storage)
        if storage.shared is None:
            self._own_bytes -= storage.nbytes
            self._account.release(storage.nbytes)

    def release(self, identifiers: Iterable[int]) -> None:
        """Drop values, wherever the session is; it may be on the way between two places."""
        with self._tiers.fences.lock:
            for identifier in identifiers:
                if not self.tensors and self.parked is None:
                    self._released_unseen.add(identifier)  # it may come with a manifest
                self.drop(identifier)
                self._layouts.pop(identifier, None)

    def close(self) -> None:
        """Drop everything on device, host and disk. Copies under way end after their piece."""
        fences = self._tiers.fences
        with fences.lock:
            self.closed = True
            while self.loading is not None and self.loading.busy:
                fences.changed.wait()
            self.stop_loading()
            if self.parked is not None:
                self.parked.clear()
                self.parked = None
            self.state = "resident"
            for identifier in list(self.tensors):
                self.drop(identifier)

    # --- writes

    def begin_write(self, inputs: Sequence[int | None], places: Sequence[int]) -> list[Storage]:
        """An op is about to write these of its inputs: no copy reads them from here to
        :meth:`end_write`."""
        written: list[Storage] = []
        for place in places:
            storage = self._storage_of.get(inputs[place])  # type: ignore[arg-type]
            if storage is None:
                continue
            if storage.shared is not None:
                try:
                    storage = self._own_copy(storage)
                except DeviceMemoryError:
                    self.end_write(written, False)
                    raise
            storage.writing = True
            storage.version += 1
            if storage.tracked:
                self._announce_write(storage)
            written.append(storage)
        return written

    def end_write(self, written: list[Storage], resizes: bool) -> None:
        for storage in written:
            storage.writing = False
            if storage.tracked:
                self._tiers.fences.end_write(storage)
            if resizes and storage.alive:
                self._layouts.clear()
                self._resized(storage)

    def _announce_write(self, storage: Storage) -> None:
        with self._tiers.fences.lock:
            self._tiers.fences.wait_for_readers(storage)
            self._leave_chain(storage)
            if storage.settled:
                storage.settled = False
                self._recent.append((storage, storage.version))
            self._recount(storage)

    def _resized(self, storage: Storage) -> None:
        grown = storage.handle.nbytes() - storage.nbytes
        if not grown:
            return
        with self._tiers.fences.lock:
            self._leave_chain(storage)
            storage.cut = None
            self.kv_bytes -= storage.kv_bytes
            storage.kv_bytes = 0
            storage.nbytes += grown
            self._own_bytes += grown
            self._recount(storage)
        self._account.add(grown)

    def _own_copy(self, shared: Storage) -> Storage:
        """Move all the session's values on a shared weight to memory of its own: the weight's, when nobody
        else looks at it."""
        weight = shared.shared
        assert weight is not None
        with self._tiers.fences.lock:
            alone = self._tiers.weights.take_over(weight)
        if alone:
            handle = weight.handle
        else:
            self._account.reserve(weight.nbytes, "writing to a weight that other sessions share")
            handle = shared.memory().clone().untyped_storage()
        storage = Storage(handle, handle._cdata, weight.nbytes)
        for identifier in [item for item, found in self._storage_of.items() if found is shared]:
            tensor = self.tensors[identifier]
            assert tensor is not None
            tensor.set_(handle, tensor.storage_offset(), tensor.shape, tensor.stride())
            self._storage_of[identifier] = storage
        storage.references = shared.references
        del self.storages[shared.key]
        shared.alive = False
        self._forget(shared)
        self.storages[storage.key] = storage
        self._own_bytes += storage.nbytes
        self._recent.append((storage, storage.version + 1))
        self._account.mark_peak()
        return storage

    # --- key-value caches, and what is worth storing

    def grow(self, past: int | None, grown: int | None) -> None:
        """``grown`` is ``past`` with more tokens behind: a key-value cache, which has what is stored of
        ``past``. Other concatenations are let be."""
        tensor = self.tensors.get(grown)  # type: ignore[arg-type]
        before = self.tensors.get(past)  # type: ignore[arg-type]
        if tensor is None or before is None or tensor.dim() != 4 or not tensor.numel():
            return
        storage = self._storage_of[grown]  # type: ignore[index]
        if storage.nbytes != tensor.nbytes or not tensor.is_contiguous() or storage.cut is not None:
            return
        shape = tuple(tensor.shape)
        if before.numel() and not _same_but_tokens(before, tensor):
            return
        cut = KvCut.of(shape, tensor.element_size())
        source = self._storage_of.get(past)  # type: ignore[arg-type]
        with self._tiers.fences.lock:
            storage.tracked = True
            storage.session = self
            storage.cut = cut
            storage.kv_bytes = cut.nbytes
            self.kv_bytes += cut.nbytes
            if source is not None and cut.grows_from(source.cut):
                if source.chain is None:
                    source.chain = Chain(source, storages=[source])
                storage.chain = source.chain.grow(source, storage, self._tiers.store)
                self._add_stored(storage, storage.chain.stored_bytes)
            self._recount(storage)

    def start_running(self, name: str) -> None:
        with self._tiers.fences.lock:
            if self.state != "resident":
                raise AssertionError(
                    f"session {name} is {self.state}, not on the device: the pool must restore it first."
                )
            self.running = True

    def end_segment(self, kept: Iterable[int]) -> None:
        """What was kept by an earlier segment and not written in this one has settled. It runs no
        more."""
        self.running = False
        recent, self._recent = self._recent, []
        for storage, version in recent:
            if not storage.alive or storage.kv_bytes:
                continue
            if storage.version != version:
                self._recent.append((storage, storage.version))
                continue
            with self._tiers.fences.lock:
                storage.tracked = storage.settled = True
                storage.session = self
                self._recount(storage)
        for identifier in kept:
            found = self._storage_of.get(identifier)
            if found is not None and not found.settled and not found.kv_bytes:
                self._recent.append((found, found.version))

    # --- copies

    def commit(self, storage: Storage, index: int, version: int, piece: Piece) -> bool:
        """A copy of one piece is complete; False (and the piece dropped) when it came too late. Called with
        the lock held."""
        store = self._tiers.store
        complete = storage.pieces().complete
        chain = storage.chain
        if storage.version != version or storage.stored(index) is not None:
            store.drop(piece)
            return False
        storage.session = self
        if index >= complete:
            storage.tail = piece
            self._add_stored(storage, piece.nbytes)
            self._recount(storage)
            return True
        if chain is None:
            chain = storage.chain = Chain(storage, storages=[storage])
        chain.put(index, piece)
        for sharer in chain.storages:
            assert sharer.session is not None
            sharer.session._add_stored(sharer, piece.nbytes)
            sharer.session._recount(sharer)
        return True

    def layout(self, identifier: int) -> Layout:
        found = self._layouts.get(identifier)
        if found is None:
            found = self._layouts[identifier] = Layout.of(self.tensors[identifier])
        return found

    def storage_of(self, identifier: int) -> Storage | None:
        return self._storage_of.get(identifier)

    def park(self) -> None:
        """Everything is stored: keep the pieces, drop the device's memory. With the lock held."""
        store = self._tiers.store
        parked = Parked(store)
        by_storage: dict[int, ParkedStorage] = {}
        for key, storage in self.storages.items():
            pieces = [storage.stored(index) for index in range(storage.pieces().count)]
            held = [store.hold(piece) for piece in pieces if piece is not None]
            assert len(held) == len(pieces)
            digest = storage.shared.digest if storage.shared is not None else None
            by_storage[key] = ParkedStorage(storage.nbytes, storage.pieces(), held, digest)
        parked.storages = list(by_storage.values())
        for identifier in self.tensors:
            found = self._storage_of.get(identifier)
            parked.add(identifier, self.layout(identifier), None if found is None else by_storage[found.key])
        self.abandon()
        self.parked = parked
        self.state = "parked"

    def abandon(self) -> None:
        """Drop everything on the device at once, from any thread. With the lock held."""
        for storage in self.storages.values():
            storage.alive = False
            self._forget(storage)
        self._account.add_other(-self._own_bytes)
        self._own_bytes = 0
        self.storages.clear()
        self._storage_of.clear()
        self._layouts.clear()
        self._recent.clear()
        self.tensors.clear()

    def arrive(self, parked: Parked) -> None:
        """What another process parked is this session's state now. With the lock held."""
        for identifier in self._released_unseen:
            parked.drop(identifier)
        self._released_unseen.clear()
        self.parked = parked
        self.state = "parked"

    def discard(self, reason: str) -> None:
        """Drop everything, stored or not. With the lock held."""
        self.abandon()
        self.lose(reason)

    def lose(self, reason: str) -> None:
        """What is parked is of no use any more. With the lock held."""
        if self.parked is not None:
            self.parked.clear()
            self.parked = None
        self.state = "resident"
        self.lost = reason

    def forget_stored(self) -> None:
        """Drop the copies of what is on the device. With the lock held."""
        for storage in list(self.storages.values()):
            if storage.tracked:
                self._leave_chain(storage)
                self._recount(storage)

    def distrust(self, piece: Piece) -> None:
        """This copy is not what was stored: whoever is on the device stores again. With the lock held."""
        for storage in list(self.storages.values()):
            if storage.tail is piece or (storage.chain is not None and piece in storage.chain.pieces):
                self._leave_chain(storage)
                self._recount(storage)

    def stop_loading(self) -> None:
        """Parked as before the restore began. With the lock held."""
        loading, self.loading = self.loading, None
        if loading is None:
            return
        assert self.parked is not None
        loading.handles.clear()
        self._account.add_other(-loading.reserved_bytes)
        for storage in loading.looked_at.values():
            self._end(storage)
        self.parked.end_loading()
        self.state = "parked"

    def unpark(
        self, handles: dict[int, torch.UntypedStorage], looked_at: dict[int, Storage], device: torch.device
    ) -> None:
        """Everything is on the device and checked. ``handles``: by the id of the parked storage, their bytes
        are counted already; ``looked_at``: likewise, for weights that were here. With the lock held."""
        parked = self.parked
        assert parked is not None
        made: dict[int, Storage] = {}
        for item in parked.storages:
            storage = looked_at.get(id(item))
            if storage is None:
                storage = self._storage_on(handles[id(item)], item)
            made[id(item)] = storage
            for index, piece in enumerate(item.pieces):
                if piece.file is not None and not piece.file.owned:
                    self._tiers.store.drop(piece)
                else:
                    self.commit(storage, index, storage.version, piece)
        for identifier, (layout, parked_on) in parked.values.items():
            found = None if parked_on is None else made[id(parked_on)]
            self.tensors[identifier] = layout.build(None if found is None else found.handle, device)
            self._layouts[identifier] = layout
            if found is not None:
                found.references += 1
                self._storage_of[identifier] = found
        for storage in made.values():
            if not storage.references:  # released while it was copied
                self._end(storage)
        self.parked = None
        self.state = "resident"

    def _storage_on(self, handle: torch.UntypedStorage, item: ParkedStorage) -> Storage:
        """For memory that a restore has filled."""
        if item.shared is not None:
            weight = self._tiers.weights.find(item.shared)
            if weight is not None:
                self._account.add_other(-item.nbytes)
            else:
                weight = self._tiers.weights.add(item.shared, handle)
            return self.look_at(weight)
        storage = self.storages[handle._cdata] = Storage(handle, handle._cdata, item.nbytes)
        storage.session, storage.tracked, storage.cut = self, True, item.cut
        if isinstance(item.cut, KvCut):
            storage.kv_bytes = item.nbytes
            self.kv_bytes += item.nbytes
        else:
            storage.settled = True
        self._own_bytes += item.nbytes
        self._recount(storage)
        return storage

    def look_at(self, weight: SharedWeight) -> Storage:
        """A storage of this session on a shared weight. With the lock held."""
        handle = weight.alias()
        storage = self.storages[handle._cdata] = Storage(handle, handle._cdata, weight.nbytes)
        storage.session, storage.tracked, storage.shared = self, True, weight
        storage.chain = weight.chain
        weight.chain.storages.append(storage)
        self._tiers.weights.join(weight, self, storage)
        self._looked_at_bytes += weight.nbytes
        self._add_stored(storage, weight.chain.stored_bytes)
        return storage

    # --- the ends of storages

    def _end(self, storage: Storage) -> None:
        del self.storages[storage.key]
        storage.alive = False
        self._forget(storage)
        if storage.shared is None:
            self._own_bytes -= storage.nbytes
            self._account.add_other(-storage.nbytes)

    def _forget(self, storage: Storage) -> None:
        """It leaves every count but that of its own bytes."""
        with self._tiers.fences.lock:
            self._tiers.fences.wait_for_readers(storage)
            self._leave_chain(storage)
            self.kv_bytes -= storage.kv_bytes
            self.ready_bytes -= storage.ready_bytes
            storage.kv_bytes = storage.ready_bytes = 0
            weight = storage.shared
            if weight is not None:
                self._looked_at_bytes -= weight.nbytes
                if self._tiers.weights.leave(weight, self, storage) and not weight.taken:
                    self._account.add_other(-weight.nbytes)

    def _leave_chain(self, storage: Storage) -> None:
        if storage.chain is not None:
            storage.chain.leave(storage, self._tiers.store)
            storage.chain = None
        if storage.tail is not None:
            self._tiers.store.drop(storage.tail)
            storage.tail = None
        self._add_stored(storage, -storage.stored_bytes)

    def _add_stored(self, storage: Storage, nbytes: int) -> None:
        storage.stored_bytes += nbytes
        self.stored_bytes += nbytes

    def _recount(self, storage: Storage) -> None:
        """How much of it is worth storing while the session runs."""
        worth = 0
        if storage.kv_bytes:
            cut = storage.pieces()
            worth = cut.complete * cut.size(0)
        elif storage.settled:
            worth = storage.nbytes
        in_tail = storage.tail.nbytes if storage.tail is not None else 0
        ready = max(0, worth - (storage.stored_bytes - in_tail))
        self.ready_bytes += ready - storage.ready_bytes
        storage.ready_bytes = ready


def _same_but_tokens(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dim() != other.dim():
        return False
    return all(one.shape[place] == other.shape[place] for place in (0, 1, 3))
