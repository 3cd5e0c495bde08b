"""What keeps a job from starting where it stands, whoever is before it."""

from __future__ import annotations

from djinn_lab.jobs.decision import Calendar, Cluster, start_limit
from djinn_lab.jobs.fairness import LimitHit, ShareTree
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.request import Demand, Request
from djinn_lab.jobs.tables import Tables
from djinn_lab.jobs.targets import suits
from djinn_lab.units import listed


class KeptBack:
    """At one moment."""

    def __init__(self, tables: Tables, cluster: Cluster, shares: ShareTree) -> None:
        self._tables, self._cluster, self._shares = tables, cluster, shares
        self._limited: dict[tuple[str, Demand], str] = {}
        tainted = any(device.taints for device in tables.devices.values())
        self._by_the_pool = bool(tainted or cluster.calendar or shares.limited)

    def why(self, job: Job) -> str:
        """In words for people; empty where nothing does."""
        if job.held_on is None or not (self._by_the_pool or job.wish is not None):
            return ""
        here = self._tables.devices[job.held_on]
        if (job.wish is not None or here.taints) and not suits(job.wish, job.terms.tolerates, here):
            return f"it may not run on {here.device}" if job.wish is None else f"it is to run on {job.wish}"
        request = self._cluster.waiting.get(job.job)
        if request is None:
            return ""
        for entry in self._cluster.calendar.values():
            if job.held_on in entry.nodes and entry.shuts_out(request, self._tables.now_s):
                return kept_for(entry, (job.held_on,))
        return self._limit(request) if self._shares.limited else ""

    def _limit(self, request: Request) -> str:
        asked = (request.account, request.demand)
        if asked not in self._limited:
            hit = start_limit(self._cluster, self._shares, request, self._tables.now_s, {})
            self._limited[asked] = "" if hit is None else _told(hit)
        return self._limited[asked]


def kept_for(entry: Calendar, devices: tuple[str, ...]) -> str:
    """``cpu:0 is kept for teaching (course)``."""
    kept = "is" if len(devices) == 1 else "are"
    return f"{listed(devices)} {kept} kept for {listed(sorted(entry.accounts))} ({entry.name})"


def _told(hit: LimitHit) -> str:
    whose = f"account {hit.account}" if hit.account else "the pool"
    if hit.kind == "device_s":
        return f"{whose} has used its device time"
    return f"{whose} may have {hit.limit:g} device{'' if hit.limit == 1 else 's'} at once"
