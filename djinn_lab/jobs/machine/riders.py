"""Jobs that run along with another one, in one batch on its device.

A job of a batch key that starts alone on a device becomes a *leader*: jobs of the same key that wait for that
device, and for nothing else, start with it as its *riders*. Riders take no slot and hold no capacity, so they
delay no job that could have started. They run and end as any other job. When the leader ends before them, the
first of them takes its place, and its slot. Each member pays its share of the device time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from djinn_lab.jobs.decision import Cluster, soft_limit, start_limit
from djinn_lab.jobs.fairness import Amounts, ShareTree
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.machine.tables import QueueTables, started
from djinn_lab.jobs.request import Holding, Request
from djinn_lab.jobs.states import JobState

RIDERS_MAX = 15
EXEMPT_S_MAX = 1.0


@dataclass(slots=True)
class Batch:
    """The members of one batch, which began together. ``size``: how many run. ``share_s``: the seconds of the
    device that each of them has had, up to ``since_s``."""

    began_s: float
    since_s: float
    size: int
    share_s: float = 0.0

    def leave(self, at_s: float) -> float:
        """Return a member's share, which leaves."""
        now_s = max(at_s, self.since_s)
        self.share_s += (now_s - self.since_s) / self.size
        self.since_s = now_s
        self.size -= 1
        return self.share_s


@dataclass(slots=True)
class Ride:
    """A rider's place beside its leader. ``request``: as it waited."""

    request: Request
    leader: str
    device: str
    started_s: float


@dataclass(slots=True)
class Riders:
    """``rides``: by rider. ``batches``: by member, the leader included."""

    tables: QueueTables
    cluster: Cluster
    rides: dict[str, Ride] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)

    def of(self, leader: str) -> list[Job]:
        """Return the riders of a leader that run, the first one first."""
        jobs = self.tables.jobs
        return [
            jobs[name]
            for name, ride in self.rides.items()
            if ride.leader == leader and name in jobs and jobs[name].state is JobState.RUNNING
        ]

    def begin(self, leader: Job, shares: ShareTree, at_s: float, planned: Collection[str]) -> list[Job]:
        """Start the riders of a leader that starts, and return them. ``planned``: jobs with other plans."""
        device = leader.assigned_device
        assert device is not None
        if not leader.batch or leader.gang > 1 or leader.state is not JobState.QUEUED or leader.losses:
            return []
        more: dict[str, float] = {}
        for ride in self.rides.values():
            self._count(ride.request.account, more)
        found: list[Request] = []
        for request in sorted(self.cluster.decode_steps.values(), key=lambda request: request.number):
            if request.job not in planned and self._rides(leader, request, shares, at_s, more):
                found.append(request)
                self._count(request.account, more)
            if len(found) == RIDERS_MAX:
                break
        if not found:
            return []
        batch = self.batches[leader.job] = Batch(at_s, at_s, len(found) + 1)
        self._protect(leader, found, at_s)
        return [self._start(request, leader, device, shares, batch) for request in found]

    def _protect(self, leader: Job, riders: Sequence[Request], at_s: float) -> None:
        """Expect the batch to end within the time that its members would take one after the other. So long,
        but not longer than EXEMPT_S_MAX, it is not preempted: what resumes runs alone, and takes longer."""
        holding = self.cluster.holdings[leader.job]
        seconds = [leader.remaining_s, *(request.estimate_s for request in riders)]
        ends_s = at_s + sum(one or 0.0 for one in seconds)
        exempt_until_s = min(ends_s, at_s + EXEMPT_S_MAX)
        self.cluster.update(replace(holding, ends_s=ends_s, exempt_until_s=exempt_until_s))

    def _count(self, account: str, more: dict[str, float]) -> None:
        """Count a rider as one device of its accounts, for their limits."""
        for name in self.cluster.above(account):
            more[name] = more.get(name, 0.0) + 1.0

    def _rides(
        self, leader: Job, request: Request, shares: ShareTree, at_s: float, more: dict[str, float]
    ) -> bool:
        """Return whether the request's job may start with the leader: it waits for the device alone."""
        job, device = self.tables.jobs[request.job], leader.assigned_device
        if (job.batch, job.assigned_device, job.state) != (leader.batch, device, JobState.QUEUED):
            return False
        if not request.startable or job.losses or job.gang > 1 or request.job in self.cluster.reserved:
            return False
        calendar = self.cluster.calendar.values()
        if any(device in entry.nodes and entry.excludes(request, at_s) for entry in calendar):
            return False
        limited = start_limit(self.cluster, shares, request, at_s, more) is not None
        return not limited and soft_limit(self.cluster, shares, request, more) is None

    def _start(self, request: Request, leader: Job, device: str, shares: ShareTree, batch: Batch) -> Job:
        at_s, members = batch.began_s, batch.size
        job = self.tables.jobs[request.job]
        self.cluster.withdraw(job.job)
        expected_s = min(leader.remaining_s or 0.0, job.remaining_s or 0.0)
        shares.admit(job.job, job.account, at_s, Amounts(expected_s / members))
        self.rides[job.job] = Ride(request, leader.job, device, at_s)
        self.batches[job.job] = batch
        known = self.tables.devices[device]
        known.running.append(job.job)
        known.riders.add(job.job)
        rider = replace(started(job, at_s), leader=leader.job, batch_members=members)
        self.tables.put(rider)
        return rider

    def share_s(self, job: str, began_s: float, ended_s: float) -> float:
        """Return the job's seconds of its device, of a batch its share; it leaves its batch. ``began_s``:
        after the start where a part of the run is not charged."""
        batch = self.batches.pop(job, None)
        if batch is None:
            return ended_s - began_s
        return max(0.0, batch.leave(ended_s) - (began_s - batch.began_s))

    def pass_on(self, leader: Holding, at_s: float) -> None:
        """Give the place of a leader that has ended to the first of its riders that runs on."""
        riders = self.of(leader.request.job)
        if not riders:
            return
        heir, *others = riders
        ride = self.rides.pop(heir.job)
        self.tables.devices[ride.device].riders.discard(heir.job)
        self.tables.update(replace(heir, leader=""))
        self.cluster.submit(ride.request, at_s)
        exempt_s = leader.exempt_until_s
        self.cluster.start(heir.job, leader.where, ride.started_s, leader.ends_s, exempt_until_s=exempt_s)
        for other in others:
            self.rides[other.job].leader = heir.job
            self.tables.update(replace(other, leader=heir.job))
