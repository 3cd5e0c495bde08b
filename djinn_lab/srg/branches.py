"""Which parts of a program could run side by side?

A program is looked at as a graph of ops with three kinds of edges, by storage: read after write, write after
read, write after write. Three sets of ops cover it:

- the *prelude* (closed under predecessors): what several branches build on, and every op that draws random
  numbers, since there is one stream of them and draws happen in recorded order. It writes nothing that the
  session held before, so a program that fails later can be run again from the beginning.
- *branches*: what is left falls apart into components without an edge between them.
- the *epilogue* (closed under successors): what joins branches, and what must happen where the session lives.

Forks and joins inside a branch (a residual connection, the backward pass) look locally like those between
branches. So prelude and epilogue are tried at several depths, counted in ops from the first and from the
last; what turns out to belong to one branch alone goes back to it; and the cheapest split is taken, costs
being seconds of run time and the branches laid over the devices longest first (Graham, SIAM J. Appl. Math.
17, 1969).

Views of sent values that no node writes cost nothing and are *copied*: every part makes its own.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from djinn_lab.srg.ops import random_ops
from djinn_lab.srg.program import Program
from djinn_lab.srg.wiring import Wiring, trace_wiring

PRELUDE, EPILOGUE, COPIED = -1, -2, -3
DEPTHS = (0, 1, 4, 16, 64)
LOOKS_MAX = 200_000
"""Ops looked at in all, over the depths that are tried; a longer program is tried at fewer."""
CHAIN_SHARE = 0.9
"""Where the longest way through the graph takes more of all its seconds, no split is worth looking for."""
_CHANGES_LAYOUT = frozenset(
    ("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_", "detach_")
)


class Branches(msgspec.Struct, frozen=True):
    """A split of a program into branches. ``places``: of every op, PRELUDE, EPILOGUE, COPIED or the number of
    its branch. ``home_s``: seconds of prelude and epilogue; ``branch_s``: of each branch."""

    places: tuple[int, ...]
    home_s: float
    branch_s: tuple[float, ...]

    def makespan_s(self, devices: int) -> float:
        """Return the makespan of the ops alone, on so many devices."""
        return self.home_s + max((load_s for load_s, _ in self._laid(devices)), default=0.0)

    def groups(self, devices: int) -> list[list[int]]:
        """Return the branches of every device, in their order; none is empty."""
        return [sorted(branches) for _, branches in self._laid(devices) if branches]

    def _laid(self, devices: int) -> list[tuple[float, list[int]]]:
        loads: list[tuple[float, int]] = [(0.0, device) for device in range(devices)]
        laid: list[list[int]] = [[] for _ in range(devices)]
        for branch in sorted(range(len(self.branch_s)), key=lambda one: (-self.branch_s[one], one)):
            load_s, device = heapq.heappop(loads)
            laid[device].append(branch)
            heapq.heappush(loads, (load_s + self.branch_s[branch], device))
        return [(load_s, laid[device]) for load_s, device in sorted(loads, key=lambda load: load[1])]


def touched_storages(wiring: Wiring, node: int) -> set[int]:
    """Return the storages that the op makes, looks at through a result, or writes."""
    made = {storage for storage in wiring.program.nodes[node].storages if storage is not None}
    return made | {wiring.storages[value] for value in wiring.writes[node]}


class BranchFinder:
    """For one valid program; ``seconds``: of every op."""

    def __init__(self, program: Program, seconds: Sequence[float]) -> None:
        self._seconds = seconds
        self._facts = facts = _Facts(trace_wiring(program))
        self._edges = _Edges(facts)
        self._above, self._below = self._edges.depths()

    def best(self, devices: int) -> Branches | None:
        """Return the split with the shortest makespan on so many devices; None: there are no branches."""
        best: Branches | None = None
        if self._longest_way_s() > CHAIN_SHARE * sum(self._seconds):
            return None
        nodes = max(1, len(self._seconds))
        looks = max(4, LOOKS_MAX // nodes)
        depths = sorted(
            ((above, below) for above in DEPTHS for below in DEPTHS), key=lambda one: (sum(one), one)
        )
        goal_s = sum(self._seconds) / devices * 1.05
        for above, below in depths[:looks]:
            found = self.at(above, below)
            if found is None or len(found.branch_s) < 2:
                continue
            if best is None or found.makespan_s(devices) < best.makespan_s(devices):
                best = found
            if best.makespan_s(devices) <= goal_s:
                break
        return best

    def _longest_way_s(self) -> float:
        ends_s = [0.0] * len(self._seconds)
        for node, seconds in enumerate(self._seconds):
            ends_s[node] = seconds + max((ends_s[one] for one in self._edges.before[node]), default=0.0)
        return max(ends_s, default=0.0)

    def at(self, above: int, below: int) -> Branches | None:
        """Return branches with ops up to so deep from the first in the prelude, and from the last in the
        epilogue; None where random numbers are drawn from what cannot be in the prelude."""
        facts, edges = self._facts, self._edges
        if facts.torn:
            return None
        places: list[int | None] = [COPIED if copied else None for copied in facts.copied]
        must = edges.closed_above(facts.random)
        if any(facts.stays[node] for node in must):
            return None
        last = edges.closed_below({node for node, stays in enumerate(facts.at_end) if stays})
        if last & must:
            return None
        for node, place in enumerate(places):
            if place is None:
                early = self._above[node] < above and not facts.stays[node] and node not in last
                early = early and all(places[one] == PRELUDE for one in edges.before[node])
                places[node] = PRELUDE if early or node in must else None
        for node, place in enumerate(places):
            if place is None and (self._below[node] < below or node in last):
                places[node] = EPILOGUE
        found = _Components(places, edges)
        found.give_back_prelude(must)
        found.give_back_epilogue(last)
        found.views_first(facts)
        return self._result(found.numbered())

    def _result(self, places: Sequence[int]) -> Branches:
        home_s, branch_s = 0.0, [0.0] * (1 + max(places, default=-1))
        for place, seconds in zip(places, self._seconds, strict=True):
            if place >= 0:
                branch_s[place] += seconds
            elif place != COPIED:
                home_s += seconds
        return Branches(tuple(places), home_s, tuple(branch_s))


class _Facts:
    """Per op: ``copied``; ``stays``: it writes what the session held before; ``at_end``: it must be in the
    epilogue. ``random``: those that draw. ``held``: storages of the session. ``torn``: memory that is
    written came in several pieces."""

    def __init__(self, wiring: Wiring) -> None:
        program = wiring.program
        self.wiring = wiring
        self.held = {s.storage for s in program.sources if s.held}
        sent = {source.storage for source in program.sources} - self.held
        storages = wiring.storages
        sizes = Counter(source.storage for source in program.sources if source.storage in sent)
        self.written = {storages[value] for values in wiring.writes for value in values}
        still = sent - self.written
        self.torn = any(sizes[storage] > 1 for storage in self.written)
        self.copied = [
            view
            and any(storage is not None for storage in node.storages)
            and all(storages[value] in still for value in node.inputs if value is not None)
            for node, view in zip(program.nodes, wiring.views, strict=True)
        ]
        self.stays = [any(storages[value] in self.held for value in values) for values in wiring.writes]
        changes = [name in _CHANGES_LAYOUT or "resize" in name for name in wiring.names]
        self.at_end = [node.dynamic or changes[node.template] for node in program.nodes]
        draws = [template.op in random_ops() for template in program.templates]
        drawing = program.rng_state is not None
        self.random = {i for i, node in enumerate(program.nodes) if drawing and draws[node.template]}


class _Edges:
    """``before``, ``after``: of every op that is not copied."""

    def __init__(self, facts: _Facts) -> None:
        wiring, nodes = facts.wiring, facts.wiring.program.nodes
        self.before: list[list[int]] = [[] for _ in nodes]
        self.after: list[list[int]] = [[] for _ in nodes]
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        known = {source.storage for source in wiring.program.sources}
        for index, node in enumerate(nodes):
            if facts.copied[index]:
                continue
            touched = {wiring.storages[value] for value in node.inputs if value is not None}
            made = {storage for storage in node.storages if storage is not None}
            written = {wiring.storages[value] for value in wiring.writes[index]} | (made - known)
            known |= made
            found: dict[int, None] = {}
            for storage in touched | made:
                if storage in writer:
                    found[writer[storage]] = None
                if storage in written:
                    found.update(dict.fromkeys(readers.pop(storage, ())))
                    writer[storage] = index
                else:
                    readers.setdefault(storage, []).append(index)
            self.before[index] = list(found)
            for one in found:
                self.after[one].append(index)

    def depths(self) -> tuple[list[int], list[int]]:
        """Ops on the longest way from a first op to each, and from each to a last."""
        above = [0] * len(self.before)
        for node, before in enumerate(self.before):
            above[node] = 1 + max((above[one] for one in before), default=-1)
        below = [0] * len(self.before)
        for node in reversed(range(len(self.after))):
            below[node] = 1 + max((below[one] for one in self.after[node]), default=-1)
        return above, below

    def closed_above(self, nodes: set[int]) -> set[int]:
        return _closed(nodes, self.before)

    def closed_below(self, nodes: set[int]) -> set[int]:
        return _closed(nodes, self.after)


def _closed(nodes: set[int], neighbours: Sequence[Sequence[int]]) -> set[int]:
    found, todo = set(nodes), list(nodes)
    while todo:
        fresh = [one for one in neighbours[todo.pop()] if one not in found]
        found.update(fresh)
        todo += fresh
    return found


@dataclass(slots=True)
class _Components:
    """Ops without a place yet, by component: a union-find. ``places``: None for those."""

    places: list[int | None]
    edges: _Edges
    parent: list[int]

    def __init__(self, places: list[int | None], edges: _Edges) -> None:
        self.places, self.edges = places, edges
        self.parent = list(range(len(places)))
        for node, place in enumerate(places):
            if place is None:
                for one in edges.before[node]:
                    if places[one] is None:
                        self._join(node, one)

    def _find(self, node: int) -> int:
        parent = self.parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def _join(self, one: int, other: int) -> None:
        self.parent[self._find(one)] = self._find(other)

    def _around(self, nodes: Sequence[int]) -> set[int]:
        return {self._find(node) for node in nodes if self.places[node] is None}

    def give_back_prelude(self, must: set[int]) -> None:
        """Move ops of the prelude on which only one branch builds to that branch."""
        for node in reversed(range(len(self.places))):
            if self.places[node] != PRELUDE or node in must:
                continue
            after = self.edges.after[node]
            if any(self.places[one] == PRELUDE for one in after):
                continue
            self._give_back(node, self._around(after))

    def give_back_epilogue(self, last: set[int]) -> None:
        """Move ops of the epilogue that build on one branch only to that branch."""
        for node, place in enumerate(self.places):
            if place != EPILOGUE or node in last:
                continue
            before = self.edges.before[node]
            if any(self.places[one] == EPILOGUE for one in before):
                continue
            self._give_back(node, self._around(before))

    def _give_back(self, node: int, around: set[int]) -> None:
        if len(around) == 1:
            self.places[node] = None
            self._join(node, around.pop())

    def views_first(self, facts: _Facts) -> None:
        """A view of what is at home is made at home: made elsewhere, it would be one of a copy. So, too,
        where only the epilogue writes what was sent along."""
        wiring = facts.wiring
        in_branches = (wiring.writes[node] for node, place in enumerate(self.places) if place is None)
        home = facts.held | facts.written
        home -= {wiring.storages[value] for values in in_branches for value in values} - facts.held
        for node, place in enumerate(self.places):
            record = wiring.program.nodes[node]
            if place == PRELUDE:
                home |= touched_storages(wiring, node)
            elif place is None and wiring.views[node]:
                storages = {wiring.storages[value] for value in record.inputs if value is not None}
                if storages <= home and all(self.places[one] == PRELUDE for one in self.edges.before[node]):
                    self.places[node] = PRELUDE

    def numbered(self) -> list[int]:
        return list(self._numbers())

    def _numbers(self) -> Iterator[int]:
        numbers: dict[int, int] = {}
        for node, place in enumerate(self.places):
            if place is not None:
                yield place
            else:
                yield numbers.setdefault(self._find(node), len(numbers))
