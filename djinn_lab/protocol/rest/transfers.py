"""Tensors of clients on other hosts.

``/v1/blobs/{digest}/pieces``: one that is uploaded piece by piece. The body of ``PUT`` is a row of frames:
the piece's number and a length, four bytes each, big-endian, and so many bytes: the piece, or, where they are
fewer than it has, the piece compressed by zstd. ``/v1/results/{name}``: ``GET`` deletes the
result; with a header ``Range: bytes=N-`` it stays, until ``DELETE``, so that a fetch may continue after its
connection broke.
"""

from __future__ import annotations

import struct

import msgspec

PIECE_BYTES = 2**20
"""Of each piece but the last."""
PIECES_FROM_BYTES = 4 * PIECE_BYTES
"""Fewer bytes are sent at once: to ask first costs a round trip."""
HEADER = struct.Struct(">II")
"""Of a frame: the piece's number, and how many bytes follow."""
LINK_BYTES_MAX = 16 * 2**20
"""Of one request that measures the way."""


class PiecesAnnounced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Announce a tensor of ``nbytes``. ``pieces``: the BLAKE3 digest of each piece, in order."""

    nbytes: int
    pieces: list[str]


class PiecesMissing(msgspec.Struct, frozen=True):
    """Say which pieces are to be sent, by their numbers. None: the tensor is stored."""

    missing: list[int]


def piece_count(nbytes: int) -> int:
    return -(-nbytes // PIECE_BYTES)


def piece_bytes(number: int, nbytes: int) -> int:
    """Return how many bytes a piece has, of a tensor of ``nbytes``."""
    return min(PIECE_BYTES, nbytes - number * PIECE_BYTES)
