"""Which orders of a graph's nodes give the same results.

A node runs after whatever made or last wrote what it reads, a write after the reads that came before it,
random ops in their own order, and an op whose sizes depend on data after everything else. A node that writes
memory of before the graph keeps its position between all others: where a run fails, that memory is then what
program order had left. Nodes that share memory stay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from djinn_lab.srg.graph import SRG, Node
from djinn_lab.srg.ops import may_draw


class OptimizationStrategy(Protocol):
    """Propose a better order of execution. A strategy only suggests: the scheduler checks that the order
    gives the same results, plans memory and time for it, and says in the schedule's explanation what it
    changed. ``name`` appears there."""

    @property
    def name(self) -> str: ...

    def propose(self, srg: SRG, order: Sequence[int]) -> Sequence[int]:
        """An order of node ids that replaces ``order``; return ``order`` itself to change nothing."""
        ...


def _is_dynamic(srg: SRG, node: Node) -> bool:
    return any(srg.values[value].shape is None for value in node.outputs)


def dependencies(srg: SRG) -> list[set[int]]:
    """Return, for each node, the nodes that must run before it (direct ones)."""
    needs: list[set[int]] = [set() for _ in srg.nodes]
    for edge in srg.edges:
        if edge.source is not None:
            needs[edge.target].add(edge.source)
    readers: dict[int, list[int]] = {}
    before = {value.storage for value in srg.values.values() if value.producer is None}
    last_random: int | None = None
    last_kept: int | None = None
    for node in srg.nodes:
        if last_kept is not None:
            needs[node.id].add(last_kept)
        if any(srg.values[value].storage in before for value in node.writes):
            needs[node.id].update(range(last_kept or 0, node.id))
            last_kept = node.id
        for value in node.writes:
            storage = srg.values[value].storage
            needs[node.id].update(readers.get(storage, ()))
            readers[storage] = []
        for value in node.inputs:
            readers.setdefault(srg.values[value].storage, []).append(node.id)
        if may_draw(node.op):
            if last_random is not None:
                needs[node.id].add(last_random)
            last_random = node.id
        needs[node.id].discard(node.id)
    if srg.nodes and _is_dynamic(srg, srg.nodes[-1]):
        needs[-1].update(range(len(srg.nodes) - 1))
    return needs


def check_order(srg: SRG, order: Sequence[int]) -> None:
    """Raise ValueError unless running the nodes in ``order`` gives the results of program order."""
    position = {node: index for index, node in enumerate(order)}
    if (
        len(order) != len(srg.nodes)
        or len(position) != len(order)
        or not position.keys() <= set(range(len(order)))
    ):
        raise ValueError(f"an order must name each of the {len(srg.nodes)} nodes once")
    for node, before in enumerate(dependencies(srg)):
        late = [other for other in before if position[other] > position[node]]
        if late:
            raise ValueError(f"node {node} ({srg.nodes[node].op}) must run after node {late[0]}")


class Arrangement(NamedTuple):
    """An order of node ids, and the names of the strategies that changed it."""

    order: tuple[int, ...]
    changed_by: tuple[str, ...] = ()

    def then(self, srg: SRG, strategy: OptimizationStrategy) -> Arrangement:
        """Return what a strategy makes of this order. Raises ValueError where that would change results."""
        proposed = tuple(strategy.propose(srg, self.order))
        if proposed == self.order:
            return self
        check_order(srg, proposed)
        return Arrangement(proposed, (*self.changed_by, strategy.name))


def colocation_groups(srg: SRG) -> tuple[tuple[int, ...], ...]:
    """Return the groups of at least two nodes that produce values in, or write to, common storages; in
    program order."""
    parent: dict[int, int] = {}

    def root(storage: int) -> int:
        while (above := parent.setdefault(storage, storage)) != storage:
            parent[storage] = parent[above]
            storage = above
        return storage

    storage_of = {value.id: value.storage for value in srg.values.values()}
    homes: list[tuple[int, int]] = []
    for node in srg.nodes:
        for place, value in enumerate(node.outputs + node.writes):
            storage = storage_of[value]
            if place == 0:
                home = storage
                homes.append((node.id, home))
            elif storage != home:
                parent[root(storage)] = root(home)
    members: dict[int, list[int]] = {}
    for node_id, home in homes:
        members.setdefault(root(home) if parent else home, []).append(node_id)
    return tuple(tuple(group) for group in members.values() if len(group) > 1)
