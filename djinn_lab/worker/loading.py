"""A restore under way."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from djinn_lab.worker.parked import ParkedStorage
from djinn_lab.worker.storages import Storage


@dataclass(eq=False)
class Loading:
    """``reserved_bytes``: counted on the device for it. ``handles``: memory by the id of the parked storage
    that it is for; ``looked_at``: likewise, of weights that were on the device. ``busy``: its thread is
    copying a piece now."""

    items: list[ParkedStorage]
    reserved_bytes: int
    handles: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    looked_at: dict[int, Storage] = field(default_factory=dict)
    busy: bool = False
