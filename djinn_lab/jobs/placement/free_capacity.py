"""Free capacity by node, and the placement of requests on it.

Equal nodes are kept together (:mod:`~djinn_lab.jobs.placement.node_kinds`), so the cost of a decision
grows with how *different* the nodes are, not with their number. A transaction is tried in place:
:meth:`FreeCapacity.checkpoint`, any number of takes and gives, then :meth:`FreeCapacity.rollback` or
:meth:`FreeCapacity.commit`; marks nest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import count

from msgspec.structs import replace

from djinn_lab.jobs.placement.feasibility import EverFits, Misfit, Placed, ever_fits, misfit
from djinn_lab.jobs.placement.filters import Asked, asked_of_nodes, excluded_by
from djinn_lab.jobs.placement.free import Free, empty, given, members_fitting, taken
from djinn_lab.jobs.placement.nearness import Nearness
from djinn_lab.jobs.placement.node_kinds import NodeGroup, NodeKind, nameless
from djinn_lab.jobs.placement.scores import ScoreInput
from djinn_lab.jobs.placement.scoring import DEFAULT, Scoring
from djinn_lab.jobs.placement.spread import FirstOf, NodeCandidate, node_size, spread
from djinn_lab.jobs.request import ComputeNode, Demand, Where

SCORES_KEPT_MAX = 200_000


class FreeCapacity:
    def __init__(self, nodes: Iterable[ComputeNode] = ()) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._nodes: dict[int, ComputeNode] = {}
        self._free: dict[str, Free] = {}
        self._kind_of: dict[int, NodeKind] = {}
        self._kinds: dict[ComputeNode, NodeKind] = {}
        self._eligible: dict[Asked, list[NodeKind]] = {}
        self._scores: dict[tuple[str, int, Free, Demand, int, float], float] = {}
        self._kind_numbers = count()
        self._undo: list[tuple[str, Free]] = []
        self._marks = 0
        for node in nodes:
            self.set_node(node)

    # -- nodes ---------------------------------------------------------------------------------------------

    def set_node(self, node: ComputeNode) -> None:
        """Add a node, or change a known one; what it holds stays."""
        assert not self._marks, "nodes do not change inside a transaction"
        number = self._numbers.get(node.node)
        if number is None:
            number = self._numbers[node.node] = len(self._names)
            self._names.append(node.node)
            free = empty(node)
        else:
            free = self._resized(number, node)
            self._leave(number, self._free[node.node])
        self._nodes[number] = node
        kind = self._kinds.get(nameless(node))
        if kind is None:
            kind = self._kinds[nameless(node)] = NodeKind(node, next(self._kind_numbers))
            self._eligible.clear()
        self._kind_of[number] = kind
        self._free[node.node] = free
        kind.add(number, free)

    def remove_node(self, name: str) -> None:
        """Remove a node; what it held is gone with it and must not be given back."""
        assert not self._marks, "nodes do not change inside a transaction"
        number = self._number(name)
        self._leave(number, self._free.pop(name))
        del self._nodes[number], self._kind_of[number], self._numbers[name]

    def _resized(self, number: int, node: ComputeNode) -> Free:
        before, free = self._nodes[number], self._free[node.node]
        return free._replace(
            devices=free.devices + node.devices - before.devices,
            cpu_milli=free.cpu_milli + node.cpu_milli - before.cpu_milli,
            memory_mib=free.memory_mib + node.memory_mib - before.memory_mib,
        )

    def _leave(self, number: int, free: Free) -> None:
        kind = self._kind_of[number]
        kind.drop(number, free)
        if not kind.size:
            del self._kinds[kind.node]
            self._eligible.clear()

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            raise KeyError(f"there is no node {name!r} in this pool")
        return number

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    @property
    def nodes(self) -> list[ComputeNode]:
        return list(self._nodes.values())

    def node(self, name: str) -> ComputeNode:
        return self._nodes[self._number(name)]

    def free(self, name: str) -> Free:
        if name not in self._free:
            raise KeyError(f"there is no node {name!r} in this pool")
        return self._free[name]

    def frees(self) -> dict[str, Free]:
        """Return the free capacity of every node, as of now."""
        return self._free.copy()

    def kind(self, name: str) -> NodeKind:
        return self._kind_of[self._number(name)]

    @property
    def kinds(self) -> list[NodeKind]:
        return list(self._kinds.values())

    @property
    def devices(self) -> int:
        """Devices of nodes where something may start."""
        return sum(kind.size * kind.node.devices for kind in self._kinds.values() if kind.usable)

    @property
    def devices_free(self) -> int:
        """Wholly free devices of nodes where something may start."""
        free = 0
        for kind in self._kinds.values():
            if kind.usable:
                free += kind.free_devices
        return free

    # -- capacity ------------------------------------------------------------------------------------------

    def take(self, demand: Demand, where: Where) -> None:
        for name, members in where:
            free = self.free(name)
            assert members <= members_fitting(free, demand), (name, free, demand, members)
            self._change(name, taken(free, demand, members))

    def give(self, demand: Demand, where: Where) -> None:
        for name, members in where:
            self._change(name, given(self.free(name), demand, members))

    def _change(self, name: str, free: Free) -> None:
        if self._marks:
            self._undo.append((name, self._free[name]))
        self._put(name, free)

    def _put(self, name: str, free: Free) -> None:
        number = self._numbers[name]
        kind = self._kind_of[number]
        kind.drop(number, self._free[name])
        kind.add(number, free)
        self._free[name] = free

    def checkpoint(self) -> int:
        """Return a mark to roll back to."""
        self._marks += 1
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Restore everything as it was at the mark."""
        while len(self._undo) > mark:
            self._put(*self._undo.pop())
        self._close()

    def commit(self, mark: int) -> None:
        """Keep what happened since the mark, unless an outer mark is rolled back."""
        assert mark <= len(self._undo)
        self._close()

    def _close(self) -> None:
        assert self._marks, "no transaction is open"
        self._marks -= 1
        if not self._marks:
            self._undo.clear()

    # -- placement -----------------------------------------------------------------------------------------

    def near(self, home: str | None) -> Nearness:
        """Return how near nodes are to the one where the state of a request lies."""
        known = home is not None and home in self
        return Nearness(home, self.kind(home).host if known and home is not None else None)

    def fits_on_host(self, demand: Demand, home: str, only: frozenset[str] | None = None) -> bool:
        """Return whether a member fits now on a node of the host of ``home``. ``only``: of these nodes."""
        host = self.near(home).host
        if host is None:
            return False
        candidates = self._candidates(demand, self.eligible(demand), home, only)
        return any(candidate.kind.host == host for candidate in candidates)

    def place(
        self,
        demand: Demand,
        scoring: Scoring = DEFAULT,
        home: str | None = None,
        only: frozenset[str] | None = None,
        near: str | None = None,
    ) -> Placed | None:
        """Return where the demand would go now, with as many members as fit; nothing is taken. ``only``:
        of these nodes. ``near``: the NUMA node of a member that is placed already."""
        if demand.anchor is not None:
            return self._place_around(demand.anchor, demand, scoring, home, only)
        kinds = self.eligible(demand)
        candidates = self._candidates(demand, kinds, home, only)
        members_max = min(demand.members, sum(one.fits * one.nodes for one in candidates))

        def judge(candidate: NodeCandidate, members: int) -> float:
            return self._score(scoring, demand, candidate, members)

        size = node_size(kinds, demand) if demand.together == "packed" else 0
        for members in range(members_max, demand.members_min - 1, -1):
            where = spread(demand, members, candidates, size, judge, near)
            if where is not None:
                return Placed(where, self._explain(scoring, demand, where, home))
        return None

    def _place_around(
        self,
        anchor: str,
        demand: Demand,
        scoring: Scoring,
        home: str | None,
        only: frozenset[str] | None,
    ) -> Placed | None:
        """Place one member at the anchor, the others as they would go without it."""
        loose = replace(demand, anchor=None)
        one = replace(loose, members=1, members_min=1)
        first = self.place(one, scoring, home, frozenset({anchor}) if only is None else only & {anchor})
        if first is None or demand.members == 1:
            return first
        others = replace(loose, members=demand.members - 1, members_min=max(1, demand.members_min - 1))
        other_nodes = frozenset(self._numbers) - {anchor}
        near = self.kind(anchor).numa
        rest = self.place(others, scoring, None, other_nodes if only is None else only - {anchor}, near)
        if rest is None:
            return first if demand.members_min == 1 else None
        return Placed((*first.where, *rest.where), first.scores)

    def eligible(self, demand: Demand) -> list[NodeKind]:
        """Return the kinds of nodes that no filter excludes and where something may start."""
        asked = asked_of_nodes(demand)
        kinds = self._eligible.get(asked)
        if kinds is None:
            usable = (kind for kind in self._kinds.values() if kind.usable)
            kinds = self._eligible[asked] = [kind for kind in usable if not excluded_by(kind.node, asked)]
        return kinds

    def _candidates(
        self, demand: Demand, kinds: list[NodeKind], home: str | None, only: frozenset[str] | None
    ) -> list[NodeCandidate]:
        named = only if demand.nodes is None else demand.nodes if only is None else demand.nodes & only
        if named is not None:
            return self._named(demand, kinds, home, named)
        at_home = self._named(demand, kinds, home, frozenset({home})) if home is not None else []
        without = self._numbers.get(home) if home is not None else None
        near = self.near(home)
        found = [
            NodeCandidate(kind, free, fits, nodes, near.of_others(kind), self._first(group, without))
            for kind in kinds
            for free, group in kind.groups.items()
            if (fits := members_fitting(free, demand))
            and (nodes := len(group.members) - (without in group.members))
        ]
        return at_home + found

    def _named(
        self, demand: Demand, kinds: list[NodeKind], home: str | None, names: frozenset[str]
    ) -> list[NodeCandidate]:
        found = []
        near = self.near(home)
        for number in sorted(self._numbers[name] for name in names if name in self._numbers):
            name = self._names[number]
            kind, free = self._kind_of[number], self._free[name]
            fits = members_fitting(free, demand)
            if fits and kind in kinds:
                found.append(NodeCandidate(kind, free, fits, 1, near.of(name, kind), _only(name)))
        return found

    def _first(self, group: NodeGroup, without: int | None) -> FirstOf:
        return lambda count: [self._names[number] for number in group.first(count, without)]

    def _score(self, scoring: Scoring, demand: Demand, candidate: NodeCandidate, members: int) -> float:
        key = (scoring.name, candidate.kind.number, candidate.free, demand, members, candidate.nearness)
        score = self._scores.get(key)
        if score is None:
            if len(self._scores) > SCORES_KEPT_MAX:
                self._scores.clear()
            scored = ScoreInput(candidate.kind.node, candidate.free, demand, members, candidate.nearness)
            score = self._scores[key] = scoring.total(scored)
        return score

    def _explain(self, scoring: Scoring, demand: Demand, where: Where, home: str | None) -> dict[str, float]:
        name, members = max(where, key=lambda one: one[1])
        kind, free = self.kind(name), self._free[name]
        return scoring.explain(ScoreInput(kind.node, free, demand, members, self.near(home).of(name, kind)))

    # -- what excludes a demand ----------------------------------------------------------------------------

    def misfit(self, demand: Demand) -> Misfit:
        """Count every node once, by what excludes it now."""
        if demand.nodes is None:
            return misfit(self._kinds.values(), demand, _all_nodes)
        by_kind: dict[int, list[tuple[Free, int]]] = {}
        for name in demand.nodes & self._numbers.keys():
            by_kind.setdefault(self.kind(name).number, []).append((self._free[name], 1))
        return misfit(self._kinds.values(), demand, lambda kind: by_kind.get(kind.number, []))

    def ever_fits(self, demand: Demand) -> EverFits:
        """Check against empty nodes, cordoned and absent ones back: False says which constraint is
        impossible."""
        if demand.nodes is None:
            return ever_fits(self._kinds.values(), demand, lambda kind: kind.size)
        named = Counter(self._kind_of[self._numbers[name]].number for name in demand.nodes if name in self)
        return ever_fits(self._kinds.values(), demand, lambda kind: named[kind.number])


def _all_nodes(kind: NodeKind) -> list[tuple[Free, int]]:
    return [(free, len(group.members)) for free, group in kind.groups.items()]


def _only(name: str) -> FirstOf:
    return lambda count: [name][:count]
