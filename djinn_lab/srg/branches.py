"""Which parts of a program could run side by side?

Three sets of ops cover it:

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from djinn_lab.srg.precedence import Edges, Facts, touched_storages
from djinn_lab.srg.program import Program
from djinn_lab.srg.wiring import trace_wiring

PRELUDE, EPILOGUE, COPIED = -1, -2, -3
DEPTHS = (0, 1, 4, 16, 64)
LOOKS_MAX = 200_000
"""Ops looked at in all, over the depths that are tried; a longer program is tried at fewer."""
CHAIN_SHARE = 0.9
"""Where the longest way through the graph takes more of all its seconds, no split is worth looking for."""


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


class BranchFinder:
    """For one valid program; ``seconds``: of every op."""

    def __init__(self, program: Program, seconds: Sequence[float]) -> None:
        self._seconds = seconds
        self._facts = facts = Facts(trace_wiring(program))
        self._edges = Edges(facts)
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


@dataclass(slots=True)
class _Components:
    """Ops without a place yet, by component: a union-find. ``places``: None for those."""

    places: list[int | None]
    edges: Edges
    parent: list[int]

    def __init__(self, places: list[int | None], edges: Edges) -> None:
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

    def views_first(self, facts: Facts) -> None:
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
