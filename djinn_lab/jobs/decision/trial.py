"""A decision on trial: taken capacity and charged shares, all undone at its end, and the promises
(reserved capacity, promised starts, the calendar) that every attempt has to respect."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from djinn_lab.jobs.backfill import AvailabilityProfile, Ending, Slot
from djinn_lab.jobs.decision.plan import Interleaving, Preemption, Start, StartReservation, TopUp
from djinn_lab.jobs.decision.rules.guarantees import Guarantees
from djinn_lab.jobs.decision.rules.keys import devices_of, estimate_s, remaining_s
from djinn_lab.jobs.decision.rules.policy import QueuePolicy
from djinn_lab.jobs.decision.state.cluster import CalendarReservation, CapacityReservation, Cluster
from djinn_lab.jobs.decision.state.running import RunningIndex
from djinn_lab.jobs.fairness import Amounts, ShareTree
from djinn_lab.jobs.placement import SCORINGS, FreeCapacity, Placed
from djinn_lab.jobs.placement.free import members_fitting
from djinn_lab.jobs.request import Demand, Holding, Request, Where, members_in

MIB = 1 << 20
AHEAD_S_MIN = 0.01
"""A job that was expected to take no time at all is charged for this much ahead, or it would be due again
at once."""


class ReservationOverruns:
    """Jobs that still run where a reservation of other accounts has begun. They started before the
    reservation was made, or ran longer than expected. Only jobs of the reservation preempt them: one that
    no job uses costs no parking."""

    def __init__(self, cluster: Cluster, now_s: float) -> None:
        self._kept: list[tuple[CalendarReservation, list[Holding]]] = []
        for _, entry in sorted(cluster.calendar.items()):
            if entry.begins_s <= now_s < entry.ends_s:
                there = (cluster.on_node.get(node, {}).values() for node in sorted(entry.nodes))
                others = [one for held in there for one in held if not entry.admits(one.request.account)]
                if others:
                    self._kept.append((entry, others))

    def __bool__(self) -> bool:
        return bool(self._kept)

    def against(self, request: Request, node: str | None = None) -> list[Holding]:
        """Return the overrunning jobs on nodes that are reserved for this request, each once. ``node``:
        only there."""
        found = {
            holding.request.job: holding
            for entry, holdings in self._kept
            if entry.admits(request.account)
            for holding in holdings
            if node is None or any(node == here for here, _ in holding.where)
        }
        return list(found.values())


class Trial:
    """The state of a decision while it is tried. ``reserved_nodes``: nodes whose victims are still being
    preempted for another job. ``displaced``: those victims, and how long their preemptors want the capacity.
    ``more``: devices given out or reserved, by account and every account above. ``wake_s``: the earliest
    moment at which time alone changes something."""

    def __init__(
        self,
        cluster: Cluster,
        shares: ShareTree,
        policy: QueuePolicy,
        now_s: float,
        guarantees: Guarantees | None = None,
    ) -> None:
        """``guarantees``: None where no account is guaranteed devices, or the policy never preempts."""
        self.cluster, self.shares, self.policy, self.now_s = cluster, shares, policy, now_s
        self.capacity = cluster.capacity
        self.scoring = SCORINGS[policy.scoring]
        self.starts: list[Start] = []
        self.interleavings: list[Interleaving] = []
        self.preemptions: list[Preemption] = []
        self.reservations: list[StartReservation] = []
        self.top_ups: list[TopUp] = []
        self.released: list[str] = []
        self.victims: set[str] = set(cluster.preempted_for)
        self.displaced: dict[str, float | None] = {}
        self.reserved_nodes: set[str] = set()
        self.admitted: list[str] = []
        self.more: dict[str, float] = {}
        self.blocked: list[Request] = []
        self.wake_s = math.inf
        self.next_end_s = math.inf
        self.largest = 0.0
        """The size of the largest running job; known once ``runners`` are."""
        self._runners: RunningIndex | None = None
        self._unused: dict[str, Amounts] = {}
        self._profile: AvailabilityProfile | None = None
        self._promised = 0
        self._begun: list[tuple[Request, Where, float]] = []
        self.guarantees = guarantees
        self.overruns = ReservationOverruns(cluster, now_s) if cluster.calendar else None
        for entry in cluster.calendar.values():
            self.wake_by(entry.begins_s)
        for one in cluster.interleaved.values():
            self.count(one.request, 1)

    def can_be_preempted(self, holding: Holding) -> bool:
        """Return whether the job is preemptible and not a victim already."""
        return holding.preemptible and holding.request.job not in self.victims

    def wake_by(self, at_s: float) -> None:
        if self.now_s < at_s < self.wake_s:
            self.wake_s = at_s

    # -- what running jobs owe -------------------------------------------------------------------------------

    def top_up(self) -> None:
        """Charge running jobs for another quantum, or a quarter of what they have run. So a long job is
        looked at a number of times that grows with the logarithm of its length."""
        if not self.policy.by_fairness:
            return
        due, next_s = self.cluster.charge_due(self.now_s)
        matters = self.cluster.contended
        if matters:
            self.wake_by(next_s)
        for job in due:
            charge = self.shares.charge(job)
            if charge is None:
                continue
            holding = self.cluster.holdings[job]
            ran_s = self.now_s - holding.started_s
            quantum_s = max(self.shares.settings.quantum_s, ran_s / 4)
            ahead_s = max(AHEAD_S_MIN, min(remaining_s(holding, self.policy, self.now_s), quantum_s))
            members = members_in(holding.where)
            amount = charge_for(holding.request.demand, members, ran_s + ahead_s)
            if matters:
                self.wake_by(self.now_s + ahead_s)
            self.top_ups.append(TopUp(job, amount, self.now_s + ahead_s))
            self.shares.correct(job, amount)

    # -- where something may go ------------------------------------------------------------------------------

    def allowed(self, request: Request) -> frozenset[str] | None:
        """Return the nodes that no promise keeps the request from, and no brief job of another process; None:
        all of them."""
        shut = self.reserved_nodes
        if self.cluster.interleaved or self.interleavings:
            shut = shut | {node for node, process in self._interleaved() if process != request.process}
        if self.cluster.calendar:
            shut = shut | self.reserved_from(request)
        if not shut:
            return None
        return frozenset(self.cluster.nodes) - shut

    def _interleaved(self) -> Iterator[tuple[str, str]]:
        """Yield the node and the process of every brief job that runs between the ops of others."""
        for running in self.cluster.interleaved.values():
            yield running.node, running.request.process
        for one in self.interleavings:
            yield one.node, self.cluster.waiting[one.job].process

    @property
    def unreserved_nodes(self) -> frozenset[str]:
        """Nodes without a preemption under way."""
        return frozenset(self.cluster.nodes) - self.reserved_nodes

    def reserved_from(self, request: Request) -> set[str]:
        """Return the nodes that the calendar reserves for other accounts before this request would end."""
        reserved: set[str] = set()
        for entry in self.cluster.calendar.values():
            self.wake_by(entry.ends_s)
            if entry.excludes(request, self.now_s):
                reserved |= entry.nodes
        return reserved

    @property
    def runners(self) -> RunningIndex:
        """Running jobs, by account and by size."""
        if self._runners is None:
            self.shares.register(self.cluster.running_accounts)
            self._runners = self.cluster.runners(self.policy, self.now_s)
            self.largest = self._runners.largest()
            self.next_end_s = self._runners.next_end_s()
        return self._runners

    def unused(self, holding: Holding) -> Amounts:
        """Return what the job's account would be given back if it stopped now."""
        job = holding.request.job
        known = self._unused.get(job)
        if known is None:
            known = self._unused[job] = self._charged_ahead(holding)
        return known

    def _charged_ahead(self, holding: Holding) -> Amounts:
        charge = self.shares.charge(holding.request.job)
        if charge is None:
            return Amounts()
        used = charge_for(holding.request.demand, members_in(holding.where), self.now_s - holding.started_s)
        charged = charge.amounts
        return Amounts(
            max(0.0, charged.device_s - used.device_s),
            max(0.0, charged.memory_byte_s - used.memory_byte_s),
            max(0.0, charged.transfer_bytes),
        )

    def home_wait_s(self, home: str) -> float | None:
        """Return how long until the first job at home is expected to end. A job without an estimate is
        taken to run for as long again as it has. None: no job runs there."""
        waits = [
            self.now_s - one.started_s if one.ends_s is None else remaining_s(one, self.policy, self.now_s)
            for one in self.cluster.on_node.get(home, {}).values()
        ]
        waits += [
            0.0 if request.estimate_s is None else seconds
            for request, where, seconds in self._begun
            if any(node == home for node, _ in where)
        ]
        return min(waits, default=None)

    def reserve(self, request: Request, where: Where, victims: Iterable[str]) -> None:
        """Reserve nodes for this request: until it starts, they are closed to other jobs. Their free part
        is taken; the victims' part comes back, for all that is known, when the request ends."""
        self.reserved_nodes.update(node for node, _ in where)
        self.displaced.update((victim, request.estimate_s) for victim in victims)
        free = tuple(
            (node, min(members, members_fitting(self.capacity.free(node), request.demand)))
            for node, members in where
        )
        part = tuple((node, members) for node, members in free if members)
        self.capacity.take(request.demand, part)
        self._begun.append((request, part, estimate_s(request, self.policy)))
        if self._profile is not None and part:
            slot = Slot(self.now_s, members_in(part), part)
            self._profile.reserve(request.demand, slot, request.promised_s)

    def release_reservation(self, reservation: CapacityReservation) -> None:
        """Open the reserved capacity to all jobs again."""
        self.released.append(reservation.job)
        if self.guarantees is not None:
            self.guarantees.add(self.cluster.waiting[reservation.job], -members_in(reservation.where))

    # -- promises to jobs that are ahead ---------------------------------------------------------------------

    def promise(self, request: Request) -> None:
        """Promise the request a start: it is ahead, and jobs that start from now on must not delay it."""
        self.blocked.append(request)

    def book(self) -> AvailabilityProfile:
        """Return the profile of free capacity over time, with all promises made so far reserved in it."""
        if self._profile is None:
            self._profile = AvailabilityProfile(self.capacity, self._endings(), self.now_s)
            for promise in self.cluster.promises.values():
                if self._holds(promise):
                    request = self.cluster.waiting[promise.job]
                    self._profile.reserve(request.demand, self._slot(promise), request.promised_s)
        while self._promised < len(self.blocked):
            request = self.blocked[self._promised]
            self._promised += 1
            slot = self._profile.earliest(
                self.restricted(request), request.promised_s, self.now_s, self.scoring, request.home
            )
            if slot is not None:
                self._profile.reserve(request.demand, slot, request.promised_s)
                self.reservations.append(StartReservation(request.job, slot.start_s, slot.where))
                if self.keeps_promises:
                    self.wake_by(slot.start_s)
        return self._profile

    @property
    def keeps_promises(self) -> bool:
        """Return whether a promised start is never postponed."""
        return self.policy.backfill == "conservative"

    def release(self, request: Request) -> None:
        """Release the start that the request was promised before, to promise it anew, at best earlier.
        Conservative backfilling compresses its plan one by one, the rest in place (Mu'alem and Feitelson
        2001)."""
        promise = self.cluster.promises.get(request.job)
        if promise is not None and self._holds(promise):
            self.book().release(request.demand, self._slot(promise), request.promised_s)

    def _holds(self, promise: StartReservation) -> bool:
        """Return whether the promise still holds: not when its moment has passed because a job ran longer
        than estimated."""
        return self.keeps_promises and promise.start_s >= self.now_s

    def _slot(self, promise: StartReservation) -> Slot:
        demand = self.cluster.waiting[promise.job].demand
        members = members_in(promise.where) or demand.members
        return Slot(promise.start_s, members, promise.where)

    def restricted(self, request: Request) -> Demand:
        """Return the demand, without nodes that the calendar reserves for other accounts for ever."""
        if not self.cluster.calendar:
            return request.demand
        reserved = self.reserved_from(request)
        if not reserved:
            return request.demand
        names = frozenset(self.cluster.nodes) if request.demand.nodes is None else request.demand.nodes
        return replace(request.demand, nodes=names - reserved)

    def _endings(self) -> list[Ending]:
        endings = []
        for job, holding in self.cluster.holdings.items():
            ends_s = holding.ends_s
            if job in self.displaced:
                seconds = self.displaced[job]
                ends_s = None if seconds is None else self.now_s + holding.park_s + seconds
            elif ends_s is not None and ends_s <= self.now_s:
                ends_s = self.now_s + remaining_s(holding, self.policy, self.now_s)
            endings.append(Ending(ends_s, holding.request.demand, holding.where))
        for request, where, seconds in self._begun:
            ends_s = None if request.estimate_s is None else self.now_s + seconds
            endings.append(Ending(ends_s, request.demand, where))
        return endings

    # -- taking ----------------------------------------------------------------------------------------------

    def start(
        self, request: Request, placed: Placed, *, backfilled: bool = False, on_reserved: bool = False
    ) -> None:
        """Start the request, in this trial."""
        where = placed.where
        self.capacity.take(request.demand, where)
        self.victims.add(request.job)
        seconds = estimate_s(request, self.policy)
        if request.home is not None:
            seconds += min(self.cluster.move_s(request, node) for node, _ in where)
        if self._profile is not None:
            slot = Slot(self.now_s, placed.members, where)
            held_s = None if request.estimate_s is None else seconds * request.spread
            self._profile.reserve(request.demand, slot, held_s)
        self._begun.append((request, where, seconds))
        charge = self.admit(request, placed.members, seconds)
        self.starts.append(
            Start(
                request.job,
                where,
                None if request.estimate_s is None else self.now_s + seconds,
                charge,
                self.now_s + min(seconds, self.shares.settings.quantum_s),
                placed.scores,
                backfilled,
                on_reserved,
            )
        )

    def interleave(self, request: Request, node: str) -> None:
        """Start a brief request between two ops of what runs on the node, in this trial."""
        charge = charge_for(request.demand, 1, estimate_s(request, self.policy))
        self.shares.admit(request.job, request.account, self.now_s, charge)
        self.admitted.append(request.job)
        self.victims.add(request.job)
        self.count(request, 1)
        self.interleavings.append(Interleaving(request.job, node, charge))

    def admit(self, request: Request, members: int, seconds: float) -> Amounts:
        """Charge the request on trial, and count its devices."""
        charge = charge_for(request.demand, members, min(seconds, self.shares.settings.quantum_s))
        if self.shares.charge(request.job) is None:
            self.shares.admit(request.job, request.account, self.now_s, charge)
        self.admitted.append(request.job)
        if self.guarantees is not None and request.job not in self.cluster.reserved:
            self.guarantees.add(request, members)
        self.count(request, members)
        return charge

    def count(self, request: Request, members: int) -> None:
        """Count so many more devices for its account, and all above."""
        for name in self.cluster.above(request.account):
            self.more[name] = self.more.get(name, 0.0) + devices_of(request.demand, members)


def fits_at(capacity: FreeCapacity, demand: Demand, where: Where) -> bool:
    """Return whether the demand fits on exactly these nodes now."""
    return all(members_fitting(capacity.free(node), demand) >= members for node, members in where)


def charge_for(demand: Demand, members: int, seconds: float) -> Amounts:
    """Return what holding the members for so long costs. Transfers are charged when they have happened."""
    memory_bytes = float(demand.memory_mib * MIB * members)
    return Amounts(devices_of(demand, members) * seconds, memory_bytes * seconds, 0.0)
