"""What a decision tries before it is one: takes from the room and charges to the shares that are all undone
at its end, and the promises (pins, reservations, the calendar) that every attempt has to respect."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec.structs import replace

from djinn_lab.jobs.backfill import Ending, Profile, Slot
from djinn_lab.jobs.decision.cluster import Cluster, Pin
from djinn_lab.jobs.decision.guarantees import Standing
from djinn_lab.jobs.decision.keys import devices_of, estimate_s, remaining_s
from djinn_lab.jobs.decision.overstaying import Overstaying
from djinn_lab.jobs.decision.plan import Preemption, Reserved, Start, TopUp
from djinn_lab.jobs.decision.policy import QueuePolicy
from djinn_lab.jobs.decision.runners import RunnerIndex
from djinn_lab.jobs.fairness import Amounts, ShareTree
from djinn_lab.jobs.placement import SCORINGS, Placed, Room
from djinn_lab.jobs.placement.free import capacity
from djinn_lab.jobs.request import Demand, Holding, Request, Where, members_in

MIB = 1 << 20
AHEAD_S_MIN = 0.01
"""A job that was expected to take no time at all is charged for this much ahead, or it would be due again at
once."""


class Trial:
    """``closed``: nodes where somebody is still moving aside for somebody else; ``displaced``: those, and
    how long the others want their room. ``more``: devices given out or kept, by account and everybody
    above. ``wake_s``: the earliest moment at which a clock alone changes something."""

    def __init__(
        self,
        cluster: Cluster,
        shares: ShareTree,
        policy: QueuePolicy,
        now_s: float,
        standing: Standing | None = None,
    ) -> None:
        """``standing``: None where nobody is guaranteed devices, or nobody may be made to move aside."""
        self.cluster, self.shares, self.policy, self.now_s = cluster, shares, policy, now_s
        self.room = cluster.room
        self.scoring = SCORINGS[policy.scoring]
        self.starts: list[Start] = []
        self.preemptions: list[Preemption] = []
        self.reservations: list[Reserved] = []
        self.top_ups: list[TopUp] = []
        self.given_up: list[str] = []
        self.victims: set[str] = set(cluster.leaving)
        self.displaced: dict[str, float | None] = {}
        self.closed: set[str] = set()
        self.admitted: list[str] = []
        self.more: dict[str, float] = {}
        self.blocked: list[Request] = []
        self.wake_s = math.inf
        self.next_end_s = math.inf
        self.largest = 0.0
        """The size of the largest of those who run; known once ``runners`` are."""
        self._runners: RunnerIndex | None = None
        self._unused: dict[str, Amounts] = {}
        self._profile: Profile | None = None
        self._promised = 0
        self._begun: list[tuple[Request, Where, float]] = []
        self.standing = standing
        self.overstaying = Overstaying(cluster, now_s) if cluster.calendar else None
        for entry in cluster.calendar.values():
            self.wake_by(entry.begins_s)

    def may_leave(self, holding: Holding) -> bool:
        """It can move aside, and does not already."""
        return holding.preemptible and holding.request.job not in self.victims

    def wake_by(self, at_s: float) -> None:
        if self.now_s < at_s < self.wake_s:
            self.wake_s = at_s

    # -- what running jobs owe -------------------------------------------------------------------------------

    def top_up(self) -> None:
        """Charge those who run on for another quantum, or a quarter of what they have had: a long job is
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
            owed = charge_for(holding.request.demand, members, ran_s + ahead_s)
            if matters:
                self.wake_by(self.now_s + ahead_s)
            self.top_ups.append(TopUp(job, owed, self.now_s + ahead_s))
            self.shares.correct(job, owed)

    # -- where something may go ------------------------------------------------------------------------------

    def allowed(self, request: Request) -> frozenset[str] | None:
        """Nodes that no promise keeps it from; None: all of them."""
        shut = self.closed
        if self.cluster.calendar:
            shut = shut | self.kept_from(request)
        if not shut:
            return None
        return frozenset(self.cluster.nodes) - shut

    @property
    def opened(self) -> frozenset[str]:
        """Nodes where nobody is moving aside."""
        return frozenset(self.cluster.nodes) - self.closed

    def kept_from(self, request: Request) -> set[str]:
        """Nodes that the calendar has for others before this one would be done."""
        kept: set[str] = set()
        for entry in self.cluster.calendar.values():
            self.wake_by(entry.ends_s)
            if entry.shuts_out(request, self.now_s):
                kept |= entry.nodes
        return kept

    @property
    def runners(self) -> RunnerIndex:
        """Who runs, by account and by size."""
        if self._runners is None:
            self.shares.know(self.cluster.running_accounts)
            self._runners = self.cluster.runners(self.policy, self.now_s)
            self.largest = self._runners.largest()
            self.next_end_s = self._runners.next_end_s()
        return self._runners

    def unused(self, holding: Holding) -> Amounts:
        """What its account would be given back if it stopped now."""
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
        """How long until the first of those at home is expected to be done. One of which nothing is known is
        taken to run for as long again as it has; None: nobody is there."""
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

    def keep(self, request: Request, where: Where, victims: Iterable[str]) -> None:
        """Those who leave do so for this request: until it has come, its nodes are closed to others. What is
        free of its place is taken; the victims' room comes back, for all that is known, when it is done."""
        self.closed.update(node for node, _ in where)
        self.displaced.update((victim, request.estimate_s) for victim in victims)
        free = tuple(
            (node, min(members, capacity(self.room.free(node), request.demand))) for node, members in where
        )
        part = tuple((node, members) for node, members in free if members)
        self.room.take(request.demand, part)
        self._begun.append((request, part, estimate_s(request, self.policy)))
        if self._profile is not None and part:
            slot = Slot(self.now_s, members_in(part), part)
            self._profile.reserve(request.demand, slot, request.estimate_s)

    def give_up(self, pin: Pin) -> None:
        """The place that was kept is open to everybody again."""
        self.given_up.append(pin.job)
        if self.standing is not None:
            self.standing.add(self.cluster.waiting[pin.job], -members_in(pin.where))

    # -- promises to those who are ahead ---------------------------------------------------------------------

    def promise(self, request: Request) -> None:
        """It is ahead, and cannot start: whoever starts from now on must leave it its room."""
        self.blocked.append(request)

    def book(self) -> Profile:
        """When there will be room for what, with all promises made so far booked in it."""
        if self._profile is None:
            self._profile = Profile(self.room, self._endings(), self.now_s)
            for promise in self.cluster.promises.values():
                if self._holds(promise):
                    request = self.cluster.waiting[promise.job]
                    self._profile.reserve(request.demand, self._slot(promise), request.estimate_s)
        while self._promised < len(self.blocked):
            request = self.blocked[self._promised]
            self._promised += 1
            slot = self._profile.earliest(
                self.restricted(request), request.estimate_s, self.now_s, self.scoring, request.home
            )
            if slot is not None:
                self._profile.reserve(request.demand, slot, request.estimate_s)
                self.reservations.append(Reserved(request.job, slot.start_s, slot.where))
                if self.keeps:
                    self.wake_by(slot.start_s)
        return self._profile

    @property
    def keeps(self) -> bool:
        """Whoever is promised a start is never given a later one."""
        return self.policy.passing == "conservative"

    def release(self, request: Request) -> None:
        """What it was promised before is free to be promised anew, at best earlier: conservative backfilling
        compresses its plan one by one, the rest in place (Mu'alem and Feitelson 2001)."""
        promise = self.cluster.promises.get(request.job)
        if promise is not None and self._holds(promise):
            self.book().release(request.demand, self._slot(promise), request.estimate_s)

    def _holds(self, promise: Reserved) -> bool:
        """Not when its moment has passed: somebody ran longer than he said, and it is planned anew."""
        return self.keeps and promise.start_s >= self.now_s

    def _slot(self, promise: Reserved) -> Slot:
        demand = self.cluster.waiting[promise.job].demand
        members = members_in(promise.where) or demand.members
        return Slot(promise.start_s, members, promise.where)

    def restricted(self, request: Request) -> Demand:
        """Its demand, on nodes only that are not promised to others for ever by the calendar."""
        if not self.cluster.calendar:
            return request.demand
        kept = self.kept_from(request)
        if not kept:
            return request.demand
        names = frozenset(self.cluster.nodes) if request.demand.nodes is None else request.demand.nodes
        return replace(request.demand, nodes=names - kept)

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

    def start(self, request: Request, placed: Placed, *, passed: bool = False, pinned: bool = False) -> None:
        """It starts, in this trial."""
        where = placed.where
        self.room.take(request.demand, where)
        self.victims.add(request.job)
        seconds = estimate_s(request, self.policy)
        if request.home is not None and all(node != request.home for node, _ in where):
            seconds += request.move_s
        if self._profile is not None:
            slot = Slot(self.now_s, placed.members, where)
            self._profile.reserve(request.demand, slot, None if request.estimate_s is None else seconds)
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
                passed,
                pinned,
            )
        )

    def admit(self, request: Request, members: int, seconds: float) -> Amounts:
        """Charge it on trial, and count its devices."""
        charge = charge_for(request.demand, members, min(seconds, self.shares.settings.quantum_s))
        if self.shares.charge(request.job) is None:
            self.shares.admit(request.job, request.account, self.now_s, charge)
        self.admitted.append(request.job)
        if self.standing is not None and request.job not in self.cluster.pins:
            self.standing.add(request, members)
        self.count(request, members)
        return charge

    def count(self, request: Request, members: int) -> None:
        """So many more devices for its account, and all above."""
        for name in self.cluster.above(request.account):
            self.more[name] = self.more.get(name, 0.0) + devices_of(request.demand, members)


def fits_at(room: Room, demand: Demand, where: Where) -> bool:
    """Is there room for it on exactly these nodes now?"""
    return all(capacity(room.free(node), demand) >= members for node, members in where)


def charge_for(demand: Demand, members: int, seconds: float) -> Amounts:
    """What holding it for so long costs. Transfers are charged when they have happened."""
    memory_bytes = float(demand.memory_mib * MIB * members)
    return Amounts(devices_of(demand, members) * seconds, memory_bytes * seconds, 0.0)
