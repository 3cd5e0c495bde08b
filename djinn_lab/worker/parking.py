"""How a session's state leaves a device and comes back: bookkeeping, no copies. All of it is called with the
fences' lock held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from djinn_lab.worker.cuts import KvCut
from djinn_lab.worker.parked import Parked, ParkedStorage
from djinn_lab.worker.pieces import Piece, PieceStore
from djinn_lab.worker.storages import Storage

if TYPE_CHECKING:
    from djinn_lab.worker.values import SessionValues


def park(values: SessionValues) -> None:
    """Everything is stored: keep the pieces, drop the device's memory. No copy reads any of it."""
    parked = Parked(values.tiers.store)
    by_key: dict[int, ParkedStorage] = {}
    for key, storage in values.storages.items():
        digest = storage.shared.digest if storage.shared is not None else None
        pieces = _take_pieces(storage, values.tiers.store)
        by_key[key] = ParkedStorage(storage.nbytes, storage.pieces(), pieces, digest, storage.references)
    parked.storages = list(by_key.values())
    storage_of, layouts = values.storage_of, values.layouts
    for identifier in values.tensors:
        found = storage_of.get(identifier)
        layout = layouts.get(identifier) or values.layout(identifier)
        parked.values[identifier] = layout, None if found is None else by_key[found.key]
    abandon(values)
    values.parked = parked
    values.state = "parked"


def _take_pieces(storage: Storage, store: PieceStore) -> list[Piece]:
    """Held for the caller; taken over from the storage where nobody else has them, which is quick."""
    chain, cut = storage.chain, storage.pieces()
    if chain is not None and storage.shared is None and len(chain.storages) == 1:
        own = chain.pieces if storage.tail is None else [*chain.pieces, storage.tail]
        if len(own) == cut.count:
            storage.chain = storage.tail = None
            return own  # type: ignore[return-value]
    pieces = [storage.stored(index) for index in range(cut.count)]
    held = [store.hold(piece) for piece in pieces if piece is not None]
    assert len(held) == cut.count
    return held


def abandon(values: SessionValues) -> None:
    """Drop everything on the device at once, from any thread. No copy reads any of it."""
    for storage in values.storages.values():
        storage.alive = False
        if storage.chain is not None or storage.tail is not None or storage.shared is not None:
            values.forget(storage)
    values.stored_bytes = values.kv_bytes = values.ready_bytes = 0
    values.account.release_other(values.own_bytes)
    values.own_bytes = 0
    values.storages.clear()
    values.storage_of.clear()
    values.layouts.clear()
    values.recent.clear()
    values.tensors.clear()


def arrive(values: SessionValues, parked: Parked) -> None:
    """What another process parked is this session's state now."""
    for identifier in values.released_unseen:
        parked.drop(identifier)
    values.released_unseen.clear()
    values.parked = parked
    values.state = "parked"


def discard(values: SessionValues, reason: str) -> None:
    """Drop everything, stored or not."""
    abandon(values)
    lose(values, reason)


def lose(values: SessionValues, reason: str) -> None:
    """What is parked is of no use any more."""
    if values.parked is not None:
        values.parked.clear()
        values.parked = None
    values.state = "resident"
    values.lost = reason


def forget_stored(values: SessionValues) -> None:
    """Drop the copies of what is on the device."""
    for storage in list(values.storages.values()):
        if storage.tracked:
            values.leave_chain(storage)
            values.recount(storage)


def distrust(values: SessionValues, piece: Piece) -> None:
    """This copy is not what was stored: whoever is on the device stores again."""
    for storage in list(values.storages.values()):
        if storage.tail is piece or (storage.chain is not None and piece in storage.chain.pieces):
            values.leave_chain(storage)
            values.recount(storage)


def stop_loading(values: SessionValues) -> None:
    """Parked as before the restore began."""
    loading, values.loading = values.loading, None
    if loading is None:
        return
    assert values.parked is not None
    loading.handles.clear()
    values.account.release_other(loading.reserved_bytes)
    for storage in loading.looked_at.values():
        values.end(storage)
    values.parked.end_loading()
    values.state = "parked"


def unpark(
    values: SessionValues,
    handles: dict[int, torch.UntypedStorage],
    looked_at: dict[int, Storage],
    device: torch.device,
) -> None:
    """Everything is on the device and checked. ``handles``: by the id of the parked storage, their bytes
    are counted already; ``looked_at``: likewise, for weights that were here."""
    parked = values.parked
    assert parked is not None
    made: dict[int, Storage] = {}
    for item in parked.storages:
        storage = looked_at.get(id(item))
        if storage is None:
            storage = _storage_on(values, handles[id(item)], item)
        made[id(item)] = storage
        for index, piece in enumerate(item.pieces):
            if piece.file is not None and not piece.file.owned:
                values.tiers.store.drop(piece)
            else:
                values.commit(storage, index, storage.version, piece)
    for identifier, (layout, parked_on) in parked.values.items():
        found = None if parked_on is None else made[id(parked_on)]
        values.tensors[identifier] = layout.build(None if found is None else found.handle, device)
        values.layouts[identifier] = layout
        if found is not None:
            found.references += 1
            values.storage_of[identifier] = found
    for storage in made.values():
        if not storage.references:  # released while it was copied
            values.end(storage)
    values.parked = None
    values.state = "resident"


def _storage_on(values: SessionValues, handle: torch.UntypedStorage, item: ParkedStorage) -> Storage:
    """For memory that a restore has filled."""
    if item.shared is not None:
        weight = values.tiers.weights.find(item.shared)
        if weight is not None:
            values.account.release_other(item.nbytes)
        else:
            weight = values.tiers.weights.add(item.shared, handle)
        return values.look_at(weight)
    storage = values.storages[handle._cdata] = values.new_storage(handle, handle._cdata, item.nbytes)
    storage.session, storage.tracked, storage.cut = values, True, item.cut
    if isinstance(item.cut, KvCut):
        storage.kv_bytes = item.nbytes
        values.kv_bytes += item.nbytes
    else:
        storage.settled = True
    values.own_bytes += item.nbytes
    values.recount(storage)
    return storage
