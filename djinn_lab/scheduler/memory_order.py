"""Propose an order of nodes whose peak of memory is lower than that of the order at hand.

List scheduling (Graham, Bell System Technical Journal 45, 1966). Of the nodes whose prerequisites have run,
the one that leaves the fewest bytes alive runs next. Ties go to the one that needs the fewest bytes while it
runs, then to the one with the most FLOPs on the longest path to the end, then to program order. The same is
tried backwards, from the last node to the first: that delays what is kept to the end, which the first way
begins with. To find the lowest peak of all is NP-complete (Sethi, SIAM J. Comput. 4, 1975). So an order that
was found is used only where its peak is lower.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

from djinn_lab.scheduler.memory_plan import plan_memory, storage_bytes
from djinn_lab.scheduler.ordering import dependencies
from djinn_lab.srg.graph import SRG

NODES_MAX = 50_000
"""A longer graph stays in its order: looking at it would take seconds."""
_Urgency = tuple[int, int, int, int]
"""Bytes left alive, bytes while it runs, negative FLOPs to the end, node id: the smallest goes first."""


class MemoryOrder:
    """An :class:`~djinn_lab.scheduler.ordering.OptimizationStrategy` that lowers the predicted peak."""

    name = "order_for_memory"

    def propose(self, srg: SRG, order: Sequence[int]) -> Sequence[int]:
        """Return an order with a lower predicted peak, or ``order`` itself."""
        if len(srg.nodes) > NODES_MAX:
            return order
        return min((order, *list_schedules(srg)), key=lambda one: plan_memory(srg, one).peak_bytes)


def list_schedules(srg: SRG) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the orders that list scheduling finds, forwards and backwards. Both keep results equal."""
    values = srg.values
    before = dependencies(srg)
    after: list[set[int]] = [set() for _ in srg.nodes]
    for node, prerequisites in enumerate(before):
        for one in prerequisites:
            after[one].add(node)
    touched = [{values[value].storage for value in (*node.inputs, *node.outputs)} for node in srg.nodes]
    given = {value.storage for value in values.values() if value.producer is None}
    held = {value.storage for value in values.values() if value.producer is None and not value.upload_bytes}
    lasting = held | {values[value].storage for value in (*srg.keep, *srg.fetch)}
    sizes, nodes = storage_bytes(srg), range(len(srg.nodes))
    to_the_end, to_the_start = _longest(srg, after, reversed(nodes)), _longest(srg, before, nodes)
    forwards = _ListScheduling(touched, sizes, to_the_end, before, after, given, lasting).order()
    backwards = _ListScheduling(touched, sizes, to_the_start, after, before, lasting, given).order()
    return tuple(forwards), tuple(reversed(backwards))


def _longest(srg: SRG, dependents: Sequence[Collection[int]], nodes: Iterable[int]) -> list[int]:
    """Return the FLOPs of the longest path that begins with each node. ``nodes``: dependents first."""
    longest = [0] * len(srg.nodes)
    for node in nodes:
        longest[node] = srg.nodes[node].flops + max((longest[one] for one in dependents[node]), default=0)
    return longest


class _ListScheduling:
    """One traversal of a graph, from what has no ``prerequisites``. ``touched``: storages by node. ``alive``:
    storages from the beginning, ``lasting``: to the end; the others live while nodes that touch them run.
    ``to_the_end``: FLOPs of the longest path that begins with each node.

    A node's urgency only grows while the node waits: a storage that it touches has no other node left that
    touches it, or has come alive. The node is queued again then, and its older entries are skipped.
    """

    def __init__(
        self,
        touched: Sequence[Collection[int]],
        sizes: Mapping[int, int],
        to_the_end: Sequence[int],
        prerequisites: Sequence[Collection[int]],
        dependents: Sequence[Collection[int]],
        alive: Collection[int],
        lasting: Collection[int],
    ) -> None:
        self._touched, self._sizes = touched, sizes
        self._touchers: dict[int, list[int]] = {}
        for node, storages in enumerate(touched):
            for storage in storages:
                self._touchers.setdefault(storage, []).append(node)
        self._left = {storage: len(nodes) for storage, nodes in self._touchers.items()}
        self._alive, self._lasting = set(alive), lasting
        self._dependents = dependents
        self._waiting_for = [len(before) for before in prerequisites]
        self._to_the_end = to_the_end
        self._queue: list[_Urgency] = []

    def order(self) -> list[int]:
        for node, count in enumerate(self._waiting_for):
            if count == 0:
                self._enqueue(node)
        order: list[int] = []
        done = [False] * len(self._waiting_for)
        while self._queue:
            node = heapq.heappop(self._queue)[-1]
            if done[node]:
                continue
            done[node] = True
            order.append(node)
            for dependent in self._dependents[node]:
                self._waiting_for[dependent] -= 1
            near = {*self._dependents[node], *self._run(node)}
            for one in near:
                if self._waiting_for[one] == 0 and not done[one]:
                    self._enqueue(one)
        return order

    def _enqueue(self, node: int) -> None:
        made = sum(self._sizes[one] for one in self._touched[node] if one not in self._alive)
        freed = sum(
            self._sizes[one]
            for one in self._touched[node]
            if self._left[one] == 1 and one not in self._lasting
        )
        heapq.heappush(self._queue, (made - freed, made, -self._to_the_end[node], node))

    def _run(self, node: int) -> list[int]:
        """Note that the node ran, and return the nodes whose urgency that may have changed."""
        changed: list[int] = []
        for storage in self._touched[node]:
            self._left[storage] -= 1
            born = storage not in self._alive
            self._alive.add(storage)
            if born or self._left[storage] == 1:
                changed += self._touchers[storage]
        return changed
