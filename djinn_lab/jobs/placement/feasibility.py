"""Whether a request fits: now, node by node, and ever; where it is placed, and what excludes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from djinn_lab.jobs.placement.free import Free, members_fitting
from djinn_lab.jobs.placement.node_kinds import NodeKind
from djinn_lab.jobs.placement.spread import NodeCandidate, node_size, spread
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, Demand, Where, members_in

Constraint = Literal[
    "nodes", "selector", "taints", "devices", "device_share", "cpu", "memory", "one_node", "packed", "members"
]
"""What can be impossible: the named nodes do not exist; no node has the labels; none is tolerated; none
has a device, or one member's cpu or memory; a share is larger than a device; the members do not fit on one
node, or packed; the whole pool is too small."""


class Placed(msgspec.Struct, frozen=True):
    """``scores``: of the node with the most members, its weighted terms by name; they add up to its score."""

    where: Where
    scores: dict[str, float]

    @property
    def members(self) -> int:
        return members_in(self.where)


class Misfit(msgspec.Struct, frozen=True):
    """Nodes by what excludes them, the first cause that applies in the order of the fields. ``open``:
    could take a member now, but more were needed. ``members_open``: how many members would fit on those.
    """

    not_ready: int = 0
    cordoned: int = 0
    not_named: int = 0
    label: int = 0
    taint: int = 0
    too_small: int = 0
    busy: int = 0
    open: int = 0
    members_open: int = 0

    @property
    def nodes(self) -> int:
        return (
            self.not_ready
            + self.cordoned
            + self.not_named
            + self.label
            + self.taint
            + self.too_small
            + self.busy
            + self.open
        )


class EverFits(msgspec.Struct, frozen=True):
    """Whether the request fits when nothing else runs and every node is back. ``constraint``: the first
    that is impossible; ``needed`` and ``available`` are in its own unit (nodes, thousandths, MiB,
    members)."""

    fits: bool
    constraint: Constraint | None = None
    needed: int = 0
    available: int = 0

    def __bool__(self) -> bool:
        return self.fits


Population = Callable[[NodeKind], Sequence[tuple[Free, int]]]
"""Of a kind, the nodes that the request may name: what they have free, and how many have that."""


def misfit(kinds: Iterable[NodeKind], demand: Demand, population: Population) -> Misfit:
    """Count every node once, under the first cause that applies."""
    found = dict.fromkeys(Misfit.__struct_fields__, 0)
    for kind in kinds:
        cause = _kind_cause(kind, demand)
        named = population(kind)
        count = sum(nodes for _, nodes in named)
        if cause in ("not_ready", "cordoned"):
            found[cause] += kind.size
            continue
        found["not_named"] += kind.size - count
        if cause is not None:
            found[cause] += count
            continue
        for free, nodes in named:
            fits = members_fitting(free, demand)
            found["open" if fits else "busy"] += nodes
            found["members_open"] += fits * nodes
    return Misfit(**found)


def _kind_cause(kind: NodeKind, demand: Demand) -> str | None:
    node = kind.node
    if not node.ready:
        return "not_ready"
    if node.cordoned:
        return "cordoned"
    if not demand.selector <= node.labels:
        return "label"
    if not node.taints <= demand.tolerates:
        return "taint"
    needed = demand.members_min if demand.together == "one_node" else 1
    return "too_small" if members_fitting(kind.empty, demand) < needed else None


def ever_fits(kinds: Iterable[NodeKind], demand: Demand, named: Callable[[NodeKind], int]) -> EverFits:
    """Check against empty nodes, cordoned and absent ones back. ``named``: how many nodes of a kind the
    request may name."""
    left = [(kind, count) for kind in kinds if (count := named(kind))]
    if not left:
        return EverFits(False, "nodes", needed=1)
    left = [pair for pair in left if demand.selector <= pair[0].node.labels]
    if not left:
        return EverFits(False, "selector", needed=1)
    left = [pair for pair in left if pair[0].node.taints <= demand.tolerates]
    if not left:
        return EverFits(False, "taints", needed=1)
    alone = _one_member([kind for kind, _ in left], demand)
    return _gang(left, demand) if alone is None else alone


def _one_member(kinds: Sequence[NodeKind], demand: Demand) -> EverFits | None:
    wishes: tuple[tuple[Constraint, int, int], ...] = (
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
    return NodeCandidate(kind, kind.empty, fits, len(names), False, lambda count: names[:count])
