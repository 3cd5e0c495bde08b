"""A session that is not on the device: the layouts of its values, and the pieces of their memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from djinn_lab.worker.cuts import Cut, FlatCut, KvCut
from djinn_lab.worker.pieces import Piece, PieceFile, PieceStore


class ParkedLayout(msgspec.Struct, frozen=True, array_like=True):
    """The layout of a tensor in its storage (offset and stride in elements). ``kind``: ``tensor``, ``zero``
    (forward-mode zeros without memory) or ``none`` (torch returned an undefined tensor)."""

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    conjugated: bool = False
    negated: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor | None) -> ParkedLayout:
        if tensor is None:
            return cls("none")
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        if tensor._is_zerotensor():
            return cls("zero", dtype, shape)
        return cls(
            "tensor",
            dtype,
            shape,
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def build(self, handle: torch.UntypedStorage | None, device: torch.device) -> torch.Tensor | None:
        """The tensor again, on ``handle``."""
        if self.kind == "none":
            return None
        dtype: torch.dtype = getattr(torch, self.dtype)
        if self.kind == "zero":
            return torch._efficientzerotensor(self.shape, dtype=dtype, device=device)
        assert handle is not None
        tensor = torch.empty(0, dtype=dtype, device=device).set_(handle, self.offset, self.shape, self.stride)
        if self.conjugated:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.negated else tensor


@dataclass(eq=False, slots=True)
class ParkedStorage:
    """``shared``: digest of the blob that it is. ``references``: values on it. ``offloaded``: a restore of
    its session leaves it on the host, see :mod:`djinn_lab.worker.offloading`."""

    nbytes: int
    cut: Cut
    pieces: list[Piece]
    shared: str | None = None
    references: int = 0
    offloaded: bool = False


class Parked:
    """All methods are called with the fences' lock held. While a restore reads the pieces
    (``loading``) they stay, also values that are needed no more."""

    def __init__(self, store: PieceStore) -> None:
        self.values: dict[int, tuple[ParkedLayout, ParkedStorage | None]] = {}
        self.storages: list[ParkedStorage] = []
        self.loading = False
        self._store = store

    def add(self, identifier: int, layout: ParkedLayout, storage: ParkedStorage | None) -> None:
        self.values[identifier] = layout, storage
        if storage is not None:
            storage.references += 1

    def drop(self, identifier: int) -> bool:
        """False when there is no such value."""
        found = self.values.pop(identifier, None)
        if found is None:
            return False
        storage = found[1]
        if storage is not None:
            storage.references -= 1
            if not storage.references and not self.loading:
                self.free(storage)
        return True

    def take_in(self, other: Parked) -> None:
        """Take over everything of ``other``, which is empty then."""
        self.values.update(other.values)
        self.storages += other.storages
        other.values, other.storages = {}, []

    def take_out(self, storage: ParkedStorage) -> dict[int, ParkedLayout]:
        """Take a storage out, with the layouts of the values on it; its pieces stay held, for the caller."""
        found = {one: layout for one, (layout, on) in self.values.items() if on is storage}
        for identifier in found:
            del self.values[identifier]
        self.storages.remove(storage)
        return found

    def end_loading(self) -> None:
        self.loading = False
        for storage in list(self.storages):
            if not storage.references:
                self.free(storage)

    def clear(self) -> None:
        self.values.clear()
        for storage in list(self.storages):
            self.free(storage)

    def free(self, storage: ParkedStorage) -> None:
        self.storages.remove(storage)
        for piece in storage.pieces:
            self._store.drop(piece)


class StoredPiece(msgspec.Struct, frozen=True, array_like=True):
    """The place of a piece's bytes: ``offset`` in a ``file`` of the manifest."""

    name: bytes
    fingerprint: bytes
    nbytes: int
    file: int
    offset: int


class StoredStorage(msgspec.Struct, frozen=True, array_like=True):
    """``kv``: the four numbers of a :class:`KvCut`, None for a flat one of ``piece_bytes``. ``offloaded``: as
    in :class:`ParkedStorage`."""

    nbytes: int
    piece_bytes: int
    kv: tuple[int, int, int, int] | None
    shared: str | None
    pieces: list[StoredPiece]
    offloaded: bool = False


class Manifest(msgspec.Struct, frozen=True):
    """Everything that another process needs to restore a session. ``fingerprints``: how they were taken.
    ``values``: id, layout, and which of the storages."""

    session: str
    fingerprints: str
    files: list[str]
    storages: list[StoredStorage]
    values: list[tuple[int, ParkedLayout, int | None]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Manifest).decode


class ManifestWriter:
    """Called with the fences' lock held."""

    def __init__(self, session: str, fingerprints: str, store: PieceStore) -> None:
        self._manifest = Manifest(session, fingerprints, [], [], [])
        self._store = store
        self._files: dict[str, int] = {}
        self.pieces: list[Piece] = []

    def storage(
        self, nbytes: int, cut: Cut, shared: str | None, pieces: list[Piece], offloaded: bool = False
    ) -> int:
        """Add a storage, and return its number, for the values on it."""
        kv = None if isinstance(cut, FlatCut) else _kv_numbers(cut)
        stored = [self._piece(piece) for piece in pieces]
        self.pieces += pieces
        self._manifest.storages.append(
            StoredStorage(
                *(nbytes, cut.piece_bytes if isinstance(cut, FlatCut) else 0, kv, shared, stored),
                offloaded=offloaded,
            )
        )
        return len(self._manifest.storages) - 1

    def parked(self, parked: Parked) -> None:
        """Add all storages and values of a session, or a part of it, that is off the device."""
        numbers = {
            id(item): self.storage(item.nbytes, item.cut, item.shared, item.pieces, item.offloaded)
            for item in parked.storages
        }
        for identifier, (layout, storage) in parked.values.items():
            self.value(identifier, layout, None if storage is None else numbers[id(storage)])

    def value(self, identifier: int, layout: ParkedLayout, storage: int | None) -> None:
        self._manifest.values.append((identifier, layout, storage))

    def encoded(self) -> bytes:
        return _encode(self._manifest)

    def _piece(self, piece: Piece) -> StoredPiece:
        path, offset = self._store.place(piece)
        number = self._files.setdefault(path, len(self._files))
        if number == len(self._manifest.files):
            self._manifest.files.append(path)
        return StoredPiece(piece.name, piece.fingerprint, piece.nbytes, number, offset)


def _kv_numbers(cut: KvCut) -> tuple[int, int, int, int]:
    return cut.rows, cut.tokens, cut.token_bytes, cut.tokens_per_piece


def write_parked(session: str, fingerprints: str, parked: Parked, store: PieceStore) -> bytes:
    writer = ManifestWriter(session, fingerprints, store)
    writer.parked(parked)
    return writer.encoded()


def read_manifest(encoded: bytes, fingerprints: str, store: PieceStore) -> Parked:
    """A session as another process parked it; pieces that are on this host, too, are taken from here.
    Raises ValueError when it is not ours to read."""
    try:
        manifest = _decode(encoded)
    except msgspec.DecodeError as error:
        raise ValueError(f"the manifest cannot be read: {error}") from None
    if manifest.fingerprints != fingerprints:
        raise ValueError(
            f"it was stored with fingerprints of kind {manifest.fingerprints}, and this device takes "
            f"{fingerprints}"
        )
    files = [_foreign(path) for path in manifest.files]
    parked = Parked(store)
    for item in manifest.storages:
        cut = KvCut(*item.kv) if item.kv is not None else FlatCut(item.nbytes, item.piece_bytes)
        pieces = []
        for piece in item.pieces:
            found = store.find(piece.name)
            if found is None or found.fingerprint != piece.fingerprint:
                if found is not None:
                    store.drop(found)
                source = files[piece.file]
                source.pieces += 1
                found = Piece(piece.name, piece.fingerprint, piece.nbytes, piece.offset, source)
            pieces.append(found)
        parked.storages.append(ParkedStorage(item.nbytes, cut, pieces, item.shared, offloaded=item.offloaded))
    for identifier, layout, number in manifest.values:
        parked.add(identifier, layout, None if number is None else parked.storages[number])
    return parked


def _foreign(path: str) -> PieceFile:
    return PieceFile(Path(path), 0, owned=False)
