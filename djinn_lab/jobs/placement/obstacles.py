"""What stands against a request: now, node by node, and ever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from djinn_lab.jobs.placement.answers import Constraint, EverFits, Misfit
from djinn_lab.jobs.placement.free import Free, capacity
from djinn_lab.jobs.placement.kinds import Kind
from djinn_lab.jobs.placement.spread import Candidate, node_size, spread
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, Demand

Population = Callable[[Kind], Sequence[tuple[Free, int]]]
"""Of a kind, the nodes that the request may name: what they have free, and how many have that."""


def misfit(kinds: Iterable[Kind], demand: Demand, population: Population) -> Misfit:
    """Every node once, under the first cause that applies."""
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
            room = capacity(free, demand)
            found["open" if room else "busy"] += nodes
            found["members_open"] += room * nodes
    return Misfit(**found)


def _kind_cause(kind: Kind, demand: Demand) -> str | None:
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
    return "too_small" if capacity(kind.empty, demand) < needed else None


def ever_fits(kinds: Iterable[Kind], demand: Demand, named: Callable[[Kind], int]) -> EverFits:
    """With empty nodes, cordoned and absent ones back. ``named``: how many nodes of a kind it may name."""
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


def _one_member(kinds: Sequence[Kind], demand: Demand) -> EverFits | None:
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


def _gang(left: Sequence[tuple[Kind, int]], demand: Demand) -> EverFits:
    """Members in all, and together where they want to be."""
    size = node_size([kind for kind, _ in left], demand)
    candidates = [_empty(kind, count, demand) for kind, count in left]
    for members in range(demand.members, demand.members_min - 1, -1):
        if spread(demand, members, candidates, size, lambda candidate, members: 0.0) is not None:
            return EverFits(True)
    total = sum(candidate.room * count for candidate, (_, count) in zip(candidates, left, strict=True))
    if demand.together == "anywhere" or total < demand.members_min:
        return EverFits(False, "members", demand.members_min, total)
    return EverFits(
        False, demand.together, demand.members_min, size if demand.together == "one_node" else total
    )


def _empty(kind: Kind, count: int, demand: Demand) -> Candidate:
    names = [f"{kind.number}/{number}" for number in range(min(count, demand.members + 1))]
    room = capacity(kind.empty, demand)
    return Candidate(kind, kind.empty, room, len(names), False, lambda count: names[:count])
