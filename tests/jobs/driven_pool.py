"""A pool in simulated time that enacts the plans of decisions, for their tests."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from hypothesis import strategies as st
from msgspec.structs import replace

from djinn_lab.jobs.decision import Cluster, Plan, QueuePolicy, decide, enact, end, park
from djinn_lab.jobs.decision.explaining.forecast import SessionMoves
from djinn_lab.jobs.fairness import Capacity, ShareSettings, ShareState, ShareTree
from djinn_lab.jobs.request import ComputeNode, Demand, Request


class DrivenPool:
    """A pool of jobs that end after ``runs_s``, by default their estimate. A preempted job stops at once and
    runs ``park_s`` longer when it resumes. ``preemptions``: (when, victim, preemptor). ``intervals``: (job,
    where, from, to)."""

    def __init__(
        self,
        nodes: Iterable[ComputeNode],
        policy: QueuePolicy,
        *,
        park_s: float = 0.0,
        quantum_s: float = 60.0,
    ) -> None:
        self.policy = policy
        self.park_s = park_s
        self.cluster = Cluster(nodes)
        self.shares = ShareTree(ShareState(ShareSettings(quantum_s=quantum_s)))
        devices = sum(node.devices for node in self.cluster.nodes.values())
        self.shares.set_capacity(Capacity(devices=devices))
        self.now_s = 0.0
        self.runs_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.first_start_s: dict[str, float] = {}
        self.intervals: list[tuple[str, tuple[tuple[str, int], ...], float, float]] = []
        self.preemptions: list[tuple[float, str, str]] = []
        self.plans: list[Plan] = []
        self._endings: list[tuple[float, int, str]] = []
        self._arrivals: list[tuple[float, int, Request]] = []
        self._starts = 0
        self._moves = SessionMoves(self.cluster, policy)

    def arrive(self, request: Request, runs_s: float | None = None) -> None:
        request = replace(request, park_s=self.park_s)
        heapq.heappush(self._arrivals, (request.arrived_s, request.number, request))
        needed = runs_s if runs_s is not None else request.estimate_s
        assert needed is not None
        self.runs_s[request.job] = needed

    def run(self, until_s: float = math.inf, steps_max: int = 100_000) -> None:
        """Run until no event is left, or until ``until_s``."""
        wake_s = self.settle().wake_at_s or math.inf
        for _ in range(steps_max):
            self._drop_stale()
            moments = [self._endings[0][0]] if self._endings else []
            moments += [self._arrivals[0][0]] if self._arrivals else []
            moments += [wake_s, self._moves.due_s] if self.cluster.waiting else []
            at_s = min(moments, default=math.inf)
            if at_s > until_s or at_s == math.inf:
                self.now_s = max(self.now_s, min(until_s, self.now_s if at_s == math.inf else until_s))
                return
            self.now_s = max(self.now_s, at_s)
            self._moves.end(self.now_s)
            self._end_those_due()
            while self._arrivals and self._arrivals[0][0] <= self.now_s:
                self.cluster.submit(heapq.heappop(self._arrivals)[2], self.now_s)
            plan = self.settle()
            wake_s = math.inf if plan.wake_at_s is None else plan.wake_at_s
        raise AssertionError(f"still busy after {steps_max} steps")

    def settle(self) -> Plan:
        """Decide and enact until a plan at this moment is empty; return that plan."""
        for _ in range(1000):
            plan = decide(self.cluster, self.shares, self.policy, self.now_s)
            self.plans.append(plan)
            if not plan:
                return plan
            self.perform(self._moves.begin(plan))
        raise AssertionError("decisions at one moment do not come to an end")

    def perform(self, plan: Plan) -> None:
        enact(self.cluster, self.shares, plan)
        for start in plan.starts:
            self._starts += 1
            heapq.heappush(self._endings, (self.now_s + self.runs_s[start.job], self._starts, start.job))
            self.first_start_s.setdefault(start.job, self.now_s)
        for made in plan.preemptions:
            for victim in made.victims:
                self.preemptions.append((self.now_s, victim, made.by))
                holding = self.cluster.holdings[victim]
                ran_s = self.now_s - holding.started_s
                self.runs_s[victim] = max(0.0, self.runs_s[victim] - ran_s) + self.park_s
                left_s = self.runs_s[victim] if holding.request.estimate_s is not None else None
                self._record(victim)
                park(self.cluster, self.shares, victim, self.now_s, left_s)

    def _drop_stale(self) -> None:
        while self._endings and not self._current(self._endings[0]):
            heapq.heappop(self._endings)

    def _current(self, ending: tuple[float, int, str]) -> bool:
        at_s, _, job = ending
        holding = self.cluster.holdings.get(job)
        return holding is not None and holding.started_s + self.runs_s[job] == at_s

    def _end_those_due(self) -> None:
        self._drop_stale()
        while self._endings and self._endings[0][0] <= self.now_s:
            job = heapq.heappop(self._endings)[2]
            self._record(job)
            end(self.cluster, self.shares, job, self.now_s)
            self.ended_s[job] = self.now_s
            self._drop_stale()

    def _record(self, job: str) -> None:
        holding = self.cluster.holdings[job]
        self.intervals.append((job, holding.where, holding.started_s, self.now_s))


def device_nodes(count: int) -> list[ComputeNode]:
    """Return nodes of one device each, as in the live pool."""
    return [ComputeNode(f"gpu:{number}") for number in range(count)]


def request(
    job: str,
    number: int,
    *,
    account: str = "ann",
    rank: int = 2,
    at_s: float = 0.0,
    seconds: float | None = 10.0,
    members: int = 1,
    **more: object,
) -> Request:
    demand = more.pop("demand", None) or Demand(members=members, members_min=members)
    return Request(job, account, rank, number, at_s, demand, seconds, **more)  # type: ignore[arg-type]


def loads(
    accounts: list[str], *, at_s: int, seconds: int, members: int, size: int
) -> st.SearchStrategy[list[tuple[str, int, int, int, int]]]:
    """Draw up to ``size`` requests for :func:`drawn_request`: account, rank, arrival up to ``at_s``, run time
    up to ``seconds``, and up to ``members`` members."""
    drawn = st.tuples(
        st.sampled_from(accounts),
        st.integers(0, 4),
        st.integers(0, at_s),
        st.integers(1, seconds),
        st.integers(1, members),
    )
    return st.lists(drawn, min_size=1, max_size=size)


def drawn_request(
    number: int, account: str, rank: int, at_s: int, seconds: int, members: int = 1, **more: object
) -> Request:
    """Make a request from what :func:`loads` drew, in whole seconds."""
    return request(
        f"job{number}",
        number,
        account=account,
        rank=rank,
        at_s=float(at_s),
        seconds=float(seconds),
        members=members,
        phase=("", "prefill", "decode")[number % 3],
        **more,
    )
