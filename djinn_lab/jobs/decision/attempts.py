"""How many candidates a decision tries as preemptors, and who need not be tried."""

from __future__ import annotations

import math

from djinn_lab.jobs.decision import preempting
from djinn_lab.jobs.decision.held import best_effort
from djinn_lab.jobs.decision.keys import estimate_s
from djinn_lab.jobs.decision.plan import Preemption
from djinn_lab.jobs.decision.policy import QueuePolicy
from djinn_lab.jobs.decision.trial import Trial
from djinn_lab.jobs.request import Demand, Request

LOOKS_PER_TRY = 2
"""So many candidates that cannot start are looked at for each that is tried as a preemptor."""


class Attempts:
    """``left``: of those that may fail. Who is within a guarantee is tried however many were before."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.left = policy.preempt_depth if policy.preempts else 0
        self._looks = self.left * LOOKS_PER_TRY
        self._failed_s: dict[tuple[str, Demand, bool], float] = {}

    def in_vain(self, request: Request, claims: bool) -> bool:
        """It asks for the same as somebody of the same account that could not have it, for no less time."""
        failed_s = self._failed_s.get((request.account, request.demand, claims), math.inf)
        return estimate_s(request, self.policy) >= failed_s

    def hopeless(self, request: Request) -> bool:
        """Nobody moves aside for a guarantee of it."""
        return best_effort(request) or self.in_vain(request, claims=True)

    def find(self, trial: Trial, request: Request, claims: bool) -> Preemption | None:
        """Who moves aside for it. ``claims``: it is within a guarantee."""
        found = None
        if not self.in_vain(request, claims):
            found = preempting.find(trial, request)
            if found is None:
                self._failed_s[request.account, request.demand, claims] = estimate_s(request, self.policy)
                self.left -= 1
        self._looks -= found is None
        if not self._looks:
            self.left = 0
        return found
