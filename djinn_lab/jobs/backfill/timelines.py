"""What is free on which node from when on; for requests that a number cannot describe."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from djinn_lab.jobs.backfill.steps import Timeline
from djinn_lab.jobs.placement import Free, Room, Scoring
from djinn_lab.jobs.placement.free import capacity, given, taken
from djinn_lab.jobs.placement.kinds import Kind
from djinn_lab.jobs.placement.scores import Seat
from djinn_lab.jobs.placement.spread import Candidate, node_size, spread
from djinn_lab.jobs.request import Demand, Where


class Stay(NamedTuple):
    """What room is looked for: ``demand``, for so many ``seconds``. ``home``: where its state is. ``near``:
    the NUMA node of a member that has its place."""

    demand: Demand
    seconds: float
    scoring: Scoring
    home: str | None
    near: str | None = None


class NodeTimeline(Timeline[Free]):
    """Of one node."""

    __slots__ = ()

    def between(self, start_s: float, end_s: float) -> Sequence[Free]:
        first = max(0, bisect_right(self.times, start_s) - 1)
        last = first + 1
        while last < len(self.times) and self.times[last] < end_s:
            last += 1
        return self.free[first:last]


class Timelines:
    """``frees``: what each node has free now. ``returned``: when, what and where."""

    def __init__(
        self,
        room: Room,
        frees: Mapping[str, Free],
        returned: Iterable[tuple[float, Demand, Where]],
        now_s: float,
    ) -> None:
        self._room = room
        self._lines = {name: NodeTimeline(free, now_s) for name, free in frees.items()}
        self._kinds = {name: room.kind(name) for name in self._lines}
        for when_s, demand, where in sorted(returned, key=lambda one: one[0]):
            if when_s != float("inf"):
                for name, members in where:
                    line = self._lines[name]
                    number = line.cut(when_s)
                    line.free[number] = given(line.free[number], demand, members)

    def earliest(self, stay: Stay, after_s: float) -> tuple[float, Where] | None:
        names = self._names(stay.demand)
        moments = {when for name in names for when in self._lines[name].times if when > after_s}
        for start_s in (after_s, *sorted(moments)):
            where = self._at(names, stay, start_s)
            if where is not None:
                return start_s, where
        return None

    def at(self, stay: Stay, start_s: float, without: frozenset[str] = frozenset()) -> Where | None:
        return self._at([name for name in self._names(stay.demand) if name not in without], stay, start_s)

    def _names(self, demand: Demand) -> list[str]:
        kinds = self._room.eligible(demand)
        wanted = self._lines if demand.nodes is None else demand.nodes & self._lines.keys()
        return [name for name in sorted(wanted) if self._kinds[name] in kinds]

    def _at(self, names: Sequence[str], stay: Stay, start_s: float) -> Where | None:
        """Nodes that have room throughout, as if their least capacity were all they had."""
        demand, scoring = stay.demand, stay.scoring
        if demand.anchor is not None:
            return self._around(demand.anchor, names, stay, start_s)
        candidates = []
        for name in names:
            frees = self._lines[name].between(start_s, start_s + stay.seconds)
            room = min(capacity(free, demand) for free in frees)
            if room:
                candidates.append(_candidate(name, self._kinds[name], frees[0], room, name == stay.home))

        def judge(candidate: Candidate, members: int) -> float:
            return scoring.total(Seat(candidate.kind.node, candidate.free, demand, members, candidate.home))

        size = node_size(self._room.eligible(demand), demand) if demand.together == "packed" else 0
        members_max = min(demand.members, sum(one.room for one in candidates))
        for members in range(members_max, demand.members_min - 1, -1):
            where = spread(demand, members, candidates, size, judge, stay.near)
            if where is not None:
                return where
        return None

    def _around(self, anchor: str, names: Sequence[str], stay: Stay, start_s: float) -> Where | None:
        """As :meth:`djinn_lab.jobs.placement.Room.place` does: one member at the anchor, the others
        elsewhere."""
        demand = stay.demand
        one = replace(demand, anchor=None, members=1, members_min=1)
        here = [name for name in names if name == anchor]
        first = self._at(here, stay._replace(demand=one), start_s)
        if first is None or demand.members == 1:
            return first
        others = replace(one, members=demand.members - 1, members_min=max(1, demand.members_min - 1))
        elsewhere = [name for name in names if name != anchor]
        near = self._kinds[anchor].numa
        rest = self._at(elsewhere, stay._replace(demand=others, home=None, near=near), start_s)
        if rest is None:
            return first if demand.members_min == 1 else None
        return (*first, *rest)

    def take(self, demand: Demand, where: Where, start_s: float, seconds: float) -> None:
        for name, members in where:
            self._lines[name].change(start_s, start_s + seconds, partial(_taken, demand, members))

    def give(self, demand: Demand, where: Where, start_s: float, seconds: float) -> None:
        for name, members in where:
            self._lines[name].change(start_s, start_s + seconds, partial(_given, demand, members))


def _taken(demand: Demand, members: int, free: Free) -> Free:
    return taken(free, demand, members)


def _given(demand: Demand, members: int, free: Free) -> Free:
    return given(free, demand, members)


def _candidate(name: str, kind: Kind, free: Free, room: int, home: bool) -> Candidate:
    return Candidate(kind, free, room, 1, home, lambda count: [name][:count])
