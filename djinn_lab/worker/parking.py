"""How a session's state leaves a device and comes back: bookkeeping, no copies. All of it is called with the
fences' lock held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from djinn_lab.worker.cuts import KvCut
from djinn_lab.worker.parked import Parked, ParkedStorage
from djinn_lab.worker.pieces import Piece, PieceStore
from djinn_lab.worker.storages import Storage

if TYPE_CHECKING:
    from djinn_lab.worker.loading import Loading
    from djinn_lab.worker.values import SessionValues


def park(values: SessionValues) -> None:
    """Everything is stored: keep the pieces, drop the device's memory. No copy reads it."""
    parked = Parked(values.tiers.store)
    by_key: dict[int, ParkedStorage] = {}
    for key, storage in values.storages.items():
        digest = storage.shared.digest if storage.shared is not None else None
        pieces = take_pieces(storage, values.tiers.store)
        by_key[key] = ParkedStorage(storage.nbytes, storage.pieces(), pieces, digest, storage.references)
    parked.storages = list(by_key.values())
    storage_of, layouts = values.storage_of, values.layouts
    for identifier in values.tensors:
        found = storage_of.get(identifier)
        layout = layouts.get(identifier) or values.layout(identifier)
        parked.values[identifier] = layout, None if found is None else by_key[found.key]
    parked.take_in(values.offloaded)
    abandon(values)
    values.parked = parked
    values.state = "parked"


def take_pieces(storage: Storage, store: PieceStore) -> list[Piece]:
    """Held for the caller; taken over from the storage where no other session has them, which is quick."""
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
    """Drop everything on the device at once, from any thread. No copy reads it."""
    for storage in values.storages.values():
        storage.alive = False
        if storage.chain is not None or storage.tail is not None or storage.shared is not None:
            values.forget(storage)
        storage.let_go()
    values.stored_bytes = values.kv_bytes = values.ready_bytes = 0
    values.account.release_other(values.own_bytes)
    values.own_bytes = 0
    values.storages.clear()
    values.storage_of.clear()
    values.layouts.clear()
    values.recent.clear()
    values.tensors.clear()


def arrive(values: SessionValues, parked: Parked) -> None:
    """Take the state that another process parked as this session's state."""
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
    """Drop the parked state, which is lost for ``reason``."""
    values.offloaded.clear()
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
    """This copy is not what was stored: sessions on the device store again."""
    for storage in list(values.storages.values()):
        if storage.tail is piece or (storage.chain is not None and piece in storage.chain.pieces):
            values.leave_chain(storage)
            values.recount(storage)


def stop_loading(values: SessionValues) -> None:
    """Parked as before the restore began. Of a session that is open already nothing is parked then: its
    values stay, for the caller to drop."""
    loading, values.loading = values.loading, None
    if loading is None:
        return
    if loading.origin is not None:
        if values.parked is not loading.origin:
            loading.origin.clear()
        return
    assert values.parked is not None
    loading.handles.clear()
    values.account.release_other(loading.reserved_bytes)
    for storage in loading.looked_at.values():
        values.end(storage)
    values.parked.end_loading()
    values.state = "parked"


def unpark(values: SessionValues, loading: Loading, device: torch.device) -> None:
    """Make storages of what has arrived on the device, which is checked and counted already. While the rest
    is still on its way, the loading has an ``origin``, which keeps what was parked."""
    parked, store = values.parked, values.tiers.store
    assert parked is not None
    made = loading.storages
    _leave_offloaded(values, parked, open_to_programs=loading.origin is not None)
    # what has arrived comes first: several loads of one weight share the memory of the first
    coming = [item for item in parked.storages if not item.offloaded]
    for item in sorted(coming, key=lambda item: id(item) not in loading.arrived):
        storage = loading.looked_at.get(id(item))
        if storage is None:
            storage = storage_on(values, loading, item)
        made[id(item)] = storage
        if loading.origin is not None:
            for piece in item.pieces:
                store.hold(piece)
        keep_pieces(values, storage, item.pieces)
    for identifier, (layout, parked_on) in parked.values.items():
        if parked_on is not None and parked_on.offloaded:
            continue
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


def _leave_offloaded(values: SessionValues, parked: Parked, open_to_programs: bool) -> None:
    """What was offloaded when the session was parked stays on the host. ``open_to_programs``: ``parked``
    keeps it, too, until the restore has ended."""
    store = values.tiers.store
    for item in [item for item in parked.storages if item.offloaded]:
        if open_to_programs and not item.references:
            continue
        if open_to_programs:
            copy = replace(item, pieces=[store.hold(piece) for piece in item.pieces], references=0)
            on_it = {one: layout for one, (layout, on) in parked.values.items() if on is item}
        else:
            copy, on_it = replace(item, references=0), parked.take_out(item)
        values.offloaded.storages.append(copy)
        if not on_it:  # released while the rest was copied
            values.offloaded.free(copy)
        for identifier, layout in on_it.items():
            values.offloaded.add(identifier, layout, copy)


def keep_pieces(values: SessionValues, storage: Storage, pieces: Sequence[Piece]) -> None:
    """Pieces that a storage on the device was filled from are its stored copy; those in another process's
    files are not kept."""
    for index, piece in enumerate(pieces):
        if piece.file is not None and not piece.file.owned:
            values.tiers.store.drop(piece)
        else:
            values.commit(storage, index, storage.version, piece)


def arrived(values: SessionValues, loading: Loading, items: Sequence[ParkedStorage]) -> None:
    """All pieces of these are on the device and checked."""
    for item in items:
        loading.arrived.add(id(item))
        storage = loading.storages.get(id(item))
        if storage is None:
            continue
        storage.arriving = False
        if storage.shared is not None:
            values.tiers.weights.show(storage.shared)
            for _, looking in storage.shared.holders:
                looking.arriving = False


def park_again(values: SessionValues, loading: Loading) -> None:
    """The rest of an open session does not come: parked as before the restore began. No program runs."""
    assert loading.origin is not None
    abandon(values)
    values.offloaded.clear()
    loading.handles.clear()
    loading.origin.end_loading()
    values.parked = loading.origin
    values.state = "parked"
    values.parked_again = True


def storage_on(values: SessionValues, loading: Loading, item: ParkedStorage) -> Storage:
    """For memory that a restore fills, or has filled."""
    handle, arriving = loading.handles[id(item)], id(item) not in loading.arrived
    if item.shared is not None:
        weight = values.tiers.weights.find(item.shared) or loading.weights.get(item.shared)
        if weight is not None:
            values.account.release_other(item.nbytes)
            del loading.handles[id(item)]
            loading.arrived.add(id(item))
        else:
            weight = values.tiers.weights.add(item.shared, handle, hidden=arriving)
            loading.weights[item.shared] = weight
        looking = values.look_at(weight)
        looking.arriving = weight.hidden
        return looking
    storage = values.storages[handle._cdata] = values.new_storage(handle, handle._cdata, item.nbytes)
    storage.session, storage.tracked, storage.cut = values, True, item.cut
    storage.arriving = arriving
    if isinstance(item.cut, KvCut):
        storage.kv_bytes = item.nbytes
        values.kv_bytes += item.nbytes
    else:
        storage.settled = True
    values.own_bytes += item.nbytes
    values.recount(storage)
    return storage
