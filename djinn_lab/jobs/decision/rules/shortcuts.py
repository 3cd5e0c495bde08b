"""Shortcuts of a decision: candidates that need no look, with the same plan as if each had been tried."""

from __future__ import annotations

import math

from djinn_lab.jobs.decision.plan import Plan, Preemption, Start
from djinn_lab.jobs.decision.rules import preempting
from djinn_lab.jobs.decision.rules.guarantees import Guarantees
from djinn_lab.jobs.decision.rules.keys import estimate_s
from djinn_lab.jobs.decision.rules.policy import QueuePolicy
from djinn_lab.jobs.decision.state.cluster import Cluster
from djinn_lab.jobs.decision.state.held_devices import best_effort
from djinn_lab.jobs.decision.state.waiting import WaitingIndex
from djinn_lab.jobs.decision.trial import Trial, charge_for
from djinn_lab.jobs.fairness import ShareTree
from djinn_lab.jobs.placement import SCORINGS
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, Demand, Request
from djinn_lab.srg.structure import GraphPhase


def start_only_job(cluster: Cluster, shares: ShareTree, policy: QueuePolicy, now_s: float) -> Plan | None:
    """Return the plan for the only job of an idle pool, as :func:`~djinn_lab.jobs.decision.decide.decide`
    would find it, without trying anything. None where more than capacity matters: limits, guarantees,
    reservations, gangs, a home that the job would leave."""
    if (
        len(cluster.waiting) != 1
        or cluster.holdings
        or cluster.reserved
        or cluster.preempted_for
        or cluster.calendar
        or cluster.interleaved
    ):
        return None
    if shares.limited or shares.guarantees or policy.backfill == "conservative":
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


CHECKS_PER_ATTEMPT = 2
"""So many candidates that cannot start are looked at for each that is tried as a preemptor."""


class PreemptionAttempts:
    """Counts the candidates that a decision tries as preemptors. ``left``: attempts that may still fail. A
    candidate within a guarantee is tried however many were before."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.left = policy.preempt_depth if policy.preempts else 0
        self._looks = self.left * CHECKS_PER_ATTEMPT
        self._failed_s: dict[tuple[str, Demand, bool, str | None, GraphPhase], float] = {}

    def already_failed(self, request: Request, claims: bool, node: str | None = None) -> bool:
        """Return whether an equal request of this account, with no longer an estimate, already failed to
        preempt (``node``: on this one)."""
        failed = (request.account, request.demand, claims, node, request.phase)
        failed_s = self._failed_s.get(failed, math.inf)
        return estimate_s(request, self.policy) >= failed_s

    def cannot_use_guarantee(self, request: Request) -> bool:
        """Return whether no job is preempted for a guarantee of this request."""
        return best_effort(request) or self.already_failed(request, claims=True)

    def find(
        self, trial: Trial, request: Request, claims: bool, node: str | None = None
    ) -> Preemption | None:
        """Return the preemption that lets the request start (``node``: on this one). ``claims``: the request
        is within a guarantee."""
        found = None
        if not self.already_failed(request, claims, node):
            found = preempting.find(trial, request, node)
            if found is None:
                failed = (request.account, request.demand, claims, node, request.phase)
                self._failed_s[failed] = estimate_s(request, self.policy)
                self.left -= node is None
        self._looks -= found is None
        if not self._looks:
            self.left = 0
        return found


class GuaranteeSearch:
    def __init__(self, trial: Trial, unmet: Guarantees, index: WaitingIndex) -> None:
        self._trial, self._unmet, self._index = trial, unmet, index
        self._raised: bool | None = None
        self._due: set[str] = set()
        self._counted_at = -1

    def due(self) -> set[str] | None:
        """Return the accounts whose candidates may preempt for a guarantee; None: look at all."""
        if not self._others_change_nothing():
            return None
        if self._counted_at != len(self._trial.preemptions):
            self._counted_at = len(self._trial.preemptions)
            queued = self._trial.cluster.queued
            self._due = {
                account for account, waits in queued.items() if waits and self._unmet.is_below(account)
            }
        return self._due

    def _others_change_nothing(self) -> bool:
        """Return whether looking at the other candidates changes nothing: none is promised a start that later
        ones must respect, and none has a limit that ends by itself and would wake the decision."""
        trial = self._trial
        if trial.shares.limited_by_use:
            return False
        match trial.policy.backfill:
            case "always":
                return True
            case "starving":
                return bool(trial.blocked) or not self._any_raised()
            case "easy":
                return bool(trial.blocked)
            case _:
                return False

    def _any_raised(self) -> bool:
        if self._raised is None:
            self._raised = self._index.any_raised(self._trial.cluster.waiting, self._trial.now_s)
        return self._raised
