"""The memory behind a session's values, and what of it has been stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import torch

from djinn_lab.worker.accelerator.device import is_accelerator
from djinn_lab.worker.cuts import ACCELERATOR_PIECE_BYTES, PIECE_BYTES, Cut, FlatCut
from djinn_lab.worker.executor import Executor, find_executor
from djinn_lab.worker.pieces import Piece, PieceStore

if TYPE_CHECKING:
    from djinn_lab.worker.shared_weights import SharedWeight
    from djinn_lab.worker.values import SessionValues

_NO_MEMORY = torch.UntypedStorage(0)


class Storage:
    """One torch storage of one session. ``references``: values on it. ``version``: counts the ops that
    write it, from before they run. ``tracked``: something besides the running program looks at it (a copy,
    a count), so its end and its writes are announced under the fences' lock. ``settled``: it went through
    a segment unwritten, so storing it is worth while. ``arriving``: a restore is still filling it; no op may
    look at it.

    Most live for one op only, so what is rare has its default in the class."""

    version = 0
    writing = False
    reading = False
    arriving = False
    alive = True
    tracked = False
    settled = False
    cut: Cut | None = None
    chain: Chain | None = None
    tail: Piece | None = None
    session: SessionValues | None = None
    shared: SharedWeight | None = None
    ready_bytes = 0
    stored_bytes = 0
    kv_bytes = 0
    """The last three are this storage's part in its session's counts."""

    def __init__(self, handle: torch.UntypedStorage, key: int, nbytes: int) -> None:
        self.handle = handle
        self.key = key
        self.nbytes = nbytes
        self.references = 0

    def memory(self) -> torch.Tensor:
        """All its bytes as uint8."""
        return torch.empty(0, dtype=torch.uint8, device=self.handle.device).set_(self.handle)

    def let_go(self) -> None:
        """The session has it no longer, and no copy reads it: a copy that comes to this object later keeps no
        memory by that."""
        self.handle = _NO_MEMORY

    def is_filled_by(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor on it is contiguous and takes all its bytes."""
        return tensor.nbytes == self.nbytes and tensor.is_contiguous()

    def pieces(self) -> Cut:
        if self.cut is None:
            size = ACCELERATOR_PIECE_BYTES if is_accelerator(self.handle.device) else PIECE_BYTES
            self.cut = FlatCut(self.nbytes, size)
        return self.cut

    def stored(self, index: int) -> Piece | None:
        """The valid copy of a piece."""
        if index >= self.pieces().complete:
            return self.tail
        chain = self.chain
        return None if chain is None or index >= len(chain.pieces) else chain.pieces[index]


def storage_class(executor: Executor | None) -> type[Storage]:
    """:class:`Storage`, with what ops look at (``version``, ``writing``, ``reading``, ``arriving``,
    ``tracked``) where the extension reads it without the GIL."""
    return Storage if executor is None else _marked_storage()


@cache
def _marked_storage() -> type[Storage]:
    executor = find_executor()
    assert executor is not None
    marks = executor.Marks

    def begin(self: Storage, handle: torch.UntypedStorage, key: int, nbytes: int) -> None:
        marks.__init__(self)
        Storage.__init__(self, handle, key, nbytes)

    return type("MarkedStorage", (marks, Storage), {"__init__": begin, "__doc__": Storage.__doc__})


@dataclass(eq=False)
class Chain:
    """Stored pieces that several storages have in common: sessions with the same weight, or a KV cache and
    what it grew into, which has its complete pieces. ``owner``: the storage that may grow further without
    a chain of its own."""

    owner: Storage | None
    pieces: list[Piece | None] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)

    @property
    def stored_bytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces if piece is not None)

    def put(self, index: int, piece: Piece) -> None:
        while len(self.pieces) <= index:
            self.pieces.append(None)
        assert self.pieces[index] is None
        self.pieces[index] = piece

    def leave(self, storage: Storage, store: PieceStore) -> None:
        """The last one to leave drops the pieces."""
        self.storages.remove(storage)
        if self.owner is storage:
            self.owner = None
        if not self.storages:
            for piece in self.pieces:
                if piece is not None:
                    store.drop(piece)
            self.pieces = []

    def grow(self, past: Storage, grown: Storage, store: PieceStore) -> Chain:
        """The chain of ``grown``, which has the complete pieces of ``past``: this one where ``past`` was
        the last to grow, else a copy."""
        if self.owner is past:
            self.owner = grown
            self.storages.append(grown)
            return self
        common = self.pieces[: past.pieces().complete]
        return Chain(grown, [None if piece is None else store.hold(piece) for piece in common], [grown])
