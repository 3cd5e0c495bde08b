"""How the members of a gang are laid over nodes, by its wish to be together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from djinn_lab.jobs.placement.free import Free, capacity
from djinn_lab.jobs.placement.kinds import Kind
from djinn_lab.jobs.placement.nearness import near_first
from djinn_lab.jobs.request import Demand, Where

FirstOf = Callable[[int], list[str]]
"""Names of up to so many nodes, always in the same order."""


class Candidate:
    """Nodes that may be used and are equal for this request. ``room``: members that one of them can take;
    ``nodes``: how many they are."""

    __slots__ = ("first", "free", "home", "kind", "nodes", "room")

    def __init__(self, kind: Kind, free: Free, room: int, nodes: int, home: bool, first: FirstOf) -> None:
        self.kind = kind
        self.free = free
        self.room = room
        self.nodes = nodes
        self.home = home
        self.first = first

    @property
    def numa(self) -> str | None:
        return self.kind.numa


Judge = Callable[[Candidate, int], float]
"""The score of so many members on one of these nodes."""


def spread(
    demand: Demand,
    members: int,
    candidates: Sequence[Candidate],
    node_size: int,
    judge: Judge,
    near: str | None = None,
) -> Where | None:
    """Nodes for exactly so many members, None if they do not fit. ``node_size``: of them, what the largest
    empty node can take. ``near``: the NUMA node of a member that has its place."""
    if demand.together == "one_node" or (members == 1 and near is None):
        return one_node(members, candidates, judge)
    if demand.together == "anywhere":
        return anywhere(members, candidates, judge, near)
    return packed(members, candidates, node_size, judge)


def one_node(members: int, candidates: Sequence[Candidate], judge: Judge) -> Where | None:
    chosen: Candidate | None = None
    best = 0.0
    for candidate in candidates:
        if candidate.room < members:
            continue
        score = judge(candidate, members)
        if chosen is None or score > best or (score == best and candidate.first(1) < chosen.first(1)):
            chosen, best = candidate, score
    return None if chosen is None else ((chosen.first(1)[0], members),)


def anywhere(
    members: int, candidates: Sequence[Candidate], judge: Judge, near: str | None = None
) -> Where | None:
    """The best node takes as many as it can, then the next; equally good ones so that members are near each
    other."""
    left = members
    where: list[tuple[str, int]] = []
    scored = [(-judge(one, min(one.room, members)), one.first(1), one) for one in candidates if one.room]
    scored.sort(key=lambda scored: scored[:2])
    for candidate in near_first([(score, one) for score, _, one in scored], members, near):
        for name in candidate.first(-(-left // candidate.room)):
            where.append((name, min(left, candidate.room)))
            left -= where[-1][1]
        if not left:
            return tuple(where)
    return None


def packed(members: int, candidates: Sequence[Candidate], node_size: int, judge: Judge) -> Where | None:
    """Up to a node's size on one node, the best; more on whole empty nodes, and the rest on the freest other
    node: the consolidation with which the Philly and Helios clusters were simulated (Hu et al., SC'21)."""
    if members <= node_size:
        return one_node(members, candidates, judge)
    wanted, rest = divmod(members, node_size)
    where: list[tuple[str, int]] = []
    for candidate in candidates:
        if candidate.free == candidate.kind.empty and candidate.room >= node_size:
            where += [(name, node_size) for name in candidate.first(wanted - len(where))]
    if len(where) < wanted:
        return None
    if rest == 0:
        return tuple(where)
    used = {name for name, _ in where}
    others = [(one.room, name) for one in candidates for name in one.first(wanted + 1) if name not in used]
    if not others or max(others)[0] < rest:
        return None
    freest = max(room for room, _ in others)
    return (*where, (min(name for room, name in others if room == freest), rest))


def node_size(kinds: Sequence[Kind], demand: Demand) -> int:
    """Members that the largest empty node can take."""
    return max((capacity(kind.empty, demand) for kind in kinds), default=0)
