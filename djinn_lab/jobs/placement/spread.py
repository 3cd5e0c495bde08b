"""Lay the members of a gang over nodes, as it asks to be together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from djinn_lab.jobs.placement.free import Free, members_fitting
from djinn_lab.jobs.placement.nearness import near_first
from djinn_lab.jobs.placement.node_kinds import NodeKind
from djinn_lab.jobs.request import Demand, Where

FirstOf = Callable[[int], list[str]]
"""Returns names of up to so many nodes, always in the same order."""


class NodeCandidate:
    """Nodes that may be used and are equal for this request. ``fits``: members that one of them can take;
    ``nodes``: how many they are. ``nearness``: to the request's state, as
    :class:`~djinn_lab.jobs.placement.scores.ScoreInput` has it."""

    __slots__ = ("first", "fits", "free", "kind", "nearness", "nodes")

    def __init__(
        self, kind: NodeKind, free: Free, fits: int, nodes: int, nearness: float, first: FirstOf
    ) -> None:
        self.kind = kind
        self.free = free
        self.fits = fits
        self.nodes = nodes
        self.nearness = nearness
        self.first = first

    @property
    def numa(self) -> str | None:
        return self.kind.numa


Judge = Callable[[NodeCandidate, int], float]
"""Returns the score of so many members on one of these nodes."""


def spread(
    demand: Demand,
    members: int,
    candidates: Sequence[NodeCandidate],
    node_size: int,
    judge: Judge,
    near: str | None = None,
) -> Where | None:
    """Return nodes for exactly so many members, None if they do not fit. ``node_size``: how many the
    largest empty node can take. ``near``: the NUMA node of a member that is placed already."""
    if demand.together == "one_node" or (members == 1 and near is None):
        return one_node(members, candidates, judge)
    if demand.together == "anywhere":
        return anywhere(members, candidates, judge, near)
    return packed(members, candidates, node_size, judge)


def one_node(members: int, candidates: Sequence[NodeCandidate], judge: Judge) -> Where | None:
    chosen: NodeCandidate | None = None
    best = 0.0
    for candidate in candidates:
        if candidate.fits < members:
            continue
        score = judge(candidate, members)
        if chosen is None or score > best or (score == best and candidate.first(1) < chosen.first(1)):
            chosen, best = candidate, score
    return None if chosen is None else ((chosen.first(1)[0], members),)


def anywhere(
    members: int, candidates: Sequence[NodeCandidate], judge: Judge, near: str | None = None
) -> Where | None:
    """Fill the best node with as many as fit, then the next; equally good ones so that members are near
    each other."""
    left = members
    where: list[tuple[str, int]] = []
    scored = [(-judge(one, min(one.fits, members)), one.first(1), one) for one in candidates if one.fits]
    scored.sort(key=lambda scored: scored[:2])
    for candidate in near_first([(score, one) for score, _, one in scored], members, near):
        for name in candidate.first(-(-left // candidate.fits)):
            where.append((name, min(left, candidate.fits)))
            left -= where[-1][1]
        if not left:
            return tuple(where)
    return None


def packed(members: int, candidates: Sequence[NodeCandidate], node_size: int, judge: Judge) -> Where | None:
    """Place up to a node's size on one node, the best; more on whole empty nodes, and the rest on the
    freest other node. The Philly and Helios clusters were simulated with this consolidation (Hu et al.,
    SC'21)."""
    if members <= node_size:
        return one_node(members, candidates, judge)
    wanted, rest = divmod(members, node_size)
    where: list[tuple[str, int]] = []
    for candidate in candidates:
        if candidate.free == candidate.kind.empty and candidate.fits >= node_size:
            where += [(name, node_size) for name in candidate.first(wanted - len(where))]
    if len(where) < wanted:
        return None
    if rest == 0:
        return tuple(where)
    used = {name for name, _ in where}
    others = [(one.fits, name) for one in candidates for name in one.first(wanted + 1) if name not in used]
    if not others or max(others)[0] < rest:
        return None
    freest = max(fits for fits, _ in others)
    return (*where, (min(name for fits, name in others if fits == freest), rest))


def node_size(kinds: Sequence[NodeKind], demand: Demand) -> int:
    """Return how many members the largest empty node can take."""
    return max((members_fitting(kind.empty, demand) for kind in kinds), default=0)
