"""Carry out a plan in the cluster and the shares. Their driver (the live queue or the simulator) performs
it in its world, too, and reports when something ended."""

from __future__ import annotations

from msgspec.structs import replace

from djinn_lab.jobs.decision.plan import Plan
from djinn_lab.jobs.decision.state.cluster import Cluster
from djinn_lab.jobs.decision.trial import charge_for
from djinn_lab.jobs.fairness import ShareTree
from djinn_lab.jobs.request import Holding, members_in


def enact(cluster: Cluster, shares: ShareTree, plan: Plan) -> None:
    """Apply a plan. Starts hold their nodes from ``plan.now_s`` on and are charged; victims are marked as
    being preempted, and their capacity is reserved."""
    if plan.starts or plan.preemptions or plan.interleaved:
        cluster.decided_s = plan.now_s
    for top_up in plan.top_ups:
        shares.correct(top_up.job, top_up.charge)
        holding = cluster.holdings[top_up.job]
        cluster.update(replace(holding, charged_until_s=top_up.charged_until_s))
    for job in plan.released:
        cluster.unreserve(job)
    for made in plan.interleaved:
        account = cluster.waiting[made.job].account
        shares.admit(made.job, account, plan.now_s, made.charge)
        cluster.interleave(made.job, made.node, plan.now_s)
    for start in plan.starts:
        request = cluster.waiting[start.job]
        shares.admit(start.job, request.account, plan.now_s, start.charge)
        cluster.start(start.job, start.where, plan.now_s, start.ends_s, charged_until_s=start.charged_until_s)
    if plan.promised:
        cluster.promises.update((made.job, made) for made in plan.reservations)
    for preemption in plan.preemptions:
        cluster.preempt(preemption.by, preemption.victims, preemption.where, plan.now_s)


def end(cluster: Cluster, shares: ShareTree, job: str, now_s: float, transfer_bytes: float = 0.0) -> Holding:
    """End a running job, however it ended: its capacity is free, and its account pays for its real usage."""
    holding = cluster.finish(job)
    _settle(shares, holding, now_s, transfer_bytes)
    return holding


def park(
    cluster: Cluster,
    shares: ShareTree,
    job: str,
    now_s: float,
    estimate_s: float | None,
    transfer_bytes: float = 0.0,
) -> None:
    """Park a preempted victim: it has paid for its usage and waits again. ``estimate_s``: the run time
    that it still needs, restoring included."""
    holding = cluster.holdings[job]
    cluster.requeue_preempted(job, now_s, estimate_s)
    _settle(shares, holding, now_s, transfer_bytes)


def _settle(shares: ShareTree, holding: Holding, now_s: float, transfer_bytes: float) -> None:
    members = members_in(holding.where)
    used = charge_for(holding.request.demand, members, max(0.0, now_s - holding.started_s))
    shares.settle(holding.request.job, used._replace(transfer_bytes=transfer_bytes))
