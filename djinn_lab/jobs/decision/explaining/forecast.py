"""Forecast when each waiting job starts: the same :func:`~djinn_lab.jobs.decision.decide`, run forward on
a copy. Running jobs end when they are expected to, no other job arrives, nothing fails."""

from __future__ import annotations

import heapq
import math
from typing import Literal

import msgspec
from msgspec.structs import replace

from djinn_lab.jobs.decision.decide import decide
from djinn_lab.jobs.decision.enact import enact, end, park
from djinn_lab.jobs.decision.plan import Plan
from djinn_lab.jobs.decision.rules.keys import remaining_s
from djinn_lab.jobs.decision.rules.limiting import submit_limit
from djinn_lab.jobs.decision.rules.policy import QueuePolicy
from djinn_lab.jobs.decision.state.cluster import Cluster
from djinn_lab.jobs.fairness import LimitHit, ShareTree
from djinn_lab.jobs.request import Request, Where
from djinn_lab.jobs.states import RANKS

STARTS_MAX = 500
"""So many starts are looked ahead; later ones are only known to be later."""

Basis = Literal["estimates", "guesses"]
"""What an expected start rests on: estimates of every job that runs or starts before; or some of these
have none, and are taken to need ``unknown_s``."""


class ExpectedStart(msgspec.Struct, frozen=True):
    """A first start. ``before``: jobs that wait now and start earlier, in that order."""

    job: str
    start_s: float
    where: Where
    before: tuple[str, ...]
    basis: Basis


class Forecast(msgspec.Struct, frozen=True):
    """First starts of the jobs that wait now, in order. ``until_s``: as far as the forecast goes;
    ``complete``: nothing was left to happen then. A job that is not among the starts of a complete
    forecast does not start by itself."""

    starts: dict[str, tuple[float, Where]]
    guessed_from: int
    until_s: float
    complete: bool

    def expected(self, job: str) -> ExpectedStart | None:
        found = self.starts.get(job)
        if found is None:
            return None
        order = list(self.starts)
        place = order.index(job)
        basis: Basis = "estimates" if place < self.guessed_from else "guesses"
        return ExpectedStart(job, found[0], found[1], tuple(order[:place]), basis)


class WhatIf(msgspec.Struct, frozen=True):
    """The same future twice: as it is and with the change. Times are None where the job does not start
    within the forecast. ``refused``: the account's limit that forbids the change."""

    job: str
    start_s: float | None
    changed_start_s: float | None
    refused: LimitHit | None = None

    @property
    def sooner_s(self) -> float:
        """By how much the change lets the job start earlier; 0 when it does not, infinite when the job
        starts only with the change."""
        if self.changed_start_s is None:
            return 0.0
        return math.inf if self.start_s is None else max(0.0, self.start_s - self.changed_start_s)


def forecast(
    cluster: Cluster,
    shares: ShareTree,
    policy: QueuePolicy,
    now_s: float,
    *,
    job: str | None = None,
    starts_max: int = STARTS_MAX,
) -> Forecast:
    """Forecast from now on; only until ``job`` has started, if one is named. Waiting jobs are taken to
    have their state and memory; stuck ones do not start."""
    state = cluster.state()
    waiting = tuple(replace(request, startable=not request.stuck) for request in state.waiting)
    restored = Cluster.restored(replace(state, waiting=waiting), now_s)
    future = _Future(restored, ShareTree(shares.state()), policy, now_s)
    return future.run(job, starts_max)


class Change(msgspec.Struct, frozen=True):
    """A change that a user could ask for. ``anywhere``: without a target."""

    priority: str | None = None
    members: int | None = None
    deadline_s: float | None = None
    anywhere: bool = False


def what_if(
    cluster: Cluster,
    shares: ShareTree,
    policy: QueuePolicy,
    now_s: float,
    job: str,
    *,
    priority: str | None = None,
    members: int | None = None,
    deadline_s: float | None = None,
    anywhere: bool = False,
) -> WhatIf:
    """Return when a waiting job would start with another priority, gang size or deadline, or without its
    target. Computed by the scheduler itself."""
    changed = changed_request(cluster.waiting[job], Change(priority, members, deadline_s, anywhere))
    before = start_with(cluster, shares, policy, now_s, cluster.waiting[job])
    after = start_with(cluster, shares, policy, now_s, changed)
    start_s = None if isinstance(before, LimitHit) else before
    if isinstance(after, LimitHit):
        return WhatIf(job, start_s, None, after)
    return WhatIf(job, start_s, after)


def start_with(
    cluster: Cluster, shares: ShareTree, policy: QueuePolicy, now_s: float, request: Request
) -> float | LimitHit | None:
    """Return when this request would start in the place of the waiting one of the same name; a limit that
    forbids it; None when it would not start within the forecast."""
    refused = submit_limit(cluster, shares, request, again=True)
    if refused is not None:
        return refused
    other = Cluster.restored(cluster.state(), now_s)
    if request != cluster.waiting[request.job]:
        other.change(request, now_s)
    expected = forecast(other, shares, policy, now_s, job=request.job).expected(request.job)
    return None if expected is None else expected.start_s


def changed_request(request: Request, change: Change) -> Request:
    """Return the changed request. Raises ValueError for a change that no job can ask for."""
    demand = request.demand
    if change.members is not None:
        if change.members < 1:
            raise ValueError(f"a gang of {change.members}; it takes at least one member")
        members_min = min(change.members, demand.members_min)
        demand = replace(demand, members=change.members, members_min=members_min)
    if change.anywhere:
        demand = replace(demand, nodes=None, selector=frozenset())
    if change.priority is not None and change.priority not in RANKS:
        raise ValueError(f"priority {change.priority!r} is none of {', '.join(RANKS)}")
    return replace(
        request,
        rank=request.rank if change.priority is None else RANKS[change.priority],
        demand=demand,
        deadline_s=request.deadline_s if change.deadline_s is None else change.deadline_s,
    )


class SessionMoves:
    """Sessions that move to another device before their start, where decisions are run forward as the live
    pool does it."""

    def __init__(self, cluster: Cluster, policy: QueuePolicy) -> None:
        self._cluster = cluster
        self._policy = policy
        self._under_way: list[tuple[float, int, str]] = []
        self._begun = 0

    @property
    def due_s(self) -> float:
        """Return when the next session has arrived; infinite for never."""
        return self._under_way[0][0] if self._under_way else math.inf

    def begin(self, plan: Plan) -> Plan:
        """Begin the moves of starts away from home; return the plan with the other starts only."""
        starts = []
        for start in plan.starts:
            request = self._cluster.waiting[start.job]
            if request.home is None or any(node == request.home for node, _ in start.where):
                starts.append(start)
            else:
                self._bring(request, start.where[0][0], plan.now_s)
                if self._policy.reserves_move_targets:
                    self._cluster.reserve(start.job, start.where, plan.now_s)
        return replace(plan, starts=tuple(starts))

    def _bring(self, request: Request, device: str, now_s: float) -> None:
        demand = request.demand
        if demand.members == 1:
            demand = replace(demand, nodes=frozenset({device}))
        moved_s = now_s + self._cluster.move_s(request, device)
        moving = replace(request, home=device, move_s=0.0, other_host_s=0.0, demand=demand, startable=False)
        self._cluster.change(moving, now_s)
        self._begun += 1
        heapq.heappush(self._under_way, (moved_s, self._begun, request.job))

    def end(self, now_s: float) -> None:
        """Make the sessions that have arrived by now startable."""
        while self.due_s <= now_s:
            request = self._cluster.waiting.get(heapq.heappop(self._under_way)[2])
            if request is not None:
                self._cluster.change(replace(request, startable=True), now_s)


class _Future:
    """``guessed_from``: the number of starts before the first that rests on a guess."""

    def __init__(self, cluster: Cluster, shares: ShareTree, policy: QueuePolicy, now_s: float) -> None:
        self.cluster, self.shares, self.policy, self.now_s = cluster, shares, policy, now_s
        self.starts: dict[str, tuple[float, Where]] = {}
        self.asked = frozenset(cluster.waiting)
        self.ends_s: dict[str, float] = {}
        self.guessed_from: int | None = None
        self._endings: list[tuple[float, int, str]] = []
        self._moves = SessionMoves(cluster, policy)
        self._pushed = 0
        for name, holding in cluster.holdings.items():
            if holding.ends_s is None or holding.ends_s <= now_s:
                self.guessed_from = 0
            self._expect_end(name, now_s + remaining_s(holding, policy, now_s))

    def run(self, job: str | None, starts_max: int) -> Forecast:
        complete = False
        while len(self.starts) < starts_max and (job is None or job not in self.starts):
            plan = decide(self.cluster, self.shares, self.policy, self.now_s)
            if plan:
                self._perform(self._moves.begin(plan))
                continue
            at_s = self._next_s(plan)
            if at_s == math.inf:
                complete = True
                break
            self.now_s = at_s
            self._moves.end(at_s)
            while self._endings and self._endings[0][0] <= at_s:
                self._end(heapq.heappop(self._endings))
        if not self.cluster.waiting:
            complete = True
        guessed_from = len(self.starts) if self.guessed_from is None else self.guessed_from
        return Forecast(self.starts, guessed_from, self.now_s, complete)

    def _next_s(self, plan: Plan) -> float:
        if not self.cluster.waiting:
            return math.inf
        while self._endings and not self._ends(self._endings[0]):
            heapq.heappop(self._endings)
        ends_s = self._endings[0][0] if self._endings else math.inf
        return min(ends_s, self._moves.due_s, math.inf if plan.wake_at_s is None else plan.wake_at_s)

    def _perform(self, plan: Plan) -> None:
        parking = {victim for made in plan.preemptions for victim in made.victims}
        enact(self.cluster, self.shares, plan)
        for start in plan.starts:
            if start.job in self.asked:
                self.starts.setdefault(start.job, (self.now_s, start.where))
            holding = self.cluster.holdings[start.job]
            if holding.ends_s is None and self.guessed_from is None:
                self.guessed_from = len(self.starts)
            self._expect_end(start.job, self.now_s + remaining_s(holding, self.policy, self.now_s))
        for victim in parking:
            self._park(victim)

    def _park(self, victim: str) -> None:
        holding = self.cluster.holdings[victim]
        left_s = remaining_s(holding, self.policy, self.now_s) + holding.park_s
        park(self.cluster, self.shares, victim, self.now_s, left_s)

    def _expect_end(self, job: str, ends_s: float) -> None:
        self._pushed += 1
        heapq.heappush(self._endings, (ends_s, self._pushed, job))
        self.ends_s[job] = ends_s

    def _end(self, ending: tuple[float, int, str]) -> None:
        if self._ends(ending):
            end(self.cluster, self.shares, ending[2], ending[0])

    def _ends(self, ending: tuple[float, int, str]) -> bool:
        """Return whether the job has not been preempted since this end was predicted."""
        ends_s, _, job = ending
        return job in self.cluster.holdings and self.ends_s[job] == ends_s
