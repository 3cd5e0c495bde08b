"""Free capacity by node over time; for requests that a number cannot describe."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from djinn_lab.jobs.backfill.steps import Timeline
from djinn_lab.jobs.placement import Free, FreeCapacity, Scoring
from djinn_lab.jobs.placement.free import given, members_fitting, taken
from djinn_lab.jobs.placement.node_kinds import NodeKind
from djinn_lab.jobs.placement.scores import ScoreInput
from djinn_lab.jobs.placement.spread import NodeCandidate, node_size, spread
from djinn_lab.jobs.request import Demand, Where


class TimedDemand(NamedTuple):
    """``demand``, for so many ``seconds``. ``home``: the node with its state. ``near``: the NUMA node of a
    member that is placed already."""

    demand: Demand
    seconds: float
    scoring: Scoring
    home: str | None
    near: str | None = None


class NodeTimeline(Timeline[Free]):
    """Free capacity of one node over time."""

    __slots__ = ()

    def between(self, start_s: float, end_s: float) -> Sequence[Free]:
        first = max(0, bisect_right(self.times, start_s) - 1)
        last = first + 1
        while last < len(self.times) and self.times[last] < end_s:
            last += 1
        return self.free[first:last]


class Timelines:
    """``frees``: free capacity of each node now. ``returned``: when, what and where."""

    def __init__(
        self,
        capacity: FreeCapacity,
        frees: Mapping[str, Free],
        returned: Iterable[tuple[float, Demand, Where]],
        now_s: float,
    ) -> None:
        self._capacity = capacity
        self._timelines = {name: NodeTimeline(free, now_s) for name, free in frees.items()}
        self._kinds = {name: capacity.kind(name) for name in self._timelines}
        for when_s, demand, where in sorted(returned, key=lambda one: one[0]):
            if when_s != float("inf"):
                for name, members in where:
                    timeline = self._timelines[name]
                    number = timeline.cut(when_s)
                    timeline.free[number] = given(timeline.free[number], demand, members)

    def earliest(self, stay: TimedDemand, after_s: float) -> tuple[float, Where] | None:
        names = self._names(stay.demand)
        moments = {when for name in names for when in self._timelines[name].times if when > after_s}
        for start_s in (after_s, *sorted(moments)):
            where = self._at(names, stay, start_s)
            if where is not None:
                return start_s, where
        return None

    def at(self, stay: TimedDemand, start_s: float, without: frozenset[str] = frozenset()) -> Where | None:
        return self._at([name for name in self._names(stay.demand) if name not in without], stay, start_s)

    def _names(self, demand: Demand) -> list[str]:
        kinds = self._capacity.eligible(demand)
        wanted = self._timelines if demand.nodes is None else demand.nodes & self._timelines.keys()
        return [name for name in sorted(wanted) if self._kinds[name] in kinds]

    def _at(self, names: Sequence[str], stay: TimedDemand, start_s: float) -> Where | None:
        """Return nodes that have capacity throughout, as if their least were all they had."""
        demand, scoring = stay.demand, stay.scoring
        if demand.anchor is not None:
            return self._around(demand.anchor, names, stay, start_s)
        candidates = []
        near = self._capacity.near(stay.home)
        for name in names:
            frees = self._timelines[name].between(start_s, start_s + stay.seconds)
            fits = min(members_fitting(free, demand) for free in frees)
            if fits:
                kind = self._kinds[name]
                candidates.append(_candidate(name, kind, frees[0], fits, near.of(name, kind)))

        def judge(candidate: NodeCandidate, members: int) -> float:
            return scoring.total(
                ScoreInput(candidate.kind.node, candidate.free, demand, members, candidate.nearness)
            )

        size = node_size(self._capacity.eligible(demand), demand) if demand.together == "packed" else 0
        members_max = min(demand.members, sum(one.fits for one in candidates))
        for members in range(members_max, demand.members_min - 1, -1):
            where = spread(demand, members, candidates, size, judge, stay.near)
            if where is not None:
                return where
        return None

    def _around(self, anchor: str, names: Sequence[str], stay: TimedDemand, start_s: float) -> Where | None:
        """Place one member at the anchor and the others on other nodes, as
        :meth:`djinn_lab.jobs.placement.FreeCapacity.place` does."""
        demand = stay.demand
        one = replace(demand, anchor=None, members=1, members_min=1)
        here = [name for name in names if name == anchor]
        first = self._at(here, stay._replace(demand=one), start_s)
        if first is None or demand.members == 1:
            return first
        others = replace(one, members=demand.members - 1, members_min=max(1, demand.members_min - 1))
        other_nodes = [name for name in names if name != anchor]
        near = self._kinds[anchor].numa
        rest = self._at(other_nodes, stay._replace(demand=others, home=None, near=near), start_s)
        if rest is None:
            return first if demand.members_min == 1 else None
        return (*first, *rest)

    def take(self, demand: Demand, where: Where, start_s: float, seconds: float) -> None:
        for name, members in where:
            self._timelines[name].change(start_s, start_s + seconds, partial(_taken, demand, members))

    def give(self, demand: Demand, where: Where, start_s: float, seconds: float) -> None:
        for name, members in where:
            self._timelines[name].change(start_s, start_s + seconds, partial(_given, demand, members))


def _taken(demand: Demand, members: int, free: Free) -> Free:
    return taken(free, demand, members)


def _given(demand: Demand, members: int, free: Free) -> Free:
    return given(free, demand, members)


def _candidate(name: str, kind: NodeKind, free: Free, fits: int, nearness: float) -> NodeCandidate:
    return NodeCandidate(kind, free, fits, 1, nearness, lambda count: [name][:count])
