"""Blobs that were loaded once for all sessions on a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from djinn_lab.worker.storages import Chain, Storage

if TYPE_CHECKING:
    from djinn_lab.worker.values import SessionValues


@dataclass(eq=False)
class SharedWeight:
    """Memory that no op writes: an op that would gets its session a copy first. Every session looks at it
    through a torch storage of its own. ``holders``: with the storages through which they do. ``taken``: the
    last of them has the memory for itself now. ``hidden``: it is still being copied, and no other session
    finds it."""

    digest: str
    handle: torch.UntypedStorage
    nbytes: int
    chain: Chain
    taken: bool = False
    hidden: bool = False
    holders: list[tuple[SessionValues, Storage]] = field(default_factory=list)

    def alias(self) -> torch.UntypedStorage:
        """The same memory as another storage; this object must outlive it."""
        made: object = torch._C._construct_storage_from_data_pointer(
            self.handle.data_ptr(), self.handle.device, self.nbytes
        )
        assert isinstance(made, torch.UntypedStorage)
        return made

    def holding_sessions(self) -> list[SessionValues]:
        """Each once, though it may have loaded the blob twice."""
        return list({id(session): session for session, _ in self.holders}.values())


class SharedWeights:
    """By digest. All methods are called with the fences' lock held."""

    def __init__(self) -> None:
        self._weights: dict[str, SharedWeight] = {}
        self.shared_bytes = 0

    def find(self, digest: str) -> SharedWeight | None:
        return self._weights.get(digest)

    def add(self, digest: str, handle: torch.UntypedStorage, hidden: bool = False) -> SharedWeight:
        weight = SharedWeight(digest, handle, handle.nbytes(), Chain(None), hidden=hidden)
        if not hidden:
            self._weights[digest] = weight
        return weight

    def show(self, weight: SharedWeight) -> None:
        """Let sessions find the weight, which is there now. If a weight of equal bytes came meanwhile, that
        one is found."""
        if weight.hidden and weight.holders:
            self._weights.setdefault(weight.digest, weight)
        weight.hidden = False

    def join(self, weight: SharedWeight, session: SessionValues, storage: Storage) -> None:
        self._count(weight, -1)
        weight.holders.append((session, storage))
        self._count(weight, 1)

    def leave(self, weight: SharedWeight, session: SessionValues, storage: Storage) -> bool:
        """True when no session holds it any more, so its memory is free."""
        self._count(weight, -1)
        weight.holders.remove((session, storage))
        self._count(weight, 1)
        if weight.holders:
            return False
        if self._weights.get(weight.digest) is weight:
            del self._weights[weight.digest]
        return True

    def take_over(self, weight: SharedWeight) -> bool:
        """The only storage that looks at it is about to have its memory; False when there are others."""
        if len(weight.holders) > 1:
            return False
        weight.taken = True
        if self._weights.get(weight.digest) is weight:
            del self._weights[weight.digest]
        return True

    def _count(self, weight: SharedWeight, sign: int) -> None:
        """Bytes with one holder are its own; with more holders they are shared."""
        sessions = weight.holding_sessions()
        if len(sessions) == 1:
            sessions[0].sole_bytes += sign * weight.nbytes
        elif sessions:
            self.shared_bytes += sign * weight.nbytes
