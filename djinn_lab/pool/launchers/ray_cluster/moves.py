"""A parked session on its way from one host to another: the pieces that its manifest names, in one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from djinn_lab.pool.launchers.adoption import ManifestStorage
from djinn_lab.pool.launchers.ray_cluster.wire import Piece


class NamedPiece(NamedTuple):
    """A piece of a manifest: its name, by its bytes, and where its worker parked them."""

    name: bytes
    place: Piece


def named_pieces(manifest: bytes) -> tuple[NamedPiece, ...]:
    """Return the pieces that a manifest names, each once, in the order of files and offsets. Raises
    msgspec.DecodeError for what is no manifest."""
    files, storages = _read(manifest)
    found = {(piece[3], piece[4]): piece for storage in storages for piece in storage.pieces}
    return tuple(
        NamedPiece(name, Piece(files[number], offset, nbytes))
        for _, (name, _, nbytes, number, offset) in sorted(found.items())
    )


def adopted_manifest(manifest: bytes, pieces: Sequence[Piece], path: str) -> bytes:
    """Return the manifest with these pieces one after the other in the file ``path``, and all others where
    they are."""
    files, storages = _read(manifest)
    places = dict(zip(((one.path, one.offset) for one in pieces), _starts(pieces), strict=True))
    own = len(files)

    def moved(piece: tuple[bytes, bytes, int, int, int]) -> tuple[bytes, bytes, int, int, int]:
        name, fingerprint, nbytes, number, offset = piece
        place = places.get((files[number], offset))
        return piece if place is None else (name, fingerprint, nbytes, own, place)

    content = msgspec.msgpack.decode(manifest, type=dict[str, msgspec.Raw])
    rewritten = []
    for raw, storage in zip(
        msgspec.msgpack.decode(content["storages"], type=list[list[msgspec.Raw]]), storages, strict=True
    ):
        pieces_place = ManifestStorage.__struct_fields__.index("pieces")
        raw[pieces_place] = _raw([moved(piece) for piece in storage.pieces])
        rewritten.append(raw)
    return msgspec.msgpack.encode(content | {"files": _raw([*files, path]), "storages": _raw(rewritten)})


def _read(manifest: bytes) -> tuple[list[str], list[ManifestStorage]]:
    content = msgspec.msgpack.decode(manifest, type=dict[str, msgspec.Raw])
    return (
        msgspec.msgpack.decode(content["files"], type=list[str]),
        msgspec.msgpack.decode(content["storages"], type=list[ManifestStorage]),
    )


def _starts(pieces: Iterable[Piece]) -> list[int]:
    starts, end = [], 0
    for piece in pieces:
        starts.append(end)
        end += piece.nbytes
    return starts


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))
