"""How a storage is cut into the pieces that are copied, compared and shared.

A piece is what a copy moves between two moments at which a more urgent copy may overtake, and the unit of
sharing between sessions: equal pieces are stored once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

PIECE_BYTES = 2**20
ACCELERATOR_PIECE_BYTES = 2**24
"""Seeing to a piece takes the host as long for any size, while a fast link waits."""
TOKENS_PER_PIECE = 256
KV_PIECE_BYTES_MAX = 4 * 2**20


@dataclass(frozen=True)
class FlatCut:
    """Runs of ``piece_bytes``, the last one shorter."""

    nbytes: int
    piece_bytes: int

    @property
    def count(self) -> int:
        return -(-self.nbytes // self.piece_bytes)

    @property
    def complete(self) -> int:
        """Pieces that stay as they are when the storage grows: it does not."""
        return self.count

    @property
    def complete_bytes(self) -> int:
        return self.nbytes

    def size(self, index: int) -> int:
        return min(self.piece_bytes, self.nbytes - index * self.piece_bytes)

    def view(self, memory: torch.Tensor, index: int) -> torch.Tensor:
        """The bytes of a piece in ``memory``, all of the storage as uint8."""
        return memory.narrow(0, index * self.piece_bytes, self.size(index))


@dataclass(frozen=True)
class KvCut:
    """Runs of tokens of a key or value cache, which lies as rows (batch x heads) x tokens x head
    dimension: a piece has its tokens of all rows. A cache that grew has the complete pieces of what it
    grew from."""

    rows: int
    tokens: int
    token_bytes: int
    tokens_per_piece: int

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, shape: tuple[int, ...], itemsize: int) -> KvCut:
        """Cut a cache of this shape; the caches of all layers of a model are cut alike."""
        batch, heads, tokens, width = shape
        per_piece = TOKENS_PER_PIECE
        while per_piece > 16 and per_piece * batch * heads * width * itemsize > KV_PIECE_BYTES_MAX:
            per_piece //= 2
        return cls(batch * heads, tokens, width * itemsize, per_piece)

    @property
    def nbytes(self) -> int:
        return self.rows * self.tokens * self.token_bytes

    @property
    def count(self) -> int:
        return -(-self.tokens // self.tokens_per_piece)

    @property
    def complete(self) -> int:
        return self.tokens // self.tokens_per_piece

    @cached_property
    def complete_bytes(self) -> int:
        return self.rows * self.complete * self.tokens_per_piece * self.token_bytes

    def size(self, index: int) -> int:
        tokens = min(self.tokens_per_piece, self.tokens - index * self.tokens_per_piece)
        return self.rows * tokens * self.token_bytes

    def view(self, memory: torch.Tensor, index: int) -> torch.Tensor:
        first = index * self.tokens_per_piece
        tokens = min(self.tokens_per_piece, self.tokens - first)
        return memory.view(self.rows, self.tokens, self.token_bytes).narrow(1, first, tokens)

    def grows_from(self, past: Cut | None) -> bool:
        return (
            isinstance(past, KvCut)
            and past.rows == self.rows
            and past.token_bytes == self.token_bytes
            and past.tokens_per_piece == self.tokens_per_piece
            and past.tokens <= self.tokens
        )


Cut = FlatCut | KvCut


def same_but_tokens(one: torch.Size, other: torch.Size) -> bool:
    """Return whether two shapes of key-value caches differ in the number of tokens only."""
    return len(one) == len(other) and one[:2] == other[:2] and one[3:] == other[3:]
