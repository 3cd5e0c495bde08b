"""Check limits of accounts."""

from __future__ import annotations

from djinn_lab.jobs.decision.rules.keys import devices_of
from djinn_lab.jobs.decision.state.cluster import Cluster
from djinn_lab.jobs.fairness import LimitHit, ShareTree
from djinn_lab.jobs.request import Request


def start_limit(
    cluster: Cluster,
    shares: ShareTree,
    request: Request,
    now_s: float,
    more: dict[str, float],
    members: int | None = None,
) -> LimitHit | None:
    """Return the first hard limit, from the pool down, that forbids starting so many members (None: the
    fewest that it takes). ``more``: devices that the decision has given out or reserved already, by
    account."""
    if not shares.limited:
        return None
    wanted = devices_of(request.demand, request.demand.members_min if members is None else members)
    for node in shares.lineage(request.account):
        limits = node.limits
        if limits.devices_max is not None:
            used = cluster.devices_held.get(node.account, 0.0) + more.get(node.account, 0.0)
            if used + wanted > limits.devices_max:
                return LimitHit(node.account, "devices", limits.devices_max, used, wanted)
        if limits.device_s_max is not None:
            spent = shares.device_s(node, now_s)
            if spent >= limits.device_s_max:
                until_s = shares.below_s(node, limits.device_s_max, now_s)
                return LimitHit(node.account, "device_s", limits.device_s_max, spent, 0.0, until_s)
    return None


def members_allowed(
    cluster: Cluster, shares: ShareTree, request: Request, more: dict[str, float], *, soft: bool = False
) -> int:
    """Return as many members as the limits of its accounts leave the request, with ``soft`` the soft ones,
    too. At least its minimum is known to be allowed."""
    allowed = request.demand.members
    if shares.limited and request.demand.device_milli:
        for node in shares.lineage(request.account):
            for most in (node.limits.devices_max, node.limits.devices_soft if soft else None):
                if most is not None:
                    used = cluster.devices_held.get(node.account, 0.0) + more.get(node.account, 0.0)
                    left = (most - used) * 1000 / request.demand.device_milli
                    allowed = min(allowed, int(left + 1e-9))
    return max(allowed, request.demand.members_min)


def soft_limit(
    cluster: Cluster, shares: ShareTree, request: Request, more: dict[str, float]
) -> LimitHit | None:
    """Return the first soft limit that the request would exceed."""
    if not shares.limited:
        return None
    wanted = devices_of(request.demand, request.demand.members_min)
    for node in shares.lineage(request.account):
        limit = node.limits.devices_soft
        if limit is not None:
            used = cluster.devices_held.get(node.account, 0.0) + more.get(node.account, 0.0)
            if used + wanted > limit:
                return LimitHit(node.account, "devices", limit, used, wanted)
    return None


def submit_limit(
    cluster: Cluster, shares: ShareTree, request: Request, *, again: bool = False
) -> LimitHit | None:
    """Return the limit that forbids submitting the request at all: its priority, too many waiting, or more
    than it can ever get. ``again``: the request waits already, and is counted."""
    wanted = devices_of(request.demand, request.demand.members_min)
    for node in shares.lineage(request.account):
        limits = node.limits
        if request.rank < limits.rank_min:
            return LimitHit(node.account, "rank", limits.rank_min, request.rank, request.rank)
        if limits.devices_max is not None and wanted > limits.devices_max:
            return LimitHit(node.account, "devices", limits.devices_max, 0.0, wanted)
        queued = cluster.queued.get(node.account, 0) - again
        if limits.queued_max is not None and queued >= limits.queued_max:
            return LimitHit(node.account, "queued", limits.queued_max, queued, 1)
    return None
