"""Join ops, or tasks, to fewer and larger tasks, so that the graph of tasks has no cycle and nothing waits
for longer than the grain because of it.

A task is joined with the only task that it waits for where nothing else waits for that one. It is joined,
too, with the only task that it waits for, or that waits for it, where both take less than the grain together,
or the task next to nothing. Tasks that are reached over others do not count: with what a residual connection
adds, its block is one chain. All that a task waits for comes before the task that it is joined with, so
joining many at once makes no cycle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from graphlib import TopologicalSorter

TASKS_MAX = 6000
"""The reachability of so many takes some 5 MB."""
NOTHING = 0.1
"""Of the grain: a task that takes less is joined with a long one."""


class _Union:
    """Sets of what is joined, with the seconds of each."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._parent = list(range(len(seconds)))
        self.seconds = list(seconds)

    def find(self, one: int) -> int:
        parent = self._parent
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    def join(self, one: int, other: int) -> None:
        """Join two sets; the first one's name stays."""
        name, second = self.find(one), self.find(other)
        if name != second:
            self._parent[second] = name
            self.seconds[name] += self.seconds[second]

    def join_short(self, one: int, other: int, grain_s: float) -> None:
        """Join two sets where both are short together, or the second next to nothing."""
        first_s, second_s = self.seconds[self.find(one)], self.seconds[self.find(other)]
        if first_s + second_s <= grain_s or second_s < NOTHING * grain_s:
            self.join(one, other)


def joined(
    nodes: Sequence[int], before: Sequence[Sequence[int]], bound: Iterable[Sequence[int]]
) -> list[list[int]]:
    """Return groups of nodes: those that are bound together, and what lies between two of a group. Groups are
    in an order in which they could run. ``before``: of each of the nodes, those that it waits for."""
    place = {node: index for index, node in enumerate(nodes)}
    sets = _Union([0.0] * len(nodes))
    for together in bound:
        for node in together[1:]:
            sets.join(place[together[0]], place[node])
    roots = [sets.find(index) for index in range(len(nodes))]
    needs: dict[int, set[int]] = {root: set() for root in roots}
    for index, waits_for in enumerate(before):
        needs[roots[index]].update(roots[place[one]] for one in waits_for)
    component = _components(needs)
    return _grouped(nodes, [component[root] for root in roots], before, place)


def coarsen(
    groups: Sequence[Sequence[int]],
    before: Sequence[Sequence[int]],
    seconds: Sequence[float],
    grain_s: float,
) -> list[list[int]]:
    """Return fewer groups of nodes. ``before``: of every node, those that it waits for; ``seconds``: of every
    node. Empty where there are too many groups to look at."""
    found = [list(group) for group in groups]
    while True:
        if len(found) > TASKS_MAX:
            return []
        count = len(found)
        for rule in (_chains, _short_after, _short_before):
            found = _joined_by(rule, found, before, seconds, grain_s)
        if len(found) == count:
            return found


class _Reduced:
    """Tasks with only those edges that no longer way replaces."""

    def __init__(self, needs: Sequence[set[int]]) -> None:
        above = [0] * len(needs)
        self.before: list[list[int]] = []
        self.after: list[list[int]] = [[] for _ in needs]
        for task, waits_for in enumerate(needs):
            over = 0
            for one in waits_for:
                over |= above[one]
            direct = [one for one in waits_for if not over >> one & 1]
            self.before.append(direct)
            for one in direct:
                self.after[one].append(task)
                over |= 1 << one
            above[task] = over


def _chains(tasks: _Reduced, sets: _Union, grain_s: float) -> None:
    for task, before in enumerate(tasks.before):
        if len(before) == 1 and len(tasks.after[before[0]]) == 1:
            sets.join(before[0], task)


def _short_after(tasks: _Reduced, sets: _Union, grain_s: float) -> None:
    for task, before in enumerate(tasks.before):
        if len(before) == 1:
            sets.join_short(before[0], task, grain_s)


def _short_before(tasks: _Reduced, sets: _Union, grain_s: float) -> None:
    for task in reversed(range(len(tasks.after))):
        if len(tasks.after[task]) == 1:
            sets.join_short(tasks.after[task][0], task, grain_s)


def _joined_by(
    rule: Callable[[_Reduced, _Union, float], None],
    groups: list[list[int]],
    before: Sequence[Sequence[int]],
    seconds: Sequence[float],
    grain_s: float,
) -> list[list[int]]:
    group_of = {node: number for number, nodes in enumerate(groups) for node in nodes}
    needs = [
        {group_of[one] for node in nodes for one in before[node] if one in group_of} - {number}
        for number, nodes in enumerate(groups)
    ]
    sets = _Union([sum(seconds[node] for node in nodes) for nodes in groups])
    rule(_Reduced(needs), sets, grain_s)
    nodes = sorted(group_of)
    place = {node: index for index, node in enumerate(nodes)}
    inside = [[one for one in before[node] if one in group_of] for node in nodes]
    return _grouped(nodes, [sets.find(group_of[node]) for node in nodes], inside, place)


def _grouped(
    nodes: Sequence[int], names: Sequence[int], before: Sequence[Sequence[int]], place: dict[int, int]
) -> list[list[int]]:
    """Return the nodes of each name, in their order; groups in an order in which they could run."""
    groups: dict[int, list[int]] = {}
    needs: dict[int, set[int]] = {}
    for node, name, waits_for in zip(nodes, names, before, strict=True):
        groups.setdefault(name, []).append(node)
        needs.setdefault(name, set()).update(names[place[one]] for one in waits_for)
    for name, others in needs.items():
        others.discard(name)
    return [groups[name] for name in TopologicalSorter(needs).static_order()]


def _components(needs: dict[int, set[int]]) -> dict[int, int]:
    """Return a name for each node's strongly connected component."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(needs)
    graph.add_edges_from((other, node) for node, others in needs.items() for other in others)
    found = networkx.strongly_connected_components(graph)
    return {node: number for number, nodes in enumerate(found) for node in nodes}
