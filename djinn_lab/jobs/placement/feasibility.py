"""Whether a request fits: now, node by node, and ever; where it is placed, and what excludes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from djinn_lab.jobs.placement.filters import FILTERS, asked_of_nodes, excluded_by
from djinn_lab.jobs.placement.free import Free, members_fitting
from djinn_lab.jobs.placement.node_kinds import NodeKind
from djinn_lab.jobs.placement.spread import NodeCandidate, node_size, spread
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, Demand, Where, members_in


class Placed(msgspec.Struct, frozen=True):
    """A placement of a request. ``scores``: of the node with the most members, its weighted terms by name;
    they add up to its score."""

    where: Where
    scores: dict[str, float]

    @property
    def members(self) -> int:
        return members_in(self.where)


class Misfit(msgspec.Struct, frozen=True):
    """Nodes by what excludes them, the first cause that applies in the order of the fields. ``filtered``:
    by the filter's name. ``open``: could take a member now, but more were needed. ``members_open``: how
    many members would fit on those. ``expected``: may come with further nodes."""

    expected: int = 0
    not_ready: int = 0
    cordoned: int = 0
    not_named: int = 0
    filtered: dict[str, int] = {}
    too_small: int = 0
    busy: int = 0
    open: int = 0
    members_open: int = 0

    @property
    def nodes(self) -> int:
        return (
            self.expected
            + self.not_ready
            + self.cordoned
            + self.not_named
            + sum(self.filtered.values())
            + self.too_small
            + self.busy
            + self.open
        )


class EverFits(msgspec.Struct, frozen=True):
    """Whether the request fits when nothing else runs and every node is back. ``constraint``: the first
    that is impossible, in this order. ``nodes``: the named ones do not exist. The name of a filter: it
    excludes all that are left. ``device_share``: more than one device. ``devices``, ``cpu``, ``memory``: no
    node has that for one member. ``one_node``, ``packed``: the members do not fit so. ``members``: the
    whole pool is too small. ``needed`` and ``available`` are in its own unit (nodes, thousandths, MiB,
    members)."""

    fits: bool
    constraint: str | None = None
    needed: int = 0
    available: int = 0

    def __bool__(self) -> bool:
        return self.fits


Population = Callable[[NodeKind], Sequence[tuple[Free, int]]]
"""Of a kind, the nodes that the request may name: what they have free, and how many have that."""


def misfit(kinds: Iterable[NodeKind], demand: Demand, population: Population) -> Misfit:
    """Count every node once, under the first cause that applies."""
    found: Counter[str] = Counter()
    filtered: Counter[str] = Counter()
    asked = asked_of_nodes(demand)
    for kind in kinds:
        if not kind.usable:
            away = "expected" if kind.node.expected else "not_ready"
            found["cordoned" if kind.node.ready else away] += kind.size
            continue
        named = population(kind)
        count = sum(nodes for _, nodes in named)
        found["not_named"] += kind.size - count
        if (excluding := excluded_by(kind.node, asked)) is not None:
            filtered[excluding.name] += count
            continue
        if _too_small(kind, demand):
            found["too_small"] += count
            continue
        for free, nodes in named:
            fits = members_fitting(free, demand)
            found["open" if fits else "busy"] += nodes
            found["members_open"] += fits * nodes
    return Misfit(**found, filtered=dict(filtered))


def _too_small(kind: NodeKind, demand: Demand) -> bool:
    needed = demand.members_min if demand.together == "one_node" else 1
    return members_fitting(kind.empty, demand) < needed


def ever_fits(kinds: Iterable[NodeKind], demand: Demand, named: Callable[[NodeKind], int]) -> EverFits:
    """Check against empty nodes, cordoned and absent ones back. ``named``: how many nodes of a kind the
    request may name."""
    left = [(kind, count) for kind in kinds if (count := named(kind))]
    if not left:
        return EverFits(False, "nodes", needed=1)
    for one, asked in zip(FILTERS, asked_of_nodes(demand), strict=True):
        left = [pair for pair in left if one.allows(pair[0].node, asked)]
        if not left:
            return EverFits(False, one.name, needed=1)
    alone = _one_member([kind for kind, _ in left], demand)
    return _gang(left, demand) if alone is None else alone


def _one_member(kinds: Sequence[NodeKind], demand: Demand) -> EverFits | None:
    wishes: tuple[tuple[str, int, int], ...] = (
        ("device_share", demand.device_milli, WHOLE_DEVICE_MILLI),
        ("devices", 1 if demand.device_milli else 0, max(kind.empty.devices for kind in kinds)),
        ("cpu", demand.cpu_milli, max(kind.empty.cpu_milli for kind in kinds)),
        ("memory", demand.memory_mib, max(kind.empty.memory_mib for kind in kinds)),
    )
    for constraint, needed, available in wishes:
        if needed > available:
            return EverFits(False, constraint, needed, available)
    return None


def _gang(left: Sequence[tuple[NodeKind, int]], demand: Demand) -> EverFits:
    """Check the members in all, and together where they want to be."""
    size = node_size([kind for kind, _ in left], demand)
    candidates = [_empty(kind, count, demand) for kind, count in left]
    for members in range(demand.members, demand.members_min - 1, -1):
        if spread(demand, members, candidates, size, lambda candidate, members: 0.0) is not None:
            return EverFits(True)
    total = sum(candidate.fits * count for candidate, (_, count) in zip(candidates, left, strict=True))
    if demand.together == "anywhere" or total < demand.members_min:
        return EverFits(False, "members", demand.members_min, total)
    return EverFits(
        False, demand.together, demand.members_min, size if demand.together == "one_node" else total
    )


def _empty(kind: NodeKind, count: int, demand: Demand) -> NodeCandidate:
    names = [f"{kind.number}/{number}" for number in range(min(count, demand.members + 1))]
    fits = members_fitting(kind.empty, demand)
    return NodeCandidate(kind, kind.empty, fits, len(names), 0.0, lambda count: names[:count])
