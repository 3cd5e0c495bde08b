"""Plan the memory of a schedule: which bytes are alive while each node runs.

What the session holds already stays throughout; what is uploaded is there from the start. A storage that is
produced or uploaded lives until the last node that touches it, or to the end when one of its values is kept
or fetched.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from djinn_lab.srg.graph import SRG
from djinn_lab.srg.liveness import live_bytes


class MemoryPlan(msgspec.Struct, frozen=True):
    """The memory of a schedule. All in bytes. ``resident_bytes``: at the start. ``peak_position``: where in
    the order the peak occurs, None for an empty graph. ``live_bytes``: by position in the order, while the
    node runs. ``kept_bytes``: alive after the end."""

    resident_bytes: int
    peak_bytes: int
    peak_position: int | None
    kept_bytes: int
    live_bytes: tuple[int, ...]


def storage_bytes(srg: SRG) -> dict[int, int]:
    """Return the size of each storage: that of the widest value that lies in it."""
    sizes: dict[int, int] = {}
    for value in srg.values.values():
        if value.span_bytes > sizes.get(value.storage, -1):
            sizes[value.storage] = value.span_bytes
    return sizes


def plan_memory(srg: SRG, order: Sequence[int]) -> MemoryPlan:
    """Plan the memory of ``srg`` when its nodes run in ``order``."""
    values, sizes = srg.values, storage_bytes(srg)
    sources = [value for value in values.values() if value.producer is None]
    resident = {value.storage for value in sources}
    held = {value.storage for value in sources if not value.upload_bytes}
    storage_of = {value.id: value.storage for value in values.values()}.__getitem__
    nodes = [srg.nodes[node] for node in order]
    live = live_bytes(
        (map(storage_of, node.inputs) for node in nodes),
        (map(storage_of, node.outputs) for node in nodes),
        sizes,
        resident,
        held | {values[value].storage for value in (*srg.keep, *srg.fetch)},
    )
    resident_bytes = sum(sizes[storage] for storage in resident)
    peak = max(live.during, default=resident_bytes)
    return MemoryPlan(
        resident_bytes=resident_bytes,
        peak_bytes=peak,
        peak_position=live.during.index(peak) if live.during else None,
        kept_bytes=live.after,
        live_bytes=tuple(live.during),
    )
