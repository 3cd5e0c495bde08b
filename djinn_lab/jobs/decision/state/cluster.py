"""The state that decisions read: nodes, waiting requests, running jobs, promises. Mutable, indexed, and
kept by its owner (the live queue or the simulator) through these methods;
:func:`~djinn_lab.jobs.decision.decide` leaves it as it was."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, KeysView
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from djinn_lab.jobs.decision.plan import StartReservation
from djinn_lab.jobs.decision.rules.keys import devices_of
from djinn_lab.jobs.decision.rules.policy import QueuePolicy
from djinn_lab.jobs.decision.state.held_devices import HeldDevices
from djinn_lab.jobs.decision.state.running import RunningIndex
from djinn_lab.jobs.decision.state.waiting import WaitingIndex
from djinn_lab.jobs.placement import FreeCapacity, Placed, Scoring
from djinn_lab.jobs.request import (
    ComputeNode,
    Demand,
    Holding,
    Interleaved,
    Request,
    Where,
    members_in,
)

_Name = TypeVar("_Name", bound=Hashable)
PLACEMENTS_CACHED_MAX = 1000


class CapacityReservation(msgspec.Struct, frozen=True):
    """Capacity reserved for a job until it starts there. ``victims``: jobs that are preempted for it."""

    job: str
    where: Where
    since_s: float
    victims: tuple[str, ...]


class CalendarReservation(msgspec.Struct, frozen=True):
    """From ``begins_s`` to ``ends_s`` these nodes are for these accounts (and those below them) only.
    Other jobs may use them before, as long as they are expected to end by then."""

    name: str
    nodes: frozenset[str]
    begins_s: float
    ends_s: float
    accounts: frozenset[str] = frozenset()

    def admits(self, account: str) -> bool:
        return any(account == name or account.startswith(f"{name}/") for name in self.accounts)

    def excludes(self, request: Request, now_s: float) -> bool:
        """Return whether the reservation is for other accounts, now or before the request would end."""
        seconds = math.inf if request.promised_s is None else request.promised_s
        return self.begins_s - seconds < now_s < self.ends_s and not self.admits(request.account)


class ClusterState(msgspec.Struct, frozen=True):
    """Everything: for snapshots, their digests, and copies to try things on. ``preempted_for``: victims
    and their preemptors. ``promises``: starts that conservative backfilling has to keep."""

    nodes: tuple[ComputeNode, ...] = ()
    waiting: tuple[Request, ...] = ()
    holdings: tuple[Holding, ...] = ()
    reserved: tuple[CapacityReservation, ...] = ()
    preempted_for: tuple[tuple[str, str], ...] = ()
    calendar: tuple[CalendarReservation, ...] = ()
    promises: tuple[StartReservation, ...] = ()
    interleaved: tuple[Interleaved, ...] = ()


class Cluster:
    """Nodes, running jobs and waiting requests. ``devices_held`` and ``queued``: by account and every account
    above it (``""`` is the pool). ``decided_s``: when a plan was last carried out. ``sharing``: waiting
    requests for less than a whole device. ``waiting_at_home``: how many requests wait that have their state
    on a node. ``decode_steps``: those that wait; ``prefills``: how many run. ``interleaved``: jobs that run
    between two ops of others, and hold nothing."""

    def __init__(self, nodes: Iterable[ComputeNode] = ()) -> None:
        self.capacity = FreeCapacity()
        self.nodes: dict[str, ComputeNode] = {}
        self.waiting: dict[str, Request] = {}
        self.holdings: dict[str, Holding] = {}
        self.interleaved: dict[str, Interleaved] = {}
        self.on_node: dict[str, dict[str, Holding]] = {}
        self.reserved: dict[str, CapacityReservation] = {}
        self.preempted_for: dict[str, str] = {}
        self.calendar: dict[str, CalendarReservation] = {}
        self.promises: dict[str, StartReservation] = {}
        self.devices_held: dict[str, float] = {}
        self.queued: dict[str, int] = {}
        self.sharing = 0
        self.waiting_at_home: dict[str, int] = {}
        self.decode_steps: dict[str, Request] = {}
        self.prefills = 0
        self.decided_s: float | None = None
        self._waiting_by_account: dict[str, int] = {}
        self._running_by_account: dict[str, int] = {}
        self._ranks: dict[int, int] = {}
        self._charged: list[tuple[float, str]] = []
        self._paths_above: dict[str, tuple[str, ...]] = {}
        self._index: WaitingIndex | None = None
        self._unindexed: dict[str, float] = {}
        """Requests that arrived since the index was last read, and when: most start before anything reads
        the index."""
        self._places: dict[tuple[Demand, str, str | None], Placed | None] = {}
        self._runners: RunningIndex | None = None
        self._held: HeldDevices | None = None
        for node in nodes:
            self.set_node(node)

    @classmethod
    def restored(cls, state: ClusterState, now_s: float) -> Cluster:
        """Return a cluster that decides as the one whose state this was."""
        found = cls(state.nodes)
        for holding in state.holdings:
            found._begin(holding)
        found.interleaved = {one.request.job: one for one in state.interleaved}
        for request in state.waiting:
            found.submit(request, now_s)
        found.reserved = {reservation.job: reservation for reservation in state.reserved}
        found.preempted_for = dict(state.preempted_for)
        found.promises = {promise.job: promise for promise in state.promises}
        for entry in state.calendar:
            found.set_calendar(entry)
        return found

    # -- nodes -----------------------------------------------------------------------------------------------

    def set_node(self, node: ComputeNode) -> None:
        """Add a node, or change a known one."""
        self.nodes[node.node] = node
        self.on_node.setdefault(node.node, {})
        self.capacity.set_node(node)
        self._places.clear()

    def remove_node(self, name: str) -> None:
        """Remove a node, whose jobs must have been ended before; capacity reserved on it is released."""
        if self.on_node[name]:
            jobs = ", ".join(sorted(self.on_node[name]))
            raise ValueError(f"{name} still holds {jobs}; end them first")
        for reservation in [
            reservation
            for reservation in self.reserved.values()
            if any(node == name for node, _ in reservation.where)
        ]:
            self.unreserve(reservation.job)
        del self.nodes[name], self.on_node[name]
        self.capacity.remove_node(name)
        self._places.clear()

    def set_calendar(self, entry: CalendarReservation) -> None:
        if not entry.begins_s < entry.ends_s:
            raise ValueError(f"reservation {entry.name} ends at {entry.ends_s} s, before it begins")
        self.calendar[entry.name] = entry

    def remove_calendar(self, name: str) -> None:
        del self.calendar[name]

    # -- waiting requests ------------------------------------------------------------------------------------

    def submit(self, request: Request, now_s: float) -> None:
        """Add a waiting request, also again after a preemption."""
        if request.job in self.waiting or request.job in self.holdings or request.job in self.interleaved:
            raise ValueError(f"{request.job} waits or runs already")
        self.waiting[request.job] = request
        self._count_queued(request.account, 1)
        self.sharing += _shares_devices(request)
        if request.home is not None:
            _count(self.waiting_at_home, request.home, 1)
        if request.phase == "decode":
            self.decode_steps[request.job] = request
        if self._index is not None:
            self._unindexed[request.job] = now_s

    def withdraw(self, job: str) -> Request:
        """Remove a waiting request."""
        self.unreserve(job)
        request = self.waiting.pop(job)
        self._count_queued(request.account, -1)
        self.sharing -= _shares_devices(request)
        if request.home is not None:
            _count(self.waiting_at_home, request.home, -1)
        self.decode_steps.pop(job, None)
        if self._index is not None and self._unindexed.pop(job, None) is None:
            self._index.discard(request)
        self.promises.pop(job, None)
        return request

    def change(self, request: Request, now_s: float) -> None:
        """Replace a waiting job's request. Capacity reserved for the job stays, and so does its promised
        start, unless its demand or its estimate changed."""
        reservation, promise = self.reserved.get(request.job), self.promises.get(request.job)
        before = self.withdraw(request.job)
        self.submit(request, now_s)
        if reservation is not None:
            self._reserve(reservation)
        if promise is not None and (before.demand, before.promised_s) == (request.demand, request.promised_s):
            self.promises[request.job] = promise

    def unreserve(self, job: str) -> None:
        """Release the capacity reserved for the job, if any; its victims stop nevertheless."""
        reservation = self.reserved.pop(job, None)
        if reservation is not None:
            self._count_held(self.waiting[job], -members_in(reservation.where))

    def reserve(self, job: str, where: Where, now_s: float, victims: tuple[str, ...] = ()) -> None:
        """Reserve capacity: nothing else starts there until the job starts or is withdrawn."""
        self._reserve(CapacityReservation(job, where, now_s, victims))

    def _reserve(self, reservation: CapacityReservation) -> None:
        self.unreserve(reservation.job)
        self.reserved[reservation.job] = reservation
        self._count_held(self.waiting[reservation.job], members_in(reservation.where))

    # -- running jobs ----------------------------------------------------------------------------------------

    def start(
        self,
        job: str,
        where: Where,
        now_s: float,
        ends_s: float | None = None,
        *,
        exempt_until_s: float = 0.0,
        preemptible: bool = True,
        charged_until_s: float | None = None,
    ) -> Holding:
        request = self.withdraw(job)
        holding = Holding(
            request, where, now_s, ends_s, request.park_s, exempt_until_s, preemptible, charged_until_s
        )
        self._begin(holding)
        return holding

    def interleave(self, job: str, node: str, now_s: float) -> None:
        """Start a brief job between two ops of what runs on the node."""
        self.interleaved[job] = Interleaved(self.withdraw(job), node, now_s)

    def end_interleaved(self, job: str, seconds: float) -> Interleaved:
        """Remove an interleaved job, which took so many seconds of the device from what holds it."""
        ended = self.interleaved.pop(job)
        for holding in list(self.on_node.get(ended.node, {}).values()):
            if holding.request.process == ended.request.process:
                ends_s = None if holding.ends_s is None else holding.ends_s + seconds
                taken_s = holding.interleaved_s + seconds
                self._hold(replace(holding, ends_s=ends_s, interleaved_s=taken_s))
        return ended

    def update(self, holding: Holding) -> None:
        """Change what is known about a running job (its end, its cost of parking); it stays where it is."""
        assert self.holdings[holding.request.job].where == holding.where
        self._hold(holding)

    def preempt(self, by: str, victims: tuple[str, ...], where: Where, now_s: float) -> None:
        """Mark the victims as preempted; their capacity is reserved for ``by``."""
        self.reserve(by, where, now_s, victims)
        for victim in victims:
            if victim not in self.preempted_for:
                holding = self.holdings[victim]
                self._count_held(holding.request, -members_in(holding.where))
            self.preempted_for[victim] = by

    def finish(self, job: str) -> Holding:
        """Remove a running job: done, failed, or parked."""
        holding = self.holdings.pop(job)
        if self.preempted_for.pop(job, None) is None:
            self._count_held(holding.request, -members_in(holding.where))
        demand, where = holding.request.demand, holding.where
        self.capacity.give(demand, where)
        for node, _ in where:
            del self.on_node[node][job]
        self._count_devices(holding.request.account, -devices_of(demand, members_in(where)))
        _count(self._ranks, holding.request.rank, -1)
        self.prefills -= holding.request.phase == "prefill"
        _count(self._running_by_account, holding.request.account, -1)
        if self._runners is not None:
            self._runners.discard(job)
        return holding

    def shrink(self, job: str, where: Where) -> None:
        """Leave a running gang these of its places only."""
        holding = self.holdings[job]
        demand = holding.request.demand
        gone = tuple(place for place in holding.where if place not in where)
        assert where, f"{job} would hold nothing"
        assert set(where) <= set(holding.where), (where, holding.where)
        self.capacity.give(demand, gone)
        for node, _ in gone:
            del self.on_node[node][job]
        self._count_devices(holding.request.account, -devices_of(demand, members_in(gone)))
        if job not in self.preempted_for:
            self._count_held(holding.request, -members_in(gone))
        self._hold(replace(holding, where=where))

    def requeue_preempted(self, job: str, now_s: float, estimate_s: float | None) -> Request:
        """Let a preempted job wait again; ``estimate_s``: the run time that it still needs, restoring
        included."""
        holding = self.finish(job)
        request = holding.request
        had_s = devices_of(request.demand, members_in(holding.where)) * (now_s - holding.started_s)
        again = replace(
            request,
            estimate_s=estimate_s,
            attained_s=request.attained_s + had_s,
            preempted=request.preempted + 1,
            preempted_at_s=now_s,
        )
        self.submit(again, now_s)
        return again

    def _begin(self, holding: Holding) -> None:
        request, where = holding.request, holding.where
        self.capacity.take(request.demand, where)
        self._hold(holding)
        self._count_held(request, members_in(where))
        self._count_devices(request.account, devices_of(request.demand, members_in(where)))
        _count(self._ranks, request.rank, 1)
        self.prefills += request.phase == "prefill"
        _count(self._running_by_account, request.account, 1)

    def _hold(self, holding: Holding) -> None:
        self.holdings[holding.request.job] = holding
        if self._runners is not None:
            self._runners.add(holding)
        if holding.charged_until_s is not None:
            heapq.heappush(self._charged, (holding.charged_until_s, holding.request.job))
        for node, _ in holding.where:
            self.on_node[node][holding.request.job] = holding

    def _count_queued(self, account: str, change: int) -> None:
        _count(self._waiting_by_account, account, change)
        for name in self.above(account):
            self.queued[name] = self.queued.get(name, 0) + change

    def _count_devices(self, account: str, change: float) -> None:
        for name in self.above(account):
            self.devices_held[name] = self.devices_held.get(name, 0.0) + change

    def _count_held(self, request: Request, members: int) -> None:
        if self._held is not None:
            self._held.count(self.above(request.account), request, members)

    def above(self, account: str) -> tuple[str, ...]:
        """Return the pool, every account above this one, and this one."""
        known = self._paths_above.get(account)
        if known is None:
            known = self._paths_above[account] = accounts_above(account)
        return known

    # -- for decisions ---------------------------------------------------------------------------------------

    def move_s(self, request: Request, node: str) -> float:
        """Return the seconds to move the request's state to a node; 0 where it lies there, or nowhere yet."""
        if request.home in (None, node):
            return 0.0
        host = self.capacity.near(request.home).host
        same = host is None or host == self.capacity.kind(node).host
        return request.move_s if same else request.move_s + request.other_host_s

    def place_alone(self, demand: Demand, scoring: Scoring, home: str | None) -> Placed | None:
        """Return the placement while nothing runs, as :meth:`FreeCapacity.place` does; cached until a node
        changes."""
        assert not self.holdings
        asked = (demand, scoring.name, home)
        if asked not in self._places:
            if len(self._places) >= PLACEMENTS_CACHED_MAX:
                self._places.clear()
            self._places[asked] = self.capacity.place(demand, scoring, home)
        return self._places[asked]

    def index(self, policy: QueuePolicy, now_s: float) -> WaitingIndex:
        """Return the waiting requests in the order of this policy, with ranks as of now."""
        index = self._index
        if index is None or index.policy != policy:
            index = self._index = WaitingIndex(policy)
            self._unindexed = dict.fromkeys(self.waiting, now_s)
        for job, since_s in self._unindexed.items():
            index.add(self.waiting[job], since_s)
        self._unindexed.clear()
        for job in index.due(now_s):
            index.discard(self.waiting[job])
            index.add(self.waiting[job], now_s)
        return index

    def runners(self, policy: QueuePolicy, now_s: float) -> RunningIndex:
        """Return the running jobs, with their sizes under this policy now."""
        found = self._runners
        if found is None or found.policy != policy:
            found = self._runners = RunningIndex(policy)
            for holding in self.holdings.values():
                found.add(holding)
        found.advance(now_s)
        return found

    def held(self) -> HeldDevices:
        """Return the devices that accounts hold against guarantees. Counted at the first call, kept up to
        date from then on."""
        if self._held is None:
            self._held = self.count_held_devices()
        return self._held

    def count_held_devices(self) -> HeldDevices:
        """Count now: running jobs that are not being preempted, and reserved capacity."""
        found = HeldDevices()
        for job, holding in self.holdings.items():
            if job not in self.preempted_for:
                found.count(self.above(holding.request.account), holding.request, members_in(holding.where))
        for reservation in self.reserved.values():
            request = self.waiting[reservation.job]
            found.count(self.above(request.account), request, members_in(reservation.where))
        return found

    @property
    def contended(self) -> bool:
        """Return whether a job waits while another account runs."""
        waiting, running = self._waiting_by_account, self._running_by_account
        return bool(waiting and running) and (len(waiting) > 1 or waiting.keys() != running.keys())

    @property
    def running_accounts(self) -> KeysView[str]:
        """Accounts of the running jobs."""
        return self._running_by_account.keys()

    @property
    def worst_rank(self) -> int:
        """Worst rank of the running jobs."""
        return max(self._ranks, default=0)

    def charge_due(self, now_s: float) -> tuple[list[str], float]:
        """Return the running jobs whose charge is used up, and when the next one's will be (infinite:
        never)."""
        due: dict[tuple[float, str], None] = {}
        heap = self._charged
        while heap and (heap[0][0] <= now_s or self._stale(heap[0])):
            entry = heapq.heappop(heap)
            if not self._stale(entry):
                due[entry] = None
        next_s = heap[0][0] if heap else math.inf
        for entry in due:
            heapq.heappush(heap, entry)
        return [job for _, job in due], next_s

    def _stale(self, entry: tuple[float, str]) -> bool:
        holding = self.holdings.get(entry[1])
        return holding is None or holding.charged_until_s != entry[0]

    def state(self) -> ClusterState:
        return ClusterState(
            tuple(self.nodes.values()),
            tuple(sorted(self.waiting.values(), key=lambda request: request.number)),
            tuple(sorted(self.holdings.values(), key=lambda holding: holding.request.number)),
            tuple(self.reserved.values()),
            tuple(sorted(self.preempted_for.items())),
            tuple(self.calendar[name] for name in sorted(self.calendar)),
            tuple(self.promises[name] for name in sorted(self.promises)),
            tuple(self.interleaved[name] for name in sorted(self.interleaved)),
        )


def _count(counter: dict[_Name, int], name: _Name, change: int) -> None:
    counted = counter.get(name, 0) + change
    if counted:
        counter[name] = counted
    else:
        del counter[name]


def accounts_above(account: str) -> tuple[str, ...]:
    """Return the pool (``""``), every account above this one, and this one."""
    parts = account.split("/")
    return ("", *("/".join(parts[: count + 1]) for count in range(len(parts))))


def _shares_devices(request: Request) -> bool:
    return request.demand.device_milli < 1000
