"""What a decision of the shared queue costs when ten thousand cells of a thousand sessions wait, beside a
queue that sorts and scans them at every event.

An event: a running cell ends, its session hands in another, the queue decides, and the plan is enacted. All
of that is timed. Both sides get the same cells, with the same policy; the baseline knows no preemption,
which is work that it is spared."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.jobs.decision import POLICIES, Cluster, Plan, QueuePolicy, Start, decide, enact, end, park
from djinn_lab.jobs.decision.rules.keys import effective_rank, estimate_s, within_key
from djinn_lab.jobs.decision.trial import charge_for
from djinn_lab.jobs.fairness import Capacity, Limits, ShareTree
from djinn_lab.jobs.request import ComputeNode, Demand, Request

NAME = "decisions"
SEED = 1
WAITING, SESSIONS, ACCOUNTS, DEVICES = 10_000, 1_000, 50, 64
EVENTS, EVENTS_QUICK = 2_000, 20
BLOCK = 20
"""So many events of one side at a time, so that neither measures the other's traces in the caches."""
US = 1e6
WITH, WITHOUT = "with_guarantees", "without_guarantees"
RANK_WEIGHTS = (0.2, 4, 80, 10, 5.8)
"""Percent of the cells that are CRITICAL, HIGH, NORMAL, LOW and SCAVENGER."""

Decide = Callable[["Queue"], Plan]


@dataclass
class Queue:
    """A pool under load. ``decisions``: how often it was asked; ``decided_s``: what the answers took, without
    making them happen."""

    policy: QueuePolicy
    decide: Decide
    waiting: int
    now_s: float = 0.0
    decisions: int = 0
    decided_s: float = 0.0
    preemptions: int = 0
    guarantees: bool = False

    def __post_init__(self) -> None:
        self.draw = random.Random(SEED)
        self.cluster = Cluster(ComputeNode(f"cuda:{number}") for number in range(DEVICES))
        self.shares = ShareTree()
        self.shares.set_capacity(Capacity(devices=DEVICES))
        for account, devices in GUARANTEED.items() if self.guarantees else ():
            self.shares.set_limits(account, Limits(devices_guaranteed=devices))
        self.numbers = count()
        self.endings: list[tuple[float, int, str, float]] = []
        for _ in range(self.waiting):
            self.cluster.submit(self.next_request(), self.now_s)
        self.settle()

    def next_request(self) -> Request:
        """Make a cell of one of the sessions, which keep their account and their device."""
        number, draw = next(self.numbers), self.draw
        session = draw.randrange(SESSIONS)
        return Request(
            job=f"job{number}",
            account=account_of(session),
            rank=draw.choices(range(5), RANK_WEIGHTS)[0],
            number=number,
            arrived_s=self.now_s,
            demand=Demand(members=draw.choices((1, 2, 4), (96, 3, 1))[0]),
            estimate_s=draw.lognormvariate(1.0, 1.5),
            home=f"cuda:{session % DEVICES}",
            move_s=0.25,
            park_s=0.05,
        )

    def settle(self) -> None:
        while plan := self._plan():
            enact(self.cluster, self.shares, plan)
            for start in plan.starts:
                assert start.ends_s is not None
                entry = (start.ends_s, next(self.numbers), start.job, self.now_s)
                heapq.heappush(self.endings, entry)
            for made in plan.preemptions:
                self.preemptions += len(made.victims)
                for victim in made.victims:
                    left_s = self.cluster.holdings[victim].ends_s or 0.0
                    park(self.cluster, self.shares, victim, self.now_s, left_s - self.now_s + 0.05)
            if not plan.preemptions:
                return

    def _plan(self) -> Plan:
        start = perf_counter()
        plan = self.decide(self)
        self.decided_s += perf_counter() - start
        self.decisions += 1
        return plan

    def event(self) -> tuple[float, float]:
        """Microseconds for one with as many decisions as it took, and for one of these decisions alone."""
        while True:
            ends_s, _, job, started_s = heapq.heappop(self.endings)
            holding = self.cluster.holdings.get(job)
            if holding is not None and holding.started_s == started_s:
                break
        self.now_s = ends_s
        request = self.next_request()
        decisions, decided_s = self.decisions, self.decided_s
        start = perf_counter()
        end(self.cluster, self.shares, job, ends_s)
        self.cluster.submit(request, ends_s)
        self.settle()
        event_us = (perf_counter() - start) * US
        return event_us, (self.decided_s - decided_s) / (self.decisions - decisions) * US


def account_of(session: int) -> str:
    """Its user, 50 of them, in ten projects of five organisations."""
    return f"organisation{session % 5}/project{session % 10}/user{session % ACCOUNTS}"


GUARANTEED = {
    **{account_of(user): 1.0 for user in range(ACCOUNTS)},
    **{account_of(project).rpartition("/")[0]: 5.0 for project in range(10)},
    **{account_of(organisation).partition("/")[0]: 10.0 for organisation in range(5)},
}
"""Every account, of every level: 50 of the 64 devices."""


def indexed(queue: Queue) -> Plan:
    return decide(queue.cluster, queue.shares, queue.policy, queue.now_s)


def full_scan(queue: Queue) -> Plan:
    """Give every waiting cell its key, sort all, and start the first that fit."""
    cluster, shares, policy, now_s = queue.cluster, queue.shares, queue.policy, queue.now_s
    for request in cluster.waiting.values():
        shares.leaf(request.account)
    fair = shares.ranks()
    line = sorted(
        (effective_rank(one, policy, now_s), fair[one.account], within_key(one, policy), one.job)
        for one in cluster.waiting.values()
    )
    starts: list[Start] = []
    mark = cluster.capacity.checkpoint()
    for *_, job in line:
        request = cluster.waiting[job]
        placed = cluster.capacity.place(request.demand, home=request.home)
        if placed is not None:
            cluster.capacity.take(request.demand, placed.where)
            seconds = estimate_s(request, policy)
            charge = charge_for(request.demand, placed.members, seconds)
            starts.append(Start(job, placed.where, now_s + seconds, charge, now_s + seconds))
            if not cluster.capacity.devices_free:
                break
    cluster.capacity.rollback(mark)
    return Plan(now_s, tuple(starts))


def measure(bench: Bench) -> list[Figure]:
    events = bench.rounds(EVENTS, EVENTS_QUICK)
    waiting = bench.rounds(WAITING, WAITING // 20)
    policy = POLICIES["default"]
    queues = {
        OURS: Queue(policy, indexed, waiting),
        "full_scan": Queue(policy, full_scan, waiting),
        WITH: Queue(policy, indexed, waiting, guarantees=True),
    }
    taken: dict[str, list[float]] = {name: [] for name in queues}
    alone: dict[str, list[float]] = {name: [] for name in queues}
    ours = queues[OURS]
    before, before_s = ours.decisions, ours.decided_s
    for turn in range(events // BLOCK):
        for name in list(queues)[:: 1 if turn % 2 else -1]:
            for _ in range(BLOCK):
                event_us, decision_us = queues[name].event()
                taken[name].append(event_us)
                alone[name].append(decision_us)
    decisions, mean_us = ours.decisions - before, sum(taken[OURS]) / len(taken[OURS])
    facts = {
        "waiting": waiting,
        "sessions": SESSIONS,
        "accounts": ACCOUNTS,
        "devices": DEVICES,
        "events_per_s": round(US / mean_us),
        "decisions_per_s": round(US / mean_us * decisions / len(taken[OURS])),
        "decisions_per_event": round(decisions / len(taken[OURS]), 2),
        "preemptions": ours.preemptions,
        "policy": policy.name,
    }
    title = f"one event with {waiting:,} waiting cells: end, arrival, decision, enacted"
    goals = [Goal(250.0, "median"), Goal(2_000.0, "p99")]
    by_itself = "of these, a decision alone (mean of an event's)"
    per_s = round(decisions / (ours.decided_s - before_s))
    return [
        figure(NAME, title, "us", _beside(taken, "full_scan"), goals, **facts),
        figure(
            NAME, by_itself, "us", _beside(alone, "full_scan"), [Goal(250.0, "median")], decisions_per_s=per_s
        ),
        *_with_guarantees(queues[WITH], taken, alone),
    ]


def _beside(taken: dict[str, list[float]], other: str, ours: str = OURS) -> dict[str, list[float]]:
    return {OURS: taken[ours], WITHOUT if other == OURS else other: taken[other]}


def _with_guarantees(
    queue: Queue, taken: dict[str, list[float]], alone: dict[str, list[float]]
) -> list[Figure]:
    """The same events where every account is guaranteed devices, beside those without."""
    preemptions = queue.preemptions
    title = f"one event where {len(GUARANTEED)} accounts are guaranteed devices"
    return [
        figure(NAME, title, "us", _beside(taken, OURS, WITH), preemptions=preemptions),
        figure(NAME, f"{title}: a decision alone", "us", _beside(alone, OURS, WITH)),
    ]
