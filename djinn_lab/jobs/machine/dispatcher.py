"""Join the jobs of the pool and the decisions about them: which jobs contend for a device, and what a plan
means for a job.

Of every session one job contends, the first: what a session runs later reads what it made before. A job
contends from the device that its session is bound to, its *home*; a decision to start it on another device
moves the session there first.

A gang holds several devices, its session's among them, all of them from its start on; it may give one back
early. A preempted gang leaves all of them at once.

Session memory has the last word on whether a segment can start (:mod:`djinn_lab.memory`). A decision may
start a segment that has no memory grant yet. Later decisions then ignore it until session memory answers,
and session memory serves it first (:mod:`.next_jobs`). Where victims were preempted for it, the device
stays reserved for it meanwhile."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from msgspec.structs import replace

from djinn_lab.events import IllegalEvent
from djinn_lab.jobs.commands import ChargeAccount, PlaceSegment, StartSegment
from djinn_lab.jobs.conditions import jobs_in
from djinn_lab.jobs.decision import (
    OVERDUE_S,
    POLICIES,
    Cluster,
    Plan,
    QueuePolicy,
    Start,
    decide,
    enact,
    submit_limit,
)
from djinn_lab.jobs.fairness import Amounts, Capacity, ShareTree
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.machine import lifecycle
from djinn_lab.jobs.machine.explain import preemption_message
from djinn_lab.jobs.machine.job_requests import request_of
from djinn_lab.jobs.machine.next_jobs import NextJobs
from djinn_lab.jobs.machine.riders import Riders
from djinn_lab.jobs.machine.tables import QueueTables, moved, next_state, started
from djinn_lab.jobs.messages import MemoryNeed, SegmentSubmitted
from djinn_lab.jobs.placement.first_device import DeviceOption, FirstDevice, choose_first_device
from djinn_lab.jobs.placement.nearness import company
from djinn_lab.jobs.request import ComputeNode, Request, Where
from djinn_lab.jobs.states import CONTENDING, RANKS, JobState, JobTransition
from djinn_lab.jobs.targets import suits

ROUNDS_MAX = 1000


@dataclass(slots=True)
class Dispatcher:
    """Keep what decisions read up to date, and carry out their plans. ``contender``: by session.
    ``awaiting_memory``: jobs that a decision wanted to start and that have no memory grant.
    ``targets_reserved_once``: jobs for which a device was reserved while they moved there.
    ``released_device_s``: device-seconds of running gangs on devices that have left them.
    ``followed_price_per_kwh``: of energy, when decisions last followed the devices."""

    tables: QueueTables
    policy: QueuePolicy = POLICIES["default"]
    shares: ShareTree = field(default_factory=ShareTree)
    cluster: Cluster = field(default_factory=Cluster)
    contender: dict[str, str] = field(default_factory=dict)
    awaiting_memory: set[str] = field(default_factory=set)
    targets_reserved_once: set[str] = field(default_factory=set)
    next_jobs: NextJobs = field(init=False)
    riders: Riders = field(init=False)
    released_device_s: dict[str, float] = field(default_factory=dict)
    wake_at_s: float | None = None
    followed_price_per_kwh: float | None = None

    def __post_init__(self) -> None:
        self.next_jobs = NextJobs(self.tables, self.cluster)
        self.riders = Riders(self.tables, self.cluster)

    def settle(self, at_s: float) -> None:
        """Decide until nothing is left to do."""
        self._follow(at_s)
        for _ in range(ROUNDS_MAX):
            self._bind_new(at_s)
            plan = decide(self.cluster, self.shares, self.policy, at_s)
            self.wake_at_s = plan.wake_at_s
            if not plan:
                self._revoke_grants()
                self._stop_overdue(at_s)
                return
            self._carry_out(plan, at_s)
        raise AssertionError(f"decisions do not come to an end: {plan}")

    def check_limits(self, event: SegmentSubmitted) -> None:
        """Raise IllegalEvent for a job that its account's limits forbid to submit."""
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
        """Bring what decisions read up to date with the last event's changes."""
        tables, cluster = self.tables, self.cluster
        others = self._follow_devices()
        self.awaiting_memory -= tables.memory_answered
        touched = [job for name in tables.touched if (job := tables.find(name))]
        for job in touched:
            if job.job in cluster.holdings and job.state is not JobState.RUNNING:
                self._stop(job, at_s)
            elif job.job in cluster.holdings:
                self._shrink(job, at_s)
            elif job.job in self.riders.rides and job.state is not JobState.RUNNING:
                ride = self.riders.rides.pop(job.job)
                self._pay(job, ((ride.device, 1),), ride.started_s, at_s)
            elif job.job in cluster.interleaved and job.state is not JobState.RUNNING:
                self._end_interleaved(job, at_s)
            if job.finished:
                self.awaiting_memory.discard(job.job)
                self.targets_reserved_once.discard(job.job)
        sessions = {job.session: None for job in touched}
        named = {name for one in touched if one.terms.after for name in jobs_in(one.terms.after)}
        sessions |= {tables.jobs[name].session: None for name in sorted(named) if name in tables.jobs}
        for session in dict.fromkeys((*sessions, *others)) if others else sessions:
            self._follow_session(session, at_s)

    def _follow_devices(self) -> list[str]:
        """Update the nodes; return the sessions that another device may suit now."""
        others: dict[str, None] = {}
        tables, price_per_kwh = self.tables, self.policy.energy_price_per_kwh
        all_of_them = price_per_kwh != self.followed_price_per_kwh
        changed = list(tables.devices if all_of_them else tables.touched_devices)
        self.followed_price_per_kwh = price_per_kwh
        tables.touched_devices.clear()
        for name in changed:
            device = tables.devices[name]
            node = ComputeNode(
                name,
                devices=device.slots,
                labels=device.labels,
                taints=device.taints,
                cordoned=device.cordoned,
                ready=device.alive and device.heard,
                price=device.hour_price(price_per_kwh),
                expected=device.expected,
            )
            known = self.cluster.nodes.get(name)
            if known == node:
                continue
            self.cluster.set_node(node)
            tables.retry_unplaced()
            self._update_pool_capacity()
            described = known is not None and (known.labels, known.taints) != (node.labels, node.taints)
            if node.cordoned or not node.ready or described:
                self._unreserve_device(name)
            if described:
                others |= dict.fromkeys(self.contender)
        return list(others)

    def _revoke_grants(self) -> None:
        """Revoke memory grants that keep the next job of a device from its memory; their jobs ask again,
        behind it."""
        tables, now_s = self.tables, self.tables.now_s
        in_the_way, again_s = self.next_jobs.grants_to_revoke(now_s)
        if again_s < math.inf:
            self.wake_at_s = min(again_s, self.wake_at_s or again_s)
        for one in in_the_way:
            job = tables.jobs[one.job]
            if job.assigned_device == one.assigned_device:  # else it has moved, with a mate
                assert job.assigned_device is not None
                deferred = moved(job, JobTransition.DEFER) if job.state is JobState.QUEUED else job
                tables.put(replace(deferred, memory="ask"))
                tables.out.append(PlaceSegment(job.job, job.segment, job.session, job.assigned_device))
                self._follow_session(job.session, now_s)

    def _unreserve_device(self, device: str) -> None:
        """Release the reservations on a device where nothing can start, so that their jobs look for
        another."""
        for reservation in list(self.cluster.reserved.values()):
            if any(node == device for node, _ in reservation.where):
                self.cluster.unreserve(reservation.job)

    def _update_pool_capacity(self) -> None:
        """Set the capacity that shares are fractions of: all devices, up or not, but not those to come."""
        devices = [device for device in self.tables.devices.values() if not device.expected]
        memory_bytes = float(sum(device.memory_bytes for device in devices))
        link_bytes_per_s = sum(device.link_bytes_per_s for device in devices)
        slots = float(sum(device.slots for device in devices))
        self.shares.set_capacity(Capacity(slots, memory_bytes, link_bytes_per_s))

    def _stop(self, job: Job, at_s: float) -> None:
        """Take the job off its device. Its real usage replaces what it was charged."""
        held = self.cluster.finish(job.job)
        self.riders.pass_on(held, at_s)
        self._pay(job, held.where, held.started_s + held.interleaved_s, at_s)
        for device, _ in held.where:
            self._reconsider(device, at_s)

    def _end_interleaved(self, job: Job, at_s: float) -> None:
        """Let an interleaved job pay for what it took, in place of the job that holds the device."""
        one = self.cluster.interleaved[job.job]
        waited_s = max(0.0, at_s - one.started_s)
        device_s = self.tables.device_s.get(job.job)
        seconds = waited_s if device_s is None else min(waited_s, device_s)
        self.cluster.end_interleaved(job.job, 0.0 if job.job in self.tables.uncharged else seconds)
        self._pay(job, ((one.node, 1),), at_s - seconds, at_s)

    def _stop_overdue(self, at_s: float) -> None:
        """Preempt interleaved jobs that run for long: they keep the others from the device."""
        for name, one in self.cluster.interleaved.items():
            job, due_s = self.tables.jobs[name], one.started_s + OVERDUE_S
            if job.preempting or job.cancelling:
                continue
            if at_s >= due_s:
                lifecycle.begin_preemption(self.tables, job, "it runs longer than was predicted")
            else:
                self.wake_at_s = min(due_s, self.wake_at_s or due_s)

    def _pay(self, job: Job, where: Where, started_s: float, at_s: float) -> None:
        """Replace what a job was charged by its real usage, of a batch its share."""
        ended_at_s = max(at_s, started_s)
        used = self.tables.used.pop(job.job, (0.0, 0.0))
        released_s = self.released_device_s.pop(job.job, 0.0)
        charged = job.job not in self.tables.uncharged
        # what was computed before, and lost with a worker, was charged then
        began_s = min(ended_at_s, started_s + self.tables.replayed_s.get(job.job, 0.0))
        began_s = ended_at_s - self.riders.share_s(job.job, began_s, ended_at_s)
        device_s = (ended_at_s - began_s) * len(where) + released_s
        self.shares.settle(job.job, Amounts(device_s, *used) if charged else Amounts())
        for number, (device, _) in enumerate(where):
            if charged:
                self._charge(job, device, began_s, ended_at_s, *(used if number == 0 else (0.0, 0.0)))

    def _reconsider(self, device: str, at_s: float) -> None:
        """Look again at the device's jobs that had no memory grant, since they may start elsewhere now."""
        if not self.awaiting_memory:
            return
        jobs = self.tables.jobs
        for name in [
            one for one in sorted(self.awaiting_memory) if one in jobs and jobs[one].assigned_device == device
        ]:
            self.awaiting_memory.discard(name)
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
        """Write a row of the usage ledger."""
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

    def _shrink(self, job: Job, at_s: float) -> None:
        """Release the devices that a gang has given back, or lost."""
        held = self.cluster.holdings[job.job]
        gone = [device for device, _ in held.where if device not in job.holds]
        if not gone:
            return
        ended_at_s = max(at_s, held.started_s)
        self.cluster.shrink(job.job, tuple(one for one in held.where if one[0] not in gone))
        self.released_device_s[job.job] = self.released_device_s.get(job.job, 0.0) + len(gone) * (
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
        device = self._suitable_device(first)
        if device is not None:
            self._move(first, device, at_s)
            return
        request = request_of(self.tables, first, awaiting_memory=first.job in self.awaiting_memory)
        known = self.cluster.waiting.get(first.job)
        if known is None:
            self.cluster.submit(request, at_s)
        elif known != request:
            self.cluster.change(request, at_s)
        reservation, nodes, anchor = (
            self.cluster.reserved.get(first.job),
            request.demand.nodes,
            request.demand.anchor,
        )
        reserved = set() if reservation is None else {node for node, _ in reservation.where}
        if reserved and ((nodes is not None and reserved - nodes) or anchor not in (None, *reserved)):
            self.cluster.unreserve(first.job)

    def _suitable_device(self, job: Job) -> str | None:
        """Return a device that suits the job, where the one that its session is bound to does not."""
        assert job.assigned_device is not None
        here = self.tables.devices[job.assigned_device]
        if job.settled or job.move_s is None or suits(job.target, job.terms.tolerates, here):
            return None
        first = self._first_device(job)
        return None if first is None else first.device

    def other_devices(self, job: Job) -> tuple[str, ...]:
        """Return the devices that serve and suit the job, besides its assigned device."""
        others = (one for one in self.tables.devices.values() if one.device != job.assigned_device)
        return tuple(
            one.device for one in others if one.serves and suits(job.target, job.terms.tolerates, one)
        )

    def move_to(self, job: Job, device: str, at_s: float) -> None:
        """Move the job's session to the device. Raises IllegalEvent for a job that does not wait, or a
        device that does not suit it."""
        if job.state not in CONTENDING or device not in self.other_devices(job):
            raise IllegalEvent(f"job {job.job} ({job.state}) cannot move to {device}", "pool")
        self._move(job, device, at_s)

    # -- sessions without a device -------------------------------------------------------------------------

    def _bind_new(self, at_s: float) -> None:
        """Bind jobs without a device, so that memory can be asked. Binding is no promise: a decision may move
        the session."""
        tables = self.tables
        if not tables.unplaced:
            return
        candidates: list[tuple[int, str]] = []
        self._add_unplaced(candidates, -1)
        while candidates:
            arrival, name = heapq.heappop(candidates)
            job = tables.jobs[name]
            if job.state is not JobState.SUBMITTED or job.waits_for:
                continue
            device, why = tables.bound.get(job.session), ""
            if device is None and (first := self._first_device(job)) is not None:
                device, why = first.device, first.why
            if device is not None:
                self._bind(job, device, why)
                self._follow_session(job.session, at_s)
                self._add_unplaced(candidates, arrival)

    def _add_unplaced(self, candidates: list[tuple[int, str]], after: int) -> None:
        """Add the unplaced jobs that arrived after ``after``; the others wait for the next round."""
        tables = self.tables
        for name in list(tables.unplaced):
            job = tables.jobs.get(name)
            if job is None or job.state is not JobState.SUBMITTED:
                del tables.unplaced[name]
            elif job.arrival > after:
                del tables.unplaced[name]
                heapq.heappush(candidates, (job.arrival, name))

    def _bind(self, job: Job, device: str, why: str = "") -> None:
        self.tables.bind(job.session, device)
        state = next_state(job, JobTransition.BIND)
        why = why or job.placed_why
        bound = replace(job, state=state, assigned_device=device, fits=(), placed_why=why)
        if bound.memory in ("ask", "deferred"):
            bound = moved(bound, JobTransition.DEFER)
        if bound.memory == "ask":
            self.tables.out.append(PlaceSegment(job.job, job.segment, job.session, device))
        self.tables.put(bound)

    def _first_device(self, job: Job) -> FirstDevice | None:
        """Choose among the devices that serve and suit the job."""
        tables, tolerates = self.tables, job.terms.tolerates
        suitable = [
            device
            for device in tables.devices.values()
            if device.serves and suits(job.target, tolerates, device)
        ]
        near = company(job.gang, suitable)
        fits = {fit.device: fit for fit in job.fits}
        options = [
            DeviceOption(
                device.device,
                tables.load.get(device.device, 0),
                device.hour_price(self.policy.energy_price_per_kwh),
                near.get(device.device, 0),
                fits.get(device.device),
                device.watts,
            )
            for device in suitable
        ]
        return choose_first_device(options, job.terms.objective, job.terms.reserve_fraction)

    # -- obeying a plan ------------------------------------------------------------------------------------

    def _carry_out(self, plan: Plan, at_s: float) -> None:
        """Carry out a plan as the simulators do, except for starts whose session or memory is not ready."""
        jobs = self.tables.jobs
        ready = tuple(start for start in plan.starts if self._is_ready(jobs[start.job], start))
        asked = self._victims(plan)
        fitting = tuple(one for one in plan.interleaved if jobs[one.job].memory in ("free", "granted"))
        enact(self.cluster, self.shares, replace(plan, starts=ready, interleaved=fitting))
        for made in plan.interleaved:
            if made in fitting:
                self._interleave(jobs[made.job], made.node, at_s)
            else:
                self._await_memory(jobs[made.job], at_s)
        for victim, reason in asked:
            lifecycle.begin_preemption(self.tables, victim, reason)
            for rider in self.riders.of(victim.job):
                lifecycle.begin_preemption(self.tables, rider, reason)
        planned = {start.job for start in plan.starts}
        for start in plan.starts:
            job, chosen = jobs[start.job], [node for node, _ in start.where]
            if start in ready:
                self._start(job, chosen, at_s, planned)
            elif job.assigned_device not in chosen:
                self._move(job, chosen[0], at_s)
                self._reserve_target(job, start, at_s)
            else:
                self._await_memory(job, at_s)

    def _await_memory(self, job: Job, at_s: float) -> None:
        """Let session memory serve a job first that would start now."""
        self.next_jobs.want(job)
        self.awaiting_memory.add(job.job)
        self._follow_session(job.session, at_s)

    def _reserve_target(self, job: Job, start: Start, at_s: float) -> None:
        """Reserve the target device of a move, once per job: if its memory does not fit there after all,
        the session would go to and fro."""
        if (
            self.policy.reserves_move_targets
            and job.job in self.cluster.waiting
            and job.job not in self.targets_reserved_once
        ):
            self.targets_reserved_once.add(job.job)
            self.cluster.reserve(job.job, start.where, at_s)

    def _is_ready(self, job: Job, start: Start) -> bool:
        at_home = any(node == job.assigned_device for node, _ in start.where)
        return at_home and job.memory in ("free", "granted")

    def _victims(self, plan: Plan) -> list[tuple[Job, str]]:
        """Return the victims of the plan, each with the message that it gets."""
        jobs, calendar = self.tables.jobs, self.cluster.calendar
        return [
            (jobs[victim], preemption_message(jobs[made.by], jobs[victim], cause, self.shares, calendar))
            for made in plan.preemptions
            for victim, cause in zip(made.victims, made.causes, strict=True)
        ]

    def _start(self, job: Job, chosen: list[str], at_s: float, planned: set[str]) -> None:
        assert job.assigned_device is not None
        members = tuple(node for node in chosen if node != job.assigned_device)
        for device in (job.assigned_device, *members):
            self.tables.devices[device].running.append(job.job)
        riders = [] if members else self.riders.begin(job, self.shares, at_s, planned)
        for rider in riders:
            self.contender.pop(rider.session, None)
            self.awaiting_memory.discard(rider.job)
            started_rider = StartSegment(rider.job, rider.segment, job.assigned_device, leader=job.job)
            self.tables.out.append(started_rider)
        self.tables.put(replace(started(job, at_s), members=members, batch_members=len(riders) + 1))
        names = tuple(rider.job for rider in riders)
        self.tables.out.append(StartSegment(job.job, job.segment, job.assigned_device, members, riders=names))
        self.contender.pop(job.session, None)
        for device in (job.assigned_device, *members):
            self.next_jobs.device_started(device)
            self._reconsider(device, at_s)

    def _interleave(self, job: Job, device: str, at_s: float) -> None:
        """Start a job between two ops of what its device runs."""
        known = self.tables.devices[device]
        known.running.append(job.job)
        known.riders.add(job.job)
        self.tables.put(replace(started(job, at_s), interleaved=True))
        self.tables.out.append(StartSegment(job.job, job.segment, device, interleaved=True))
        self.contender.pop(job.session, None)

    def _move(self, job: Job, device: str, at_s: float) -> None:
        """Bind the job's session to another device, with all its pending jobs."""
        for name in self.tables.of_session[job.session]:
            mate = self.tables.jobs[name]
            if mate.state not in CONTENDING:
                continue
            memory: MemoryNeed = "free" if mate.memory == "free" else "ask"
            loose = replace(
                moved(mate, JobTransition.UNBIND), assigned_device=None, memory=memory, memory_reason=""
            )
            self._bind(replace(loose, settled=True), device)
        self._follow_session(job.session, at_s)
