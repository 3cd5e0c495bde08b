"""What a device offloads while a graph runs there that needs more memory than it has."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.scheduler.memory_plan import storage_bytes
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.liveness import last_touches
from djinn_lab.srg.offload import OffloadPlan, PlannedOp, plan_offload


def offload_plan(srg: SRG, order: Sequence[int], capacity_bytes: int) -> OffloadPlan | None:
    """Plan the nodes in ``order`` with ``capacity_bytes`` of memory. None: one of them needs more by
    itself."""
    values = srg.values
    nodes = [srg.nodes[node] for node in order]
    touched = [[values[value].storage for value in (*node.inputs, *node.outputs)] for node in nodes]
    loaded = {value.storage: None for value in values.values() if value.producer is None}
    held = {value.storage for value in values.values() if value.producer is None and not value.upload_bytes}
    lasting = held | {values[value].storage for value in (*srg.keep, *srg.fetch)}
    freed: dict[int, list[int]] = {}
    for storage, position in last_touches(touched).items():
        if storage not in lasting:
            freed.setdefault(position, []).append(storage)
    known, ops = set(loaded), list[PlannedOp]()
    for position, node in enumerate(nodes):
        made = {values[value].storage for value in node.outputs} - known
        known |= made
        written = {values[value].storage for value in node.writes}
        read = [storage for storage in dict.fromkeys(touched[position]) if storage not in made]
        ops.append(PlannedOp(read, made, written, freed.get(position, ())))
    fetched = [values[value].storage for value in srg.fetch]
    return plan_offload(ops, fetched, loaded, storage_bytes(srg), capacity_bytes)
