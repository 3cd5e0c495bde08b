"""Tensors of clients on other hosts.

``/v1/blobs/{digest}/pieces``: one that is uploaded piece by piece. The body of ``PUT`` is a row of frames:
the piece's number and a length, four bytes each, big-endian, and so many bytes: the piece, or, where they are
fewer than it has, the piece compressed by zstd. ``/v1/blobs``: many small ones. The body is a row of frames:
a digest, 32 bytes, the tensor's bytes and a length, four bytes each, and so many bytes, as above.

``/v1/results/{name}``: ``GET`` deletes the result; with a header ``Range: bytes=N-`` it stays, until
``DELETE``, so that a fetch may continue after its connection broke. ``/v1/results?name=A&name=B``: several,
one behind the other, which stay, too.
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
BLOB_HEADER = struct.Struct(">32sII")
"""Of a frame of a small tensor: its digest, its bytes, and how many follow."""
RESULTS_MAX = 64
"""Names in one request for results: an address of more than 4 kB may not pass every proxy."""
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
