"""The order in which pending jobs would be served as things are. No promise: a decision also looks at
capacity, limits and reservations, and every start changes the fair-share order."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import islice

from djinn_lab.jobs.commands import ORDERED_JOBS_MAX
from djinn_lab.jobs.decision.state.waiting import Bucket, Entry
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.machine.dispatcher import Dispatcher
from djinn_lab.jobs.machine.eligibility import Eligibility
from djinn_lab.jobs.machine.explain import POSITIONS_MAX
from djinn_lab.jobs.machine.tables import QueueTables
from djinn_lab.jobs.states import CONTENDING, PENDING_STATES

NEXT, ELIGIBLE, INELIGIBLE = range(3)
"""Tier applied before the policy's order: the next job (:mod:`.next_jobs`); eligible on its device;
ineligible there, by its target, a reservation for other accounts or a limit of its account."""


class DeviceQueues:
    """The queue of every device: contending jobs in the order of decisions, then the later jobs of their
    sessions. Session memory is granted to the first few of each, so jobs that a decision can start come
    first."""

    def __init__(self, tables: QueueTables, dispatcher: Dispatcher) -> None:
        self._tables = tables
        self._dispatcher = dispatcher
        self._near: list[Job] = []
        self._rest: Iterator[Job] | None = None
        self._first: list[Job] | None = None

    def changed(self) -> None:
        """Forget what was found before: an event was applied."""
        self._near, self._rest, self._first = [], None, None

    def order(self) -> Iterator[Job]:
        """Yield all jobs that contend for a device, in the order of decisions."""
        dispatcher = self._dispatcher
        index = dispatcher.cluster.index(dispatcher.policy, self._tables.now_s)
        for rank in sorted(index.ranks):
            for equal in self._in_turn(index.ranks[rank]):
                for _, name in heapq.merge(*(entries for bucket in equal for entries in _entries(bucket))):
                    yield self._tables.jobs[name]

    def _nearest(self) -> Iterator[Job]:
        """Yield the first POSITIONS_MAX contending jobs. Found once for an event, and no further than is
        read."""
        rest = self._rest = self._rest or islice(self.order(), POSITIONS_MAX)
        yield from self._near
        for job in rest:
            self._near.append(job)
            yield job

    def _in_turn(self, buckets: Mapping[str, Bucket]) -> Iterator[list[Bucket]]:
        """Yield the accounts' buckets in fair-share order, those of equal rank together; lazily."""
        if not self._dispatcher.policy.by_fairness:
            yield list(buckets.values())
            return
        shares, left = self._dispatcher.shares, len(buckets)
        shares.register(buckets.keys())
        for group in shares.order(buckets.keys()):
            equal = [buckets[leaf.account] for leaf in group if leaf.account in buckets]
            if equal:
                yield equal
            left -= len(equal)
            if not left:
                return

    def of_device(self, device: str) -> list[Job]:
        """Return the whole queue of one device."""
        here = [job for job in self.order() if job.assigned_device == device]
        first = self._by_tier(here, self._next_jobs())
        ahead = {job.job for job in first}
        behind = [job for job in self._tables.of_device(device) if job.job not in ahead]
        whole = [*first, *sorted(behind, key=lambda job: job.arrival)]
        return [job for job in whole if job.state in PENDING_STATES]

    def all(self) -> dict[str, list[Job]]:
        """Return the queues of all devices."""
        queues: dict[str, list[Job]] = {name: [] for name in self._tables.devices}
        if self._is_empty:
            return queues
        contending = self._by_tier(self.order(), self._next_jobs())
        ahead = {job.job for job in contending}
        behind = (job for job in self._tables.in_state(*PENDING_STATES) if job.job not in ahead)
        for job in (*contending, *sorted(behind, key=lambda job: job.arrival)):
            if job.state in PENDING_STATES and job.assigned_device is not None:
                queues[job.assigned_device].append(job)
        return queues

    @property
    def long(self) -> bool:
        """Return whether too many jobs are pending to give all of them positions at every event."""
        return sum(len(self._tables.of_state[state]) for state in PENDING_STATES) > POSITIONS_MAX

    def first_jobs(self) -> dict[str, list[Job]]:
        """Return the heads of the devices' queues, as far as their jobs are among the first of all."""
        queues: dict[str, list[Job]] = {}
        for job in self._first_by_tier():
            if job.state in PENDING_STATES and job.assigned_device is not None:
                queues.setdefault(job.assigned_device, []).append(job)
        return queues

    def heads(self) -> dict[str, tuple[str, ...]]:
        """Return the next few jobs of every device, pending or waiting for memory; none where one job
        stands alone and has its memory."""
        if self._is_empty:
            return {}
        eligibility, chosen, tables = self.eligibility(), self._next_jobs(), self._tables
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name in chosen:
            _add(found, tables.jobs[name])
        behind: defaultdict[str, list[str]] = defaultdict(list)
        short = set(tables.load)  # a session of each that contends there is counted
        for job in self._nearest():
            if job.job in chosen or job.assigned_device is None:
                continue
            _add(behind if eligibility.reason(job) else found, job)
            if len(found[job.assigned_device]) == ORDERED_JOBS_MAX:
                short.discard(job.assigned_device)
                if not short:
                    break
        named = found.keys() | behind.keys()
        queues = {
            name: (*found[name], *behind[name])[:ORDERED_JOBS_MAX] for name in tables.devices if name in named
        }
        return {name: jobs for name, jobs in queues.items() if len(jobs) > 1 or self._lack_memory(jobs)}

    def _first_by_tier(self) -> list[Job]:
        """Return the first contending jobs by tier. Found once for an event."""
        if self._first is None:
            near, chosen = {job.job: job for job in self._nearest()}, self._next_jobs()
            for name in chosen:
                near.setdefault(name, self._tables.jobs[name])
            self._first = self._by_tier(near.values(), chosen)
        return self._first

    @property
    def _is_empty(self) -> bool:
        """Return whether no job contends for a device, and no job waits behind one that does."""
        in_state = self._tables.of_state
        return not (self._dispatcher.next_jobs.wanted or any(map(in_state.__getitem__, CONTENDING)))

    def _lack_memory(self, jobs: Iterable[str]) -> bool:
        """Return whether session memory has yet to answer for one of these jobs."""
        return any(self._tables.jobs[name].memory in ("queued", "deferred") for name in jobs)

    def _next_jobs(self) -> Set[str]:
        return self._dispatcher.next_jobs.jobs().keys()

    def _by_tier(self, contending: Iterable[Job], chosen: Set[str]) -> list[Job]:
        """Sort by tier; jobs of one tier stay in order."""
        eligibility = self.eligibility()
        queues: tuple[list[Job], ...] = ([], [], [])
        for job in contending:
            tier = NEXT if job.job in chosen else INELIGIBLE if eligibility.reason(job) else ELIGIBLE
            queues[tier].append(job)
        return [*queues[NEXT], *queues[ELIGIBLE], *queues[INELIGIBLE]]

    def eligibility(self) -> Eligibility:
        return Eligibility(self._tables, self._dispatcher.cluster, self._dispatcher.shares)


def _add(queues: dict[str, list[str]], job: Job) -> None:
    """Append the job to its device's queue unless that is full."""
    if job.assigned_device is not None and len(queues[job.assigned_device]) < ORDERED_JOBS_MAX:
        queues[job.assigned_device].append(job.job)


def _entries(bucket: Bucket) -> Iterator[list[Entry]]:
    for waiting in bucket.classes.values():
        yield waiting.entries
