"""Which nodes share memory and so must stay together."""

from __future__ import annotations

from djinn_lab.srg.graph import SRG


def colocation_groups(srg: SRG) -> tuple[tuple[int, ...], ...]:
    """Groups of at least two nodes that produce values in, or write to, common storages; in program order."""
    parent: dict[int, int] = {}

    def root(storage: int) -> int:
        while (above := parent.setdefault(storage, storage)) != storage:
            parent[storage] = parent[above]
            storage = above
        return storage

    home: list[int | None] = []
    for node in srg.nodes:
        storages = [srg.values[value].storage for value in (*node.outputs, *node.writes)]
        for other in storages[1:]:
            parent[root(other)] = root(storages[0])
        home.append(storages[0] if storages else None)
    members: dict[int, list[int]] = {}
    for node_id, storage in enumerate(home):
        if storage is not None:
            members.setdefault(root(storage), []).append(node_id)
    return tuple(tuple(group) for group in members.values() if len(group) > 1)
