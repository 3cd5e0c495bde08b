"""Count a device's memory and pieces anew, and compare with the counts that are kept from op to op."""

from __future__ import annotations

from collections import Counter

from worker_kit import Device

from djinn_lab.worker.cuts import KvCut
from djinn_lab.worker.host_arena import rounded
from djinn_lab.worker.pieces import Piece
from djinn_lab.worker.storages import Chain, Storage
from djinn_lab.worker.values import SessionValues


def audit(device: Device) -> None:
    memory = device.memory()
    sessions = device.interpreter.sessions
    weights: dict[int, tuple[int, set[str]]] = {}
    own_bytes: Counter[str] = Counter()
    for name, values in sessions.items():
        _check_session(values)
        for storage in values.storages.values():
            if storage.shared is None:
                own_bytes[name] += storage.handle.nbytes()
            else:
                weights.setdefault(id(storage.shared), (storage.nbytes, set()))[1].add(name)
    shared_bytes = 0
    for nbytes, holders in weights.values():
        if len(holders) == 1:
            own_bytes[holders.pop()] += nbytes
        else:
            shared_bytes += nbytes
    assert memory.shared_bytes == shared_bytes
    assert {name: count for name, count in memory.session_bytes.items() if count} == dict(+own_bytes)
    assert memory.used_bytes == shared_bytes + own_bytes.total() <= device.interpreter.memory.limit_bytes
    _check_pieces(device)


def _check_session(values: SessionValues) -> None:
    storages = values.storages.values()
    held = Counter(id(found) for found in values.storage_of.values())
    assert all(held[id(storage)] == storage.references > 0 for storage in storages)
    total = sum(storage.nbytes for storage in storages)
    stored = sum(piece.nbytes for storage in storages for piece in _stored(storage))
    assert values.unstored_bytes == total - stored
    kv = [storage for storage in storages if storage.kv_bytes]
    assert values.kv_bytes == sum(storage.nbytes for storage in kv)
    complete = sum(_complete_bytes(storage) for storage in kv)
    settled = sum(storage.nbytes for storage in storages if storage.settled)
    behind = sum(piece.nbytes for storage in kv for piece in _stored(storage, complete_only=True))
    behind += sum(piece.nbytes for storage in storages if storage.settled for piece in _stored(storage))
    assert values.ready_bytes == complete + settled - behind


def _stored(storage: Storage, complete_only: bool = False) -> list[Piece]:
    cut = storage.pieces() if storage.tracked else None
    if cut is None:
        return []
    count = cut.complete if complete_only else cut.count
    return [piece for index in range(count) if (piece := storage.stored(index)) is not None]


def _complete_bytes(storage: Storage) -> int:
    cut = storage.cut
    assert isinstance(cut, KvCut)
    return cut.complete * cut.size(0)


def _check_pieces(device: Device) -> None:
    """Check that each piece has as many holders as its count, and that the arena and the disk hold these
    pieces and no others."""
    holders: Counter[int] = Counter()
    pieces: dict[int, Piece] = {}
    chains: dict[int, Chain] = {}

    def hold(piece: Piece | None) -> None:
        if piece is not None:
            pieces[id(piece)] = piece
            holders[id(piece)] += 1

    for values in device.interpreter.sessions.values():
        for storage in values.storages.values():
            hold(storage.tail)
            if storage.chain is not None:
                chains[id(storage.chain)] = storage.chain
        loading = values.loading
        parked = loading.origin if loading is not None and loading.open else values.parked
        held = [*(parked.storages if parked is not None else ()), *values.offloaded.storages]
        for item in held:
            for piece in item.pieces:
                hold(piece)
    for chain in chains.values():
        for link in chain.pieces:
            hold(link)
    assert all(piece.references == holders[id(piece)] for piece in pieces.values())
    on_host = [piece for piece in pieces.values() if piece.file is None]
    assert len({piece.name for piece in on_host}) == len(on_host)
    assert device.memory().host_bytes == sum(rounded(piece.nbytes) for piece in on_host)
    files = {id(piece.file): piece.file for piece in pieces.values() if piece.file is not None}
    assert device.memory().disk_bytes == sum(file.nbytes for file in files.values() if file.owned)
    copied = [
        piece.file
        for values in device.interpreter.sessions.values()
        for copy in values.copies.values()
        for piece in copy
    ]
    named = {file.path.name for file in (*files.values(), *copied) if file is not None and file.nbytes}
    assert named == {path.name for path in device.directory.glob("*.pieces")}
