"""Which memory is alive when.

Liveness is a matter of storages, not of values: a view keeps its base alive. What the session holds already
stays throughout; what is uploaded is there from the start. A storage that is produced or uploaded lives
until the last node that touches it, or to the end when one of its values is kept or fetched. Workspaces
inside ops are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from djinn_lab.srg.graph import SRG


class MemoryPlan(msgspec.Struct, frozen=True):
    """All in bytes. ``resident_bytes``: at the start. ``peak_position``: where in the order the peak occurs,
    None for an empty graph. ``live_bytes``: by position in the order, while the node runs. ``kept_bytes``:
    alive after the end.
    """

    resident_bytes: int
    peak_bytes: int
    peak_position: int | None
    kept_bytes: int
    live_bytes: tuple[int, ...]


def storage_bytes(srg: SRG) -> dict[int, int]:
    """The size of each storage: that of the widest value that lies in it."""
    sizes: dict[int, int] = {}
    for value in srg.values.values():
        if value.span_bytes > sizes.get(value.storage, -1):
            sizes[value.storage] = value.span_bytes
    return sizes


def plan_memory(srg: SRG, order: Sequence[int]) -> MemoryPlan:
    """Liveness of ``srg`` when its nodes run in ``order``."""
    values, sizes = srg.values, storage_bytes(srg)
    resident = {value.storage for value in values.values() if value.producer is None}
    resident_bytes = sum(sizes[storage] for storage in resident)
    last_touch: dict[int, int] = {}
    for position, node_id in enumerate(order):
        node = srg.nodes[node_id]
        for value in node.inputs:
            last_touch[values[value].storage] = position
        for value in node.outputs:
            last_touch[values[value].storage] = position
    held = {value.storage for value in values.values() if value.producer is None and not value.upload_bytes}
    lasting = held | {values[value].storage for value in (*srg.keep, *srg.fetch)}
    freed_after: dict[int, int] = {}
    for storage, position in last_touch.items():
        if storage not in lasting:
            freed_after[position] = freed_after.get(position, 0) + sizes[storage]
    live, alive, live_bytes = resident_bytes, set(resident), []
    for position, node_id in enumerate(order):
        for value in srg.nodes[node_id].outputs:
            storage = values[value].storage
            if storage not in alive:
                alive.add(storage)
                live += sizes[storage]
        live_bytes.append(live)
        live -= freed_after.get(position, 0)
    peak = max(live_bytes, default=resident_bytes)
    return MemoryPlan(
        resident_bytes=resident_bytes,
        peak_bytes=peak,
        peak_position=live_bytes.index(peak) if live_bytes else None,
        kept_bytes=live,
        live_bytes=tuple(live_bytes),
    )
