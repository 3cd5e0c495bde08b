"""The decision about somebody who asks alone, with nobody running: most cells of a pool that is not full."""

from __future__ import annotations

from djinn_lab.jobs.decision.cluster import Cluster
from djinn_lab.jobs.decision.keys import estimate_s
from djinn_lab.jobs.decision.plan import Plan, Start
from djinn_lab.jobs.decision.policy import QueuePolicy
from djinn_lab.jobs.decision.trial import charge_for
from djinn_lab.jobs.fairness import ShareTree
from djinn_lab.jobs.placement import SCORINGS
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI


def start_of_lone(cluster: Cluster, shares: ShareTree, policy: QueuePolicy, now_s: float) -> Plan | None:
    """What :func:`~djinn_lab.jobs.decision.decide.decide` would find, without trying anything. None where it
    takes a look at more than room: limits, guarantees, reservations, gangs, a home that it would leave."""
    if len(cluster.waiting) != 1 or cluster.holdings or cluster.pins or cluster.leaving or cluster.calendar:
        return None
    if shares.limited or shares.guarantees or policy.passing == "conservative":
        return None
    [request] = cluster.waiting.values()
    demand = request.demand
    plain = demand.members == 1 and demand.anchor is None and demand.device_milli == WHOLE_DEVICE_MILLI
    if not (plain and request.startable):
        return None
    placed = cluster.place_alone(demand, SCORINGS[policy.scoring], request.home)
    if placed is None or (request.home is not None and placed.where[0][0] != request.home):
        return None
    seconds = estimate_s(request, policy)
    charged_s = min(seconds, shares.settings.quantum_s)
    start = Start(
        request.job,
        placed.where,
        None if request.estimate_s is None else now_s + seconds,
        charge_for(demand, placed.members, charged_s),
        now_s + charged_s,
        placed.scores,
    )
    return Plan(now_s, (start,))
