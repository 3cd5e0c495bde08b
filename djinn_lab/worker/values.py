"""A session's values on a device, the memory they take, and how much of it is stored.

Bytes are counted per torch storage, once however many values share it. The thread that runs programs puts,
drops and writes; copies, and moves between device and host, come from other threads. What those look at is
``tracked`` and guarded by the fences' lock; the rest takes no lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch

from djinn_lab.errors import DeviceMemoryError
from djinn_lab.worker.cuts import KvCut, same_but_tokens
from djinn_lab.worker.executor import Transient
from djinn_lab.worker.loading import Loading
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.parked import Parked, ParkedLayout
from djinn_lab.worker.parking import lose, stop_loading
from djinn_lab.worker.pieces import Piece
from djinn_lab.worker.shared_weights import SharedWeight
from djinn_lab.worker.storages import Chain, Storage, storage_class
from djinn_lab.worker.tiers import Tiers


class RestoreFailed(Exception):
    """The restore failed of a session whose segment had begun, or was on its way here."""


def _nothing() -> None:
    pass


State = Literal["resident", "loading", "parked"]
COPIES_KEPT_MAX = 4


class SessionValues:
    """Tensors by id (None where torch returned an undefined one). Sessions never see each other's.

    ``leaving``: storages that are dropped and wait for a copy to let go, counted until then.
    ``sole_bytes``: of shared weights that no other session looks at now. ``running``: a program with nodes
    is under way. ``unanswered``: a segment came whose answer has not left: no copy tells of it before.
    ``described``: the pool has a manifest of what is here now. ``lost``: why values that were
    here are gone. ``parked_again``: a segment may come for which the session was open, until the copy of its
    rest failed. ``recent``: storages, with their versions, that no segment has left alone yet.
    ``offloaded``: values of a session on the device that gave way to others of it, see
    :mod:`djinn_lab.worker.offloading`.
    ``transient``: has the values of a program under way that are not among these yet. ``serial``: of the last
    run that ended here. ``copies``: by transfer, the pieces of the last whole copy and of those before it
    that the pool's database may have."""

    def __init__(self, account: MemoryAccount, tiers: Tiers | None = None) -> None:
        self.tensors: dict[int, torch.Tensor | None] = {}
        self.storages: dict[int, Storage] = {}
        self.state: State = "resident"
        self.parked: Parked | None = None
        self.loading: Loading | None = None
        self.running = False
        self.unanswered = False
        self.parked_again = False
        self.described = False
        self.closed = False
        self.serial = 0
        self.copies: dict[int, Sequence[Piece]] = {}
        self.lost = ""
        self.leaving = 0
        self.sole_bytes = 0
        self.stored_bytes = 0
        self.ready_bytes = 0
        self.kv_bytes = 0
        self.account = account
        self.tiers = tiers or Tiers()
        self.offloaded = Parked(self.tiers.store)
        self.storage_of: dict[int, Storage] = {}
        self.own_bytes = 0
        self.looked_at_bytes = 0
        self.recent: list[tuple[Storage, int]] = []
        self.layouts: dict[int, ParkedLayout] = {}
        self.released_unseen: set[int] = set()
        self.transient: Transient | None = None
        self.stop_run: Callable[[], None] = _nothing
        self.new_storage = storage_class(account.executor)

    @property
    def nbytes(self) -> int:
        """On the device or reserved there for its restore, and of this session alone."""
        loading = self.loading if self.state == "loading" else None
        coming = 0 if loading is None else loading.reserved_bytes
        return self.own_bytes + self.sole_bytes + self._transient_bytes + coming

    @property
    def arriving(self) -> bool:
        """On the device and open to programs, with a part still being copied."""
        return self.loading is not None and self.loading.open

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of weights that other sessions on the device use, too."""
        return self.looked_at_bytes - self.sole_bytes

    @property
    def unstored_bytes(self) -> int:
        """Return the bytes without a valid copy on host or disk, shared weights included."""
        here = self.own_bytes + self.looked_at_bytes + self._transient_bytes
        return max(0, here - self.stored_bytes)

    @property
    def _transient_bytes(self) -> int:
        transient = self.transient
        return 0 if transient is None else transient.live_bytes

    def put(self, identifier: int, tensor: torch.Tensor | None) -> None:
        self.account.add(self.place(identifier, tensor))

    def place(self, identifier: int, tensor: torch.Tensor | None) -> int:
        """Put a value as :meth:`put` does, in reserved memory; return the bytes that it takes besides those
        here."""
        if self.holds(identifier):  # no client of ours does that, but its old memory must not stay counted
            self.drop(identifier)
        self.tensors[identifier] = tensor
        if tensor is None or tensor._is_zerotensor():  # forward-mode zeros take no memory
            return 0
        handle = tensor.untyped_storage()
        key = handle._cdata
        storage = self.storages.get(key)
        added = 0
        if storage is None:
            added = handle.nbytes()
            storage = self.storages[key] = self.new_storage(handle, key, added)
            self.own_bytes += added
        storage.references += 1
        self.storage_of[identifier] = storage
        return added

    def put_shared(self, identifier: int, layout: ParkedLayout, weight: SharedWeight) -> None:
        """A value on a weight that others look at, too; called with the lock held."""
        storage = self.look_at(weight)
        storage.references += 1
        self.tensors[identifier] = layout.build(storage.handle, storage.handle.device)
        self.storage_of[identifier] = storage

    def drop(self, identifier: int) -> None:
        storage = self.storage_of.pop(identifier, None)
        self.tensors.pop(identifier, None)
        if storage is None:
            if self.offloaded.values and self._drop_offloaded(identifier):
                return
            if self.parked is not None:
                self.parked.drop(identifier)
            return
        storage.references -= 1
        if storage.references:
            return
        del self.storages[storage.key]
        storage.alive = False
        if storage.tracked:
            self.forget(storage)
        storage.let_go()
        if storage.shared is None:
            self.own_bytes -= storage.nbytes
            self.account.release(storage.nbytes)

    def holds(self, identifier: int) -> bool:
        """Return whether a session on the device has the value, there or offloaded."""
        return identifier in self.tensors or identifier in self.offloaded.values

    @property
    def offloaded_bytes(self) -> int:
        return sum(storage.nbytes for storage in self.offloaded.storages)

    def _drop_offloaded(self, identifier: int) -> bool:
        with self.tiers.fences.lock:
            return self.offloaded.drop(identifier)

    def release(self, identifiers: Iterable[int]) -> None:
        """Drop values, wherever the session is; it may be on the way between two places."""
        with self.tiers.fences.lock:
            origin = self.loading.origin if self.arriving and self.loading is not None else None
            for identifier in identifiers:
                if not self.tensors and not self.offloaded.values and self.parked is None:
                    self.released_unseen.add(identifier)  # it may come with a manifest
                self.drop(identifier)
                if origin is not None:
                    origin.drop(identifier)
                self.layouts.pop(identifier, None)

    def close(self) -> None:
        """Drop everything on device, host and disk. Copies under way end after their piece."""
        fences = self.tiers.fences
        with fences.lock:
            self.closed = True
            while self.loading is not None and self.loading.busy:
                fences.changed.wait()
            stop_loading(self)
            lose(self, "its session was closed")
            self.drop_copies()
            for identifier in list(self.tensors):
                self.drop(identifier)

    # --- writes

    def begin_write(self, inputs: Sequence[int | None], places: Sequence[int]) -> list[Storage]:
        """An op is about to write these of its inputs: no copy reads them from here to
        :meth:`end_write`."""
        written: list[Storage] = []
        for place in places:
            storage = self.storage_of.get(inputs[place])  # type: ignore[arg-type]
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
                self.announce_write(storage)
            written.append(storage)
        return written

    def end_write(self, written: list[Storage], resizes: bool) -> None:
        for storage in written:
            storage.writing = False
            if storage.tracked:
                self.tiers.fences.end_write(storage)
            if resizes and storage.alive:
                self.layouts.clear()
                self.resized(storage)

    def announce_write(self, storage: Storage) -> None:
        """Wait for the copy that reads it; what was stored of it is out of date. Then nothing looks at it any
        more, so the next write need not be announced."""
        with self.tiers.fences.lock:
            self.tiers.fences.wait_for_readers(storage)
            self.leave_chain(storage)
            if storage.settled:
                storage.settled = False
                self.recent.append((storage, storage.version))
            self.recount(storage)
            storage.tracked = storage.kv_bytes > 0

    def resized(self, storage: Storage) -> None:
        """Count it again after an op that may have changed its size."""
        grown = storage.handle.nbytes() - storage.nbytes
        if not grown:
            return
        with self.tiers.fences.lock:
            self.leave_chain(storage)
            storage.cut = None
            self.kv_bytes -= storage.kv_bytes
            storage.kv_bytes = 0
            storage.nbytes += grown
            self.own_bytes += grown
            self.recount(storage)
        self.account.add(grown)

    def _own_copy(self, shared: Storage) -> Storage:
        """Move all the session's values on a shared weight to memory of its own: the weight's, when no other
        session looks at it."""
        weight = shared.shared
        assert weight is not None
        with self.tiers.fences.lock:
            alone = self.tiers.weights.take_over(weight)
        if alone:
            handle = weight.handle
        else:
            self.account.reserve(weight.nbytes, "writing to a weight that other sessions share")
            handle = shared.memory().clone().untyped_storage()
        storage = self.new_storage(handle, handle._cdata, weight.nbytes)
        for identifier in [item for item, found in self.storage_of.items() if found is shared]:
            tensor = self.tensors[identifier]
            assert tensor is not None
            tensor.set_(handle, tensor.storage_offset(), tensor.shape, tensor.stride())
            self.storage_of[identifier] = storage
        storage.references = shared.references
        del self.storages[shared.key]
        shared.alive = False
        self.forget(shared)
        self.storages[storage.key] = storage
        self.own_bytes += storage.nbytes
        self.recent.append((storage, storage.version + 1))
        self.account.mark_peak()
        return storage

    # --- key-value caches, and what is worth storing

    def grow(self, past: int | None, grown: int | None) -> None:
        """``grown`` is ``past`` with more tokens behind: a key-value cache, which has what is stored of
        ``past``. Other concatenations are let be."""
        tensor = self.tensors.get(grown)  # type: ignore[arg-type]
        before = self.tensors.get(past)  # type: ignore[arg-type]
        if tensor is None or before is None or tensor.dim() != 4 or not tensor.numel():
            return
        storage = self.storage_of[grown]  # type: ignore[index]
        if storage.cut is not None or not storage.is_filled_by(tensor):
            return
        if before.numel() and not same_but_tokens(before.shape, tensor.shape):
            return
        cut = KvCut.of(tensor.shape, tensor.element_size())
        source = self.storage_of.get(past)  # type: ignore[arg-type]
        with self.tiers.fences.lock:
            storage.tracked = True
            storage.session = self
            storage.cut = cut
            storage.kv_bytes = cut.nbytes
            self.kv_bytes += cut.nbytes
            if source is not None and source.is_filled_by(before) and cut.grows_from(source.cut):
                if source.chain is None:
                    source.chain = Chain(source, storages=[source])
                storage.chain = source.chain.grow(source, storage, self.tiers.store)
                self.add_stored(storage, storage.chain.stored_bytes)
            self.recount(storage)

    def start_running(self, name: str, stop: Callable[[], None]) -> None:
        """``stop`` asks the run to stop, from any thread."""
        with self.tiers.fences.lock:
            if self.state != "resident" and self.parked_again:
                raise RestoreFailed
            if self.state != "resident":
                raise AssertionError(
                    f"session {name} is {self.state}, not on the device: the pool must restore it first."
                )
            self.running = True
            self.parked_again = self.described = False
            self.stop_run = stop

    def end_segment(self, kept: Iterable[int]) -> None:
        """End the run of a segment. A storage that an earlier segment kept, and this one did not write, has
        settled."""
        recent, self.recent = self.recent, []
        for storage, version in recent:
            if not storage.alive or storage.kv_bytes:
                continue
            if storage.version != version:
                self.recent.append((storage, storage.version))
                continue
            with self.tiers.fences.lock:
                storage.tracked = storage.settled = True
                storage.session = self
                self.recount(storage)
        for identifier in kept:
            found = self.storage_of.get(identifier)
            if found is not None and not found.settled and not found.kv_bytes:
                self.recent.append((found, found.version))
        self.stop_running()

    def stop_running(self) -> None:
        with self.tiers.fences.lock:
            self.running = False
            self.stop_run = _nothing
            self.tiers.fences.changed.notify_all()

    def await_answer(self) -> None:
        """Hold whole copies back from the end of the segment that comes until it is answered. The pool would
        take one that has what the segment did for a state before it, and run the segment again, where it or
        this process is killed in between."""
        with self.tiers.fences.lock:
            self.unanswered = True

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Send the answer to the segment inside: what the pool orders next finds it answered."""
        with self.tiers.fences.lock:
            yield
            self.unanswered = False
            self.tiers.fences.changed.notify_all()

    # --- copies

    def keep_copy(self, transfer: int, pieces: Sequence[Piece]) -> None:
        """Keep the pieces of a whole copy. Of a database that stands still, the copy that it has stays, and
        the last few. With the lock held."""
        for piece in pieces:
            self.tiers.store.keep(piece)
        if transfer in self.copies:
            self._drop_copy(transfer)
        self.copies[transfer] = pieces
        if len(self.copies) > COPIES_KEPT_MAX:
            self._drop_copy([*self.copies][1])

    def drop_copies_before(self, transfer: int) -> None:
        """Keep no copies from before the one that a transfer made. With the lock held."""
        if transfer in self.copies:
            for older in itertools.takewhile(lambda one: one != transfer, [*self.copies]):
                self._drop_copy(older)

    def drop_copies(self) -> None:
        """With the lock held."""
        for transfer in [*self.copies]:
            self._drop_copy(transfer)

    def _drop_copy(self, transfer: int) -> None:
        for piece in self.copies.pop(transfer):
            self.tiers.store.unkeep(piece)

    def commit(self, storage: Storage, index: int, version: int, piece: Piece) -> bool:
        """A copy of one piece is complete; False (and the piece dropped) when it came too late. Called with
        the lock held."""
        store = self.tiers.store
        complete = storage.pieces().complete
        chain = storage.chain
        if storage.version != version or storage.stored(index) is not None:
            store.drop(piece)
            return False
        storage.session = self
        if index >= complete:
            storage.tail = piece
            self.add_stored(storage, piece.nbytes)
            self.recount(storage)
            return True
        if chain is None:
            chain = storage.chain = Chain(storage, storages=[storage])
        chain.put(index, piece)
        for sharer in chain.storages:
            if index < sharer.pieces().complete:
                assert sharer.session is not None
                sharer.session.add_stored(sharer, piece.nbytes)
                sharer.session.recount(sharer)
        return True

    def layout(self, identifier: int) -> ParkedLayout:
        found = self.layouts.get(identifier)
        if found is None:
            found = self.layouts[identifier] = ParkedLayout.of(self.tensors[identifier])
        return found

    def look_at(self, weight: SharedWeight) -> Storage:
        """A storage of this session on a shared weight. With the lock held."""
        handle = weight.alias()
        storage = self.storages[handle._cdata] = self.new_storage(handle, handle._cdata, weight.nbytes)
        storage.session, storage.tracked, storage.shared = self, True, weight
        storage.chain = weight.chain
        weight.chain.storages.append(storage)
        self.tiers.weights.join(weight, self, storage)
        self.looked_at_bytes += weight.nbytes
        self.add_stored(storage, weight.chain.stored_bytes)
        return storage

    # --- the ends of storages

    def end(self, storage: Storage) -> None:
        del self.storages[storage.key]
        storage.alive = False
        self.forget(storage)
        storage.let_go()
        if storage.shared is None:
            self.own_bytes -= storage.nbytes
            self.account.release_other(storage.nbytes)

    def forget(self, storage: Storage) -> None:
        """Drop a storage from every count but that of its own bytes."""
        with self.tiers.fences.lock:
            if storage.reading:
                self.leaving += 1
                self.tiers.fences.wait_for_readers(storage)
                self.leaving -= 1
                self.tiers.fences.changed.notify_all()
            self.leave_chain(storage)
            self.kv_bytes -= storage.kv_bytes
            self.ready_bytes -= storage.ready_bytes
            storage.kv_bytes = storage.ready_bytes = 0
            weight = storage.shared
            if weight is not None:
                self.looked_at_bytes -= weight.nbytes
                if self.tiers.weights.leave(weight, self, storage) and not weight.taken:
                    self.account.release_other(weight.nbytes)

    def leave_chain(self, storage: Storage) -> None:
        if storage.chain is not None:
            storage.chain.leave(storage, self.tiers.store)
            storage.chain = None
        if storage.tail is not None:
            self.tiers.store.drop(storage.tail)
            storage.tail = None
        if storage.stored_bytes:
            self.add_stored(storage, -storage.stored_bytes)

    def add_stored(self, storage: Storage, nbytes: int) -> None:
        storage.stored_bytes += nbytes
        self.stored_bytes += nbytes

    def recount(self, storage: Storage) -> None:
        """Recount how much of a storage is worth storing while the session runs."""
        worth = 0
        if storage.kv_bytes:
            worth = storage.pieces().complete_bytes
        elif storage.settled:
            worth = storage.nbytes
        in_tail = storage.tail.nbytes if storage.tail is not None else 0
        ready = max(0, worth - (storage.stored_bytes - in_tail))
        self.ready_bytes += ready - storage.ready_bytes
        storage.ready_bytes = ready
