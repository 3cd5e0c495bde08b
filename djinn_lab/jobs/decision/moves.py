"""Sessions that are to start on another device than their own: each is brought there first."""

from __future__ import annotations

import heapq
import math

from msgspec.structs import replace

from djinn_lab.jobs.decision.cluster import Cluster
from djinn_lab.jobs.decision.plan import Plan
from djinn_lab.jobs.decision.policy import QueuePolicy
from djinn_lab.jobs.request import Request


def keeps_turn(policy: QueuePolicy) -> bool:
    """Whether a device is kept for a session that is brought to it: where starts are promised, or no job may
    pass. Else others start there meanwhile, since memory may have no room for it after all."""
    return policy.passing in ("never", "easy", "conservative")


class Moves:
    """Where decisions are run forward, as the live pool does it."""

    def __init__(self, cluster: Cluster, policy: QueuePolicy) -> None:
        self._cluster = cluster
        self._policy = policy
        self._under_way: list[tuple[float, int, str]] = []
        self._begun = 0

    @property
    def due_s(self) -> float:
        """When the next one has arrived; infinite for never."""
        return self._under_way[0][0] if self._under_way else math.inf

    def begin(self, plan: Plan) -> Plan:
        """Bring those that are to start elsewhere there; the plan with the other starts only."""
        starts = []
        for start in plan.starts:
            request = self._cluster.waiting[start.job]
            if request.home is None or any(node == request.home for node, _ in start.where):
                starts.append(start)
            else:
                self._bring(request, start.where[0][0], plan.now_s)
                if keeps_turn(self._policy):
                    self._cluster.keep(start.job, start.where, plan.now_s)
        return replace(plan, starts=tuple(starts))

    def _bring(self, request: Request, device: str, now_s: float) -> None:
        demand = request.demand
        if demand.members == 1:
            demand = replace(demand, nodes=frozenset({device}))
        moving = replace(request, home=device, move_s=0.0, demand=demand, startable=False)
        self._cluster.change(moving, now_s)
        self._begun += 1
        heapq.heappush(self._under_way, (now_s + request.move_s, self._begun, request.job))

    def end(self, now_s: float) -> None:
        """Those that have arrived by now may start."""
        while self.due_s <= now_s:
            request = self._cluster.waiting.get(heapq.heappop(self._under_way)[2])
            if request is not None:
                self._cluster.change(replace(request, startable=True), now_s)
