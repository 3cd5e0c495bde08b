"""Why a job is ineligible on its assigned device, whatever its queue position."""

from __future__ import annotations

from djinn_lab.jobs.decision import CalendarReservation, Cluster, start_limit
from djinn_lab.jobs.fairness import LimitHit, ShareTree
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.machine.tables import QueueTables
from djinn_lab.jobs.request import Demand, Request
from djinn_lab.jobs.targets import suits
from djinn_lab.units import listed


class Eligibility:
    """Checks jobs at one moment."""

    def __init__(self, tables: QueueTables, cluster: Cluster, shares: ShareTree) -> None:
        self._tables, self._cluster, self._shares = tables, cluster, shares
        self._limited: dict[tuple[str, Demand], str] = {}
        tainted = any(device.taints for device in tables.devices.values())
        self._by_the_pool = bool(tainted or cluster.calendar or shares.limited)

    def reason(self, job: Job) -> str:
        """Say why the job is ineligible, for people; empty when it is eligible."""
        if job.assigned_device is None or not (self._by_the_pool or job.target is not None):
            return ""
        here = self._tables.devices[job.assigned_device]
        if (job.target is not None or here.taints) and not suits(job.target, job.terms.tolerates, here):
            return (
                f"it is not eligible on {here.device}"
                if job.target is None
                else f"its target is {job.target}"
            )
        request = self._cluster.waiting.get(job.job)
        if request is None:
            return ""
        for entry in self._cluster.calendar.values():
            if job.assigned_device in entry.nodes and entry.excludes(request, self._tables.now_s):
                return reserved_for(entry, (job.assigned_device,))
        return self._limit(request) if self._shares.limited else ""

    def _limit(self, request: Request) -> str:
        asked = (request.account, request.demand)
        if asked not in self._limited:
            hit = start_limit(self._cluster, self._shares, request, self._tables.now_s, {})
            self._limited[asked] = "" if hit is None else _limit_sentence(hit)
        return self._limited[asked]


def reserved_for(entry: CalendarReservation, devices: tuple[str, ...]) -> str:
    """Return for example ``cpu:0 is reserved for teaching (course)``."""
    verb = "is" if len(devices) == 1 else "are"
    return f"{listed(devices)} {verb} reserved for {listed(sorted(entry.accounts))} ({entry.name})"


def _limit_sentence(hit: LimitHit) -> str:
    whose = f"account {hit.account}" if hit.account else "the pool"
    if hit.kind == "device_s":
        return f"{whose} has used its device time"
    return f"{whose} may have {hit.limit:g} device{'' if hit.limit == 1 else 's'} at once"
