"""What a schedule is made of."""

from __future__ import annotations

from typing import Literal

import msgspec

from djinn_lab.scheduler.costs import Bound
from djinn_lab.srg.program import Phase


class ScheduledNode(msgspec.Struct, frozen=True, gc=False):
    """A node of the graph at its place. Times are predicted seconds since the segment began on the device."""

    node: int
    op: str
    module: str
    line: int
    phase: Phase
    start_s: float
    end_s: float
    bound: Bound
    live_bytes: int


class PlannedTransfer(msgspec.Struct, frozen=True):
    """Bytes between client and device: an ``upload`` before the first node, a ``fetch`` after the last.
    ``node``: the first to read what was uploaded, or the one that produced what is fetched; None when there
    is none."""

    value: int
    direction: Literal["upload", "fetch"]
    nbytes: int
    start_s: float
    end_s: float
    node: int | None
