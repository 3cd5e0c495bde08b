"""Between the jobs of the pool and the decisions about them: who contends for a device, and what a plan means
for a job.

Of every session one job contends, the first that is there: what a session runs later reads what it made
before. A job contends from the device that its session is bound to, its *home*; a decision to start it on
another means that its session moves there first.

A gang holds several devices, its session's among them, all of them from its start on; it may give one back
early. Asked to move aside, it leaves all of them at once.

Session memory has the last word on whether a segment can start (:mod:`djinn_lab.memory`). A decision to start
one that memory has not granted yet passes over it until memory says something new about it, and has memory
serve it first (:mod:`.next_up`); where others moved aside for it the device stays its own meanwhile.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from msgspec.structs import replace

from djinn_lab.jobs import lifecycle
from djinn_lab.jobs.asking import request_of
from djinn_lab.jobs.commands import ChargeAccount, PlaceSegment, StartSegment
from djinn_lab.jobs.conditions import jobs_in
from djinn_lab.jobs.decision import POLICIES, Cluster, Plan, QueuePolicy, Start, decide, enact, submit_limit
from djinn_lab.jobs.decision.moves import keeps_turn
from djinn_lab.jobs.displacement import for_whom
from djinn_lab.jobs.fairness import Amounts, Capacity, ShareTree
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.messages import MemoryNeed, SegmentSubmitted
from djinn_lab.jobs.next_up import NextUp
from djinn_lab.jobs.placement.nearness import company
from djinn_lab.jobs.request import Node, Request
from djinn_lab.jobs.states import CONTENDING, RANKS, IllegalEvent, JobState, Move
from djinn_lab.jobs.tables import Tables, moved, next_state
from djinn_lab.jobs.targets import suits

ROUNDS_MAX = 1000


@dataclass(slots=True)
class Contest:
    """``contender``: by session. ``passed_over``: memory has not granted what a decision wanted to start.
    ``turns_kept``: jobs for which a device was kept while they moved there.
    ``given_back_s``: device-seconds of running gangs on devices that have left them. ``followed``: all that a
    decision reads of a device, as it was last."""

    tables: Tables
    policy: QueuePolicy = POLICIES["ours"]
    shares: ShareTree = field(default_factory=ShareTree)
    cluster: Cluster = field(default_factory=Cluster)
    contender: dict[str, str] = field(default_factory=dict)
    passed_over: set[str] = field(default_factory=set)
    turns_kept: set[str] = field(default_factory=set)
    next_up: NextUp = field(init=False)
    given_back_s: dict[str, float] = field(default_factory=dict)
    wake_at_s: float | None = None
    followed: dict[str, tuple[object, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.next_up = NextUp(self.tables, self.cluster)

    def settle(self, at_s: float) -> None:
        """Decide until nothing is left to do."""
        self._follow(at_s)
        for _ in range(ROUNDS_MAX):
            self._bind_new(at_s)
            plan = decide(self.cluster, self.shares, self.policy, at_s)
            self.wake_at_s = plan.wake_at_s
            if not plan:
                self._take_back()
                return
            self._obey(plan, at_s)
        raise AssertionError(f"decisions do not come to an end: {plan}")

    def check_limits(self, event: SegmentSubmitted) -> None:
        """Raises IllegalEvent for a job that its account may not hand in."""
        account = event.account or event.user
        request = Request(event.job, account, RANKS[event.priority], 0, event.at_s)
        hit = submit_limit(self.cluster, self.shares, request)
        if hit is None:
            return
        whose = f"account {hit.account}" if hit.account else "the pool"
        if hit.kind == "rank":
            best = list(RANKS)[int(hit.limit)]
            raise IllegalEvent(f"priority {event.priority} is above the limit of {whose}, {best}", "client")
        if hit.kind == "queued":
            message = f"{whose} has {hit.used:.0f} cells waiting, and may have {hit.limit:.0f}"
            raise IllegalEvent(message, "client")
        raise IllegalEvent(f"{whose} may have {hit.limit:g} devices, and this needs {hit.wanted:g}", "client")

    # -- following the jobs --------------------------------------------------------------------------------

    def _follow(self, at_s: float) -> None:
        """Bring what decisions read to what the last event made of the jobs."""
        tables, cluster = self.tables, self.cluster
        others = self._follow_devices()
        self.passed_over -= tables.memory_news
        touched = [job for name in tables.touched if (job := tables.find(name))]
        for job in touched:
            if job.job in cluster.holdings and job.state is not JobState.RUNNING:
                self._stopped(job, at_s)
            elif job.job in cluster.holdings:
                self._shrunk(job, at_s)
            if job.finished:
                self.passed_over.discard(job.job)
                self.turns_kept.discard(job.job)
        sessions = {job.session: None for job in touched}
        named = {name for one in touched if one.terms.after for name in jobs_in(one.terms.after)}
        sessions |= {tables.jobs[name].session: None for name in sorted(named) if name in tables.jobs}
        for session in dict.fromkeys((*sessions, *others)) if others else sessions:
            self._follow_session(session, at_s)

    def _follow_devices(self) -> list[str]:
        """Sessions for which another device may be the right one now."""
        others: dict[str, None] = {}
        price_per_kwh = self.policy.energy_price_per_kwh
        for name, device in self.tables.devices.items():
            facts = (
                *(device.slots, device.numa_node, device.given_labels, device.taints, device.cordoned),
                *(device.alive, device.price, device.watts, price_per_kwh),
            )
            if self.followed.get(name) == facts:
                continue
            self.followed[name] = facts
            node = Node(
                name,
                devices=device.slots,
                labels=device.labels,
                taints=device.taints,
                cordoned=device.cordoned,
                ready=device.alive,
                price=device.hour_price(price_per_kwh),
            )
            known = self.cluster.nodes.get(name)
            if known == node:
                continue
            self.cluster.set_node(node)
            self.tables.place_again()
            self._offer()
            described = known is not None and (known.labels, known.taints) != (node.labels, node.taints)
            if node.cordoned or not node.ready or described:
                self._keep_nothing_on(name)
            if described:
                others |= dict.fromkeys(self.contender)
        return list(others)

    def _take_back(self) -> None:
        """Who has room that somebody lacks who is to start before asks for it again, behind."""
        tables, now_s = self.tables, self.tables.now_s
        in_the_way, again_s = self.next_up.take_back(now_s)
        if again_s < math.inf:
            self.wake_at_s = min(again_s, self.wake_at_s or again_s)
        for one in in_the_way:
            job = tables.jobs[one.job]
            if job.held_on == one.held_on:  # else it has moved, with a mate
                assert job.held_on is not None
                held = moved(job, Move.HOLD) if job.state is JobState.QUEUED else job
                tables.put(replace(held, memory="ask"))
                tables.out.append(PlaceSegment(job.job, job.segment, job.session, job.held_on))
                self._follow_session(job.session, now_s)

    def _keep_nothing_on(self, device: str) -> None:
        """Nobody can start there: who waits for his place there looks for another."""
        for pin in list(self.cluster.pins.values()):
            if any(node == device for node, _ in pin.where):
                self.cluster.unpin(pin.job)

    def _offer(self) -> None:
        """What the pool has to share, all its devices up."""
        devices = self.tables.devices.values()
        memory_bytes = float(sum(device.memory_bytes for device in devices))
        link_bytes_per_s = sum(device.link_bytes_per_s for device in devices)
        slots = float(sum(device.slots for device in devices))
        self.shares.set_capacity(Capacity(slots, memory_bytes, link_bytes_per_s))

    def _stopped(self, job: Job, at_s: float) -> None:
        """Off its device. What it used replaces what it was charged."""
        held = self.cluster.finish(job.job)
        ended_at_s = max(at_s, held.started_s)
        used = self.tables.used.pop(job.job, (0.0, 0.0))
        device_s = (ended_at_s - held.started_s) * len(held.where) + self.given_back_s.pop(job.job, 0.0)
        self.shares.settle(job.job, Amounts(device_s, *used))
        for number, (device, _) in enumerate(held.where):
            self._charge(job, device, held.started_s, ended_at_s, *(used if number == 0 else (0.0, 0.0)))
            self._look_again(device, at_s)

    def _look_again(self, device: str, at_s: float) -> None:
        """At those there whom memory was not ready for: where they may start is another question now."""
        if not self.passed_over:
            return
        jobs = self.tables.jobs
        for name in [one for one in sorted(self.passed_over) if one in jobs and jobs[one].held_on == device]:
            self.passed_over.discard(name)
            self._follow_session(jobs[name].session, at_s)

    def _charge(
        self,
        job: Job,
        device: str,
        started_s: float,
        ended_s: float,
        memory_byte_s: float = 0.0,
        transfer_bytes: float = 0.0,
    ) -> None:
        """A line of the usage ledger."""
        self.tables.out.append(
            ChargeAccount(
                job=job.job,
                segment=job.segment,
                account=job.account,
                user=job.user,
                device=device,
                started_at_s=started_s,
                ended_at_s=ended_s,
                memory_byte_s=memory_byte_s,
                transfer_bytes=transfer_bytes,
            )
        )

    def _shrunk(self, job: Job, at_s: float) -> None:
        """A gang has given devices back, or lost them."""
        held = self.cluster.holdings[job.job]
        gone = [device for device, _ in held.where if device not in job.holds]
        if not gone:
            return
        ended_at_s = max(at_s, held.started_s)
        self.cluster.shrink(job.job, tuple(one for one in held.where if one[0] not in gone))
        self.given_back_s[job.job] = self.given_back_s.get(job.job, 0.0) + len(gone) * (
            ended_at_s - held.started_s
        )
        for device in gone:
            self._charge(job, device, held.started_s, ended_at_s)

    def _follow_session(self, session: str, at_s: float) -> None:
        first = self.tables.first_of_session(session)
        if first is not None and first.state not in CONTENDING:
            first = None
        before = self.contender.get(session)
        if before is not None and before in self.cluster.waiting and (first is None or first.job != before):
            self.cluster.withdraw(before)
        if first is None:
            self.contender.pop(session, None)
            return
        self.contender[session] = first.job
        device = self._better_place(first)
        if device is not None:
            self._move(first, device, at_s)
            return
        request = request_of(self.tables, first, passed_over=first.job in self.passed_over)
        known = self.cluster.waiting.get(first.job)
        if known is None:
            self.cluster.submit(request, at_s)
        elif known != request:
            self.cluster.change(request, at_s)
        pin, nodes, anchor = self.cluster.pins.get(first.job), request.demand.nodes, request.demand.anchor
        kept = set() if pin is None else {node for node, _ in pin.where}
        if kept and ((nodes is not None and kept - nodes) or anchor not in (None, *kept)):
            self.cluster.unpin(first.job)

    def _better_place(self, job: Job) -> str | None:
        """A device that suits it, where the one that its session is bound to does not."""
        assert job.held_on is not None
        here = self.tables.devices[job.held_on]
        if job.settled or job.move_s is None or suits(job.wish, job.terms.tolerates, here):
            return None
        return self._least_loaded(job)

    def elsewhere(self, job: Job) -> tuple[str, ...]:
        """Devices that serve and suit it, besides the one where it is."""
        others = (one for one in self.tables.devices.values() if one.device != job.held_on)
        serving = (one for one in others if one.alive and not one.cordoned)
        return tuple(one.device for one in serving if suits(job.wish, job.terms.tolerates, one))

    def move_to(self, job: Job, device: str, at_s: float) -> None:
        """Raises IllegalEvent for one that does not wait, or a device that does not suit it."""
        if job.state not in CONTENDING or device not in self.elsewhere(job):
            raise IllegalEvent(f"job {job.job} ({job.state}) cannot move to {device}", "pool")
        self._move(job, device, at_s)

    # -- sessions without a device -------------------------------------------------------------------------

    def _bind_new(self, at_s: float) -> None:
        """Give jobs without a device one, so that memory can be asked: of those that suit it the least
        loaded; ties by price, for a gang by room nearby, and by name. Binding is no promise: a decision may
        move the session."""
        tables = self.tables
        candidates: list[tuple[int, str]] = []
        self._add_unplaced(candidates, -1)
        while candidates:
            arrival, name = heapq.heappop(candidates)
            job = tables.jobs[name]
            if job.state is not JobState.SUBMITTED or job.waits_for:
                continue
            device = tables.bound.get(job.session) or self._least_loaded(job)
            if device is not None:
                self._bind(job, device)
                self._follow_session(job.session, at_s)
                self._add_unplaced(candidates, arrival)

    def _add_unplaced(self, candidates: list[tuple[int, str]], after: int) -> None:
        """Those that arrived ``after`` that; the others have their turn at the next look."""
        tables = self.tables
        for name in list(tables.unplaced):
            job = tables.jobs.get(name)
            if job is None or job.state is not JobState.SUBMITTED:
                del tables.unplaced[name]
            elif job.arrival > after:
                del tables.unplaced[name]
                heapq.heappush(candidates, (job.arrival, name))

    def _bind(self, job: Job, device: str) -> None:
        self.tables.bind(job.session, device)
        bound = replace(moved(job, Move.BIND), held_on=device)
        if bound.memory in ("ask", "held"):
            bound = moved(bound, Move.HOLD)
        if bound.memory == "ask":
            self.tables.out.append(PlaceSegment(job.job, job.segment, job.session, device))
        self.tables.put(bound)

    def _least_loaded(self, job: Job) -> str | None:
        tables = self.tables
        tolerates = job.terms.tolerates
        open_devices = [device for device in tables.devices.values() if device.alive and not device.cordoned]
        load = {
            device.device: tables.load.get(device.device, 0)
            for device in open_devices
            if suits(job.wish, tolerates, device)
        }
        near = company(job.gang, [tables.devices[name] for name in load])

        def rank(name: str) -> tuple[int, float, int, str]:
            price = tables.devices[name].hour_price(self.policy.energy_price_per_kwh)
            return load[name], price, -near.get(name, 0), name

        return min(load, key=rank, default=None)

    # -- obeying a plan ------------------------------------------------------------------------------------

    def _obey(self, plan: Plan, at_s: float) -> None:
        """As the simulators do, but for starts that their session's place or memory is not ready for."""
        jobs = self.tables.jobs
        ready = tuple(start for start in plan.starts if self._is_ready(jobs[start.job], start))
        asked = self._asked_to_leave(plan)
        enact(self.cluster, self.shares, replace(plan, starts=ready))
        for victim, reason in asked:
            lifecycle.ask_to_move_aside(self.tables, victim, reason)
        for start in plan.starts:
            job, chosen = jobs[start.job], [node for node, _ in start.where]
            if start in ready:
                self._start(job, chosen, at_s)
            elif job.held_on not in chosen:
                self._move(job, chosen[0], at_s)
                self._keep_turn(job, start, at_s)
            else:
                self.next_up.want(job)
                self.passed_over.add(job.job)
                self._follow_session(job.session, at_s)

    def _keep_turn(self, job: Job, start: Start, at_s: float) -> None:
        """Once: where memory has no room for it after all, it would be sent to and fro."""
        if keeps_turn(self.policy) and job.job in self.cluster.waiting and job.job not in self.turns_kept:
            self.turns_kept.add(job.job)
            self.cluster.keep(job.job, start.where, at_s)

    def _is_ready(self, job: Job, start: Start) -> bool:
        at_home = any(node == job.held_on for node, _ in start.where)
        return at_home and job.memory in ("free", "granted")

    def _asked_to_leave(self, plan: Plan) -> list[tuple[Job, str]]:
        """Victims, and what each is told."""
        jobs, calendar = self.tables.jobs, self.cluster.calendar
        return [
            (jobs[victim], for_whom(jobs[made.by], jobs[victim], cause, self.shares, calendar))
            for made in plan.preemptions
            for victim, cause in zip(made.victims, made.causes, strict=True)
        ]

    def _start(self, job: Job, chosen: list[str], at_s: float) -> None:
        assert job.held_on is not None
        members = tuple(node for node in chosen if node != job.held_on)
        for device in (job.held_on, *members):
            self.tables.devices[device].running.append(job.job)
        first_at_s = job.started_at_s if job.started_at_s is not None else at_s
        started = replace(
            job,
            state=next_state(job, Move.START),
            started_at_s=first_at_s,
            running_since_s=at_s,
            settled=False,
            message="",
            members=members,
        )
        self.tables.put(started)
        self.tables.out.append(StartSegment(job.job, job.segment, job.held_on, members))
        self.contender.pop(job.session, None)
        for device in (job.held_on, *members):
            self.next_up.begun(device)
            self._look_again(device, at_s)

    def _move(self, job: Job, device: str, at_s: float) -> None:
        """Its session goes to another device, with all that it has in line."""
        for name in self.tables.of_session[job.session]:
            mate = self.tables.jobs[name]
            if mate.state not in CONTENDING:
                continue
            memory: MemoryNeed = "free" if mate.memory == "free" else "ask"
            loose = replace(moved(mate, Move.UNBIND), held_on=None, memory=memory, memory_reason="")
            self._bind(replace(loose, settled=True), device)
        self._follow_session(job.session, at_s)
