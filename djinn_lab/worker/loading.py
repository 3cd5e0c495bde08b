"""A restore under way, and the segment that waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from djinn_lab.protocol.worker import Reads
from djinn_lab.worker.parked import Parked, ParkedStorage
from djinn_lab.worker.shared_weights import SharedWeight
from djinn_lab.worker.storages import Storage


def _ignore(reads: Reads) -> None:
    pass


def used_first(parked: Parked, reads: Reads | None) -> list[ParkedStorage]:
    """Return the storages by first use; unused ones come last."""
    if reads is None:
        return list(parked.storages)
    found = [parked.values.get(value, (None, None))[1] for value in reads.values]
    order = {id(item): place for place, item in reversed([*enumerate(found)]) if item is not None}
    return sorted(parked.storages, key=lambda item: order.get(id(item), len(found)))


@dataclass(eq=False)
class WantedValues:
    """``reads``: of the segment that waits for the restore, None for none; any thread may replace it at any
    time. ``notify``: called once for each, when what its first op reads is there and the session is open.
    ``loading``: the restore, once it began."""

    reads: Reads | None = None
    notify: Callable[[Reads], None] = _ignore
    loading: Loading | None = None


@dataclass(eq=False)
class Loading:
    """``reserved_bytes``: counted on the device for it. ``handles``: memory by the id of the parked storage
    that it is for; ``looked_at``: likewise, of weights that were on the device; ``arrived``: ids of those
    that are there whole. ``pending``: those that no piece was copied of, in the order in which they will be.
    ``busy``: its thread is copying a piece now.

    ``reads``: what ``pending`` was ordered by; ``first``: ids of what the first op needs; ``notified``: that
    these are there. ``origin``: what was parked, once the session was opened before all of it is here: kept
    whole until then, so that a copy that fails leaves the session as it was. ``storages``: its restored
    storages, by id; ``weights``: of these, those that no other session can see yet. ``problem``: why the copy
    of an open session ended."""

    items: list[ParkedStorage]
    reserved_bytes: int
    handles: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    looked_at: dict[int, Storage] = field(default_factory=dict)
    busy: bool = False
    arrived: set[int] = field(default_factory=set)
    pending: deque[ParkedStorage] = field(default_factory=deque)
    reads: Reads | None = None
    first: set[int] = field(default_factory=set)
    notified: bool = False
    origin: Parked | None = None
    storages: dict[int, Storage] = field(default_factory=dict)
    weights: dict[str, SharedWeight] = field(default_factory=dict)
    whole: bool = False
    problem: Exception | None = None

    @property
    def open(self) -> bool:
        """Programs may use the session, and what is to be copied arrives under them."""
        return self.origin is not None and not self.whole

    def allocated(self) -> None:
        """Note that memory is allocated: storages with pieces are pending, the others have arrived."""
        self.pending.extend(item for item in self.items if id(item) in self.handles and item.pieces)
        self.arrived = {id(item) for item in self.items} - {id(item) for item in self.pending}

    def arrange(self, reads: Reads, parked: Parked) -> None:
        """Order storages without a copied piece by first use; unused ones come last."""
        pending = {id(item) for item in self.pending}
        self.pending = deque(item for item in used_first(parked, reads) if id(item) in pending)
        found = [parked.values.get(value, (None, None))[1] for value in reads.values]
        self.first = {id(item) for item in found[: reads.first] if item is not None and not item.offloaded}
        self.reads, self.notified = reads, False

    def completes_first(self, ended: Iterable[ParkedStorage]) -> bool:
        """Return whether, with these, all that the first op needs is there."""
        missing = self.first - self.arrived
        return bool(missing) and missing <= {id(item) for item in ended}
