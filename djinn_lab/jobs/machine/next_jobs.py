"""The jobs that run next on their devices, whatever the order of the queue. Session memory serves them
first, and grants of jobs that do not start before them are revoked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from djinn_lab.events import MemoryRelease
from djinn_lab.jobs.decision import Cluster
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.machine.tables import QueueTables

REVOKE_AGAIN_S = 1.0


@dataclass(slots=True)
class NextJobs:
    """``wanted``: by job, the device on which a decision wanted to start it without a preemption, when it
    had no memory grant; kept until it has one, or until another job starts there. ``revoked_s``: when a
    job's grant was revoked, and for which job."""

    tables: QueueTables
    cluster: Cluster
    wanted: dict[str, str] = field(default_factory=dict)
    revoked_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def want(self, job: Job) -> None:
        assert job.assigned_device is not None
        self.wanted[job.job] = job.assigned_device

    def device_started(self, device: str) -> None:
        """Drop the wanted starts on this device, since a job runs there now."""
        if device in self.wanted.values():
            self.wanted = {job: where for job, where in self.wanted.items() if where != device}

    def jobs(self) -> dict[str, bool]:
        """Return the jobs that have capacity reserved on their own device, and the wanted ones. True: no
        victim has to stop before."""
        tables, cluster, found = self.tables, self.cluster, {}
        for reservation in cluster.reserved.values():
            if tables.jobs[reservation.job].assigned_device in dict(reservation.where):
                found[reservation.job] = not any(
                    cluster.preempted_for.get(victim) == reservation.job for victim in reservation.victims
                )
        for name, device in list(self.wanted.items()):
            job = tables.jobs.get(name)
            if name in cluster.waiting and job and job.assigned_device == device and job.memory != "granted":
                found.setdefault(name, True)
            else:
                del self.wanted[name]
        return found

    def grants_to_revoke(self, now_s: float) -> tuple[list[Job], float]:
        """Return the jobs whose grants keep a next job from its memory, and when to ask again at the
        latest. Session memory may grant it once more while the other session's state is on its way, so the
        same is done again after a while."""
        tables, waiting = self.tables, self.cluster.waiting
        if not (self.wanted or self.revoked_s or self.cluster.reserved):
            return [], math.inf
        self.revoked_s = {one: at_s for one, at_s in self.revoked_s.items() if one[1] in waiting}
        found, again_s, next_jobs = {}, math.inf, self.jobs()
        for name, open_to_it in next_jobs.items():
            lacks = tables.jobs[name]
            if not (
                open_to_it and lacks.memory == "deferred" and lacks.memory_release is MemoryRelease.PREEMPTION
            ):
                continue
            assert lacks.assigned_device is not None
            for job in tables.of_device(lacks.assigned_device):
                if job.memory != "granted" or job.job in found or job.job in next_jobs:
                    continue
                due_s = self.revoked_s.get((job.job, name), -math.inf) + REVOKE_AGAIN_S
                if now_s < due_s:
                    again_s = min(again_s, due_s)
                else:
                    self.revoked_s[job.job, name] = now_s
                    found[job.job] = job
        return list(found.values()), again_s
