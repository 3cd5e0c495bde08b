"""What all sessions of a device have in common: fences, the pieces on host and disk, shared weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from djinn_lab.worker.fences import Fences
from djinn_lab.worker.host_arena import HostArena
from djinn_lab.worker.pieces import PieceStore
from djinn_lab.worker.shared_weights import SharedWeights


@dataclass(frozen=True)
class TierLimits:
    """Limits of the host and disk tiers, from the worker's command line; 0 bytes: no such tier.
    ``link_bytes_per_second``: of the throttle that stands for a CPU device's link, 0 for none."""

    host_bytes: int = 0
    host_directory: Path | None = None
    disk_bytes: int = 0
    disk_directory: Path | None = None
    link_bytes_per_second: float = 0.0


@dataclass(frozen=True)
class Tiers:
    store: PieceStore = field(default_factory=lambda: PieceStore(HostArena(0, None, "")))
    fences: Fences = field(default_factory=Fences)
    weights: SharedWeights = field(default_factory=SharedWeights)
