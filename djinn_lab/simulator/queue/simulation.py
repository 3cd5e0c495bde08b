"""One pool under a simulated clock. Decisions are :func:`djinn_lab.jobs.decision.decide`'s, as in the live
pool; what is simulated is that jobs arrive, run, end, are preempted and resume, and that nodes fail.

All that happens at one moment happens before the decision about it: ends first, then arrivals."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Literal, get_args

from msgspec.structs import replace

from djinn_lab.jobs.decision import Cluster, Plan, QueuePolicy, Start, decide, enact, end, park
from djinn_lab.jobs.fairness import Capacity, Limits, ShareSettings, ShareState, ShareTree
from djinn_lab.jobs.request import ComputeNode, Request, left_s, members_in
from djinn_lab.simulator.queue.figures import Records
from djinn_lab.simulator.queue.history import History
from djinn_lab.simulator.queue.settings import Estimates, QueueSettings
from djinn_lab.simulator.queue.workload import Follower, TraceJob


class Estimator:
    """Estimate a job's run time when it is submitted. ``history`` looks at jobs that have ended by then,
    never ahead."""

    def __init__(self, kind: Estimates) -> None:
        self.kind = kind
        self._last: dict[str, tuple[float, ...]] = {}

    def estimate_s(self, job: TraceJob) -> float | None:
        match self.kind:
            case "exact":
                return job.run_s
            case "none":
                return None
            case "given":
                return job.estimate_s
            case "history":
                last = self._last.get(job.account)
                if last is None:
                    return job.estimate_s
                mean_s = sum(last) / len(last)
                return mean_s if job.estimate_s is None else min(mean_s, job.estimate_s)

    def ended(self, job: TraceJob) -> None:
        if self.kind == "history":
            self._last[job.account] = (*self._last.get(job.account, ())[-1:], job.run_s)


Kind = Literal["repaired", "ended", "freed", "parked", "failed", "wake", "submitted"]
ORDER: dict[Kind, int] = {kind: place for place, kind in enumerate(get_args(Kind))}
NEVER_CHARGED_AGAIN_S = 1e15
NO_FOLLOWERS: Mapping[str, Follower] = {}


@dataclass(slots=True)
class StartedJob:
    """A job that was started and has not ended. ``left_s``: of its run time, at full size. ``since_s``: when
    it began to compute this time, ``rate`` the part of full speed that it has. ``attempt`` distinguishes a
    stale end from the true one. ``ended``: only the state of its session is still being parked."""

    job: TraceJob
    left_s: float
    estimate_s: float | None
    first_s: float | None = None
    since_s: float = 0.0
    rate: float = 1.0
    attempt: int = 0
    preempted: int = 0
    parked: bool = False
    stopped: bool = False
    ended: bool = False


class PoolSimulation:
    def __init__(
        self,
        jobs: Iterable[TraceJob],
        nodes: Iterable[ComputeNode],
        policy: QueuePolicy,
        settings: QueueSettings,
        followers: Mapping[str, Follower] = NO_FOLLOWERS,
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.cluster = Cluster(nodes)
        self.devices = self.cluster.capacity.devices
        quantum_s = settings.quantum_s if policy.by_fairness else NEVER_CHARGED_AGAIN_S
        shares = ShareSettings(half_life_s=settings.half_life_s, quantum_s=quantum_s)
        self.shares = ShareTree(ShareState(shares, Capacity(devices=float(self.devices))))
        for account, devices in settings.guaranteed.items():
            self.shares.set_limits(account, Limits(devices_guaranteed=devices))
        self.records = Records()
        self.busy = History()
        self.queue = History()
        self.now_s = -math.inf
        self.plan = Plan(self.now_s)
        self.decisions = 0
        self.failures = 0
        self.unplaceable = 0
        self._estimator = Estimator(settings.estimates)
        self._followers = followers
        self._thought_of: dict[str, TraceJob] = {}
        """Followers that are submitted when their session has thought."""
        self._arrivals: Iterator[TraceJob] = iter(jobs)
        self._next: TraceJob | None = next(self._arrivals, None)
        self._running: dict[str, StartedJob] = {}
        self._due: list[tuple[float, int, int, Kind, str, int]] = []
        self._numbers = count()
        self._arrived = count()
        self._wake_s = math.inf
        self._random = Random(settings.failures.seed if settings.failures is not None else 0)
        if settings.failures is not None and self._next is not None:
            for name in self.cluster.nodes:
                self._fail_later(name, self._next.submit_s)

    @property
    def waiting(self) -> int:
        return len(self.cluster.waiting)

    # -- time ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Simulate until no event is left. Jobs that can never start stay pending."""
        while self.step():
            pass

    def step(self) -> bool:
        """Simulate the next moment at which something happens; False when no event is left."""
        if self._next is None and not self._running and not self._thought_of:
            return False
        next_s = self._next.submit_s if self._next is not None else math.inf
        now_s = min(next_s, self._due[0][0] if self._due else math.inf)
        if now_s == math.inf:
            return False
        self.now_s = now_s
        while self._due and self._due[0][0] <= now_s:
            _, _, _, kind, name, attempt = heapq.heappop(self._due)
            self._happen(kind, name, attempt)
        while self._next is not None and self._next.submit_s <= now_s:
            self._arrive(self._next)
            self._next = next(self._arrivals, None)
        self._decide()
        return True

    def _at(self, when_s: float, kind: Kind, name: str = "", attempt: int = 0) -> None:
        heapq.heappush(self._due, (when_s, ORDER[kind], next(self._numbers), kind, name, attempt))

    def _happen(self, kind: Kind, name: str, attempt: int) -> None:
        match kind:
            case "ended":
                if name in self._running and self._running[name].attempt == attempt:
                    self._end(self._running[name])
            case "freed":
                if name in self._running and self._running[name].attempt == attempt:
                    self._free(self._running[name])
            case "submitted":
                self._arrive(self._thought_of.pop(name))
            case "parked":
                if name in self._running and self._running[name].attempt == attempt:
                    self._parked(self._running[name])
            case "failed":
                self._fail(name)
            case "repaired":
                self.cluster.set_node(replace(self.cluster.nodes[name], ready=True))
                self._fail_later(name, self.now_s)
            case "wake":
                if self.now_s >= self._wake_s:
                    self._wake_s = math.inf

    # -- jobs ------------------------------------------------------------------------------------------------

    def _arrive(self, job: TraceJob) -> None:
        if not self.cluster.capacity.ever_fits(job.demand):
            self.unplaceable += 1
            return
        running = self._running[job.job] = StartedJob(job, job.run_s, self._estimator.estimate_s(job))
        self._submit(running, running.estimate_s)

    def _submit(self, running: StartedJob, estimate_s: float | None) -> None:
        job = running.job
        request = Request(
            job=job.job,
            account=job.account,
            rank=job.rank,
            number=next(self._arrived),
            arrived_s=job.submit_s,
            demand=job.demand,
            estimate_s=estimate_s,
        )
        self.cluster.submit(request, self.now_s)

    def _begin(self, start: Start) -> None:
        running = self._running[start.job]
        demand, members = running.job.demand, start.members
        parking = self.settings.parking
        state_bytes = running.job.state_bytes
        back_s = parking.back_s(members, state_bytes) if running.parked else parking.state_s(state_bytes)
        out_s = parking.out_s(members, state_bytes)
        running.first_s = self.now_s if running.first_s is None else running.first_s
        running.since_s = self.now_s + back_s
        running.rate = members / demand.members
        running.attempt += 1
        running.parked = running.stopped = False
        self.cluster.update(replace(self.cluster.holdings[start.job], park_s=out_s + back_s))
        self._at(running.since_s + running.left_s / running.rate, "ended", start.job, running.attempt)

    def _end(self, running: StartedJob) -> None:
        """The job has computed; its devices are free once the state of its session is parked."""
        job = running.job
        assert running.first_s is not None
        self.records.add(job, running.first_s, self.now_s, running.preempted)
        self._estimator.ended(job)
        follower = self._followers.get(job.job)
        if follower is not None:
            submit_s = self.now_s + follower.think_s
            self._thought_of[follower.job.job] = replace(follower.job, submit_s=submit_s)
            self._at(submit_s, "submitted", follower.job.job)
        state_s = self.settings.parking.state_s(job.state_bytes)
        if not state_s:
            self._free(running)
            return
        running.ended = True
        self.cluster.update(replace(self.cluster.holdings[job.job], preemptible=False))
        self._at(self.now_s + state_s, "freed", job.job, running.attempt)

    def _free(self, running: StartedJob) -> None:
        end(self.cluster, self.shares, running.job.job, self.now_s)
        del self._running[running.job.job]

    def _preempt(self, name: str) -> None:
        """Preempt a job at once, between two ops; it holds its devices until its state is parked."""
        running = self._running[name]
        self._work_off(running)
        running.attempt += 1
        running.preempted += 1
        running.stopped = True
        members = members_in(self.cluster.holdings[name].where)
        out_s = self.settings.parking.out_s(members, running.job.state_bytes)
        self._at(self.now_s + out_s, "parked", name, running.attempt)

    def _work_off(self, running: StartedJob) -> None:
        done_s = max(0.0, self.now_s - running.since_s) * running.rate
        running.left_s = max(0.0, running.left_s - done_s)

    def _parked(self, running: StartedJob) -> None:
        name = running.job.job
        running.parked = True
        park(self.cluster, self.shares, name, self.now_s, self._still_s(running))

    def _still_s(self, running: StartedJob) -> float | None:
        """Return the estimated run time still to come, and the time to bring its state back."""
        if running.estimate_s is None:
            return None
        had_s = running.job.run_s - running.left_s
        back_s = self.settings.parking.back_s(running.job.demand.members, running.job.state_bytes)
        return left_s(running.estimate_s, had_s) + back_s

    # -- nodes -----------------------------------------------------------------------------------------------

    def _fail_later(self, name: str, from_s: float) -> None:
        assert self.settings.failures is not None
        after_s = self._random.expovariate(1 / self.settings.failures.every_s)
        self._at(from_s + after_s, "failed", name)

    def _fail(self, name: str) -> None:
        """Fail a node: its jobs lose what they computed since they started or resumed, and are pending
        again."""
        assert self.settings.failures is not None
        self.failures += 1
        for job in list(self.cluster.on_node[name]):
            running = self._running[job]
            if running.ended:
                self._free(running)
                continue
            running.attempt += 1
            end(self.cluster, self.shares, job, self.now_s)
            running.parked = running.left_s < running.job.run_s
            self._submit(running, self._still_s(running))
        self.cluster.set_node(replace(self.cluster.nodes[name], ready=False))
        self._at(self.now_s + self.settings.failures.repair_s, "repaired", name)

    # -- decisions -------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        plan = decide(self.cluster, self.shares, self.policy, self.now_s)
        self.plan = plan
        self.decisions += 1
        if plan:
            enact(self.cluster, self.shares, plan)
            self._perform(plan)
        held = self.cluster.devices_held.get("", 0.0)
        self.busy.set(self.now_s, held)
        self.queue.set(self.now_s, len(self.cluster.waiting))
        if plan.wake_at_s is not None and plan.wake_at_s < self._wake_s:
            self._wake_s = max(plan.wake_at_s, math.nextafter(self.now_s, math.inf))
            self._at(self._wake_s, "wake")

    def _perform(self, plan: Plan) -> None:
        for start in plan.starts:
            self._begin(start)
        for made in plan.preemptions:
            for victim in made.victims:
                self._preempt(victim)
