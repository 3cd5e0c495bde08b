"""Jobs that run along with another one, in one batch on its device.

A job of a batch key that starts alone on a device becomes a *leader*: jobs of the same key that wait for that
device, and for nothing else, start with it as its *riders*. Riders take no slot and hold no capacity, so they
delay nobody who could have started. They run and end as any other job. When the leader ends before them, the
first of them takes its place, and its slot. Each member pays its share of the device time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from msgspec.structs import replace

from djinn_lab.jobs.decision import Cluster, soft_limit, start_limit
from djinn_lab.jobs.fairness import Amounts, ShareTree
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.machine.tables import QueueTables, next_state
from djinn_lab.jobs.request import Holding, Request
from djinn_lab.jobs.states import JobState, JobTransition

RIDERS_MAX = 15


@dataclass(slots=True)
class Ride:
    """A rider's place beside its leader. ``request``: as it waited."""

    request: Request
    leader: str
    device: str
    started_s: float


@dataclass(slots=True)
class Riders:
    """``rides``: by rider. ``members``: by job of a batch, how many jobs the batch began with."""

    tables: QueueTables
    cluster: Cluster
    rides: dict[str, Ride] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)

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
        found = [
            request
            for request in self.cluster.decode_steps.values()
            if request.job not in planned and self._rides(leader, request, shares, at_s)
        ]
        found = sorted(found, key=lambda request: request.number)[:RIDERS_MAX]
        members = len(found) + 1
        if found:
            self.members[leader.job] = members
        return [self._start(request, leader, device, shares, at_s, members) for request in found]

    def _rides(self, leader: Job, request: Request, shares: ShareTree, at_s: float) -> bool:
        """Return whether the request's job may start with the leader: it waits for the device alone."""
        job, device = self.tables.jobs[request.job], leader.assigned_device
        if (job.batch, job.assigned_device, job.state) != (leader.batch, device, JobState.QUEUED):
            return False
        if not request.startable or job.losses or job.gang > 1 or request.job in self.cluster.reserved:
            return False
        calendar = self.cluster.calendar.values()
        if any(device in entry.nodes and entry.excludes(request, at_s) for entry in calendar):
            return False
        limited = start_limit(self.cluster, shares, request, at_s, {}) is not None
        return not limited and soft_limit(self.cluster, shares, request, {}) is None

    def _start(
        self, request: Request, leader: Job, device: str, shares: ShareTree, at_s: float, members: int
    ) -> Job:
        job = self.tables.jobs[request.job]
        self.cluster.withdraw(job.job)
        expected_s = min(leader.remaining_s or 0.0, job.remaining_s or 0.0)
        shares.admit(job.job, job.account, at_s, Amounts(expected_s / members))
        self.rides[job.job] = Ride(request, leader.job, device, at_s)
        self.members[job.job] = members
        known = self.tables.devices[device]
        known.running.append(job.job)
        known.riders.add(job.job)
        started = replace(
            job,
            state=next_state(job, JobTransition.START),
            started_at_s=job.started_at_s if job.started_at_s is not None else at_s,
            running_since_s=at_s,
            settled=False,
            message="",
            leader=leader.job,
            batch_members=members,
        )
        self.tables.put(started)
        return started

    def share_s(self, job: str, seconds: float) -> float:
        """Return the job's part of so many seconds of its device; it leaves its batch."""
        return seconds / self.members.pop(job, 1)

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
        self.cluster.start(heir.job, leader.where, ride.started_s, leader.ends_s)
        for other in others:
            self.rides[other.job].leader = heir.job
            self.tables.update(replace(other, leader=heir.job))
