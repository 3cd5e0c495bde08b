"""Who is to start next where he stands, whatever the order of the line: room is kept for him first, and taken
back from those who have it and do not start there before."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from djinn_lab.jobs.decision import Cluster
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.tables import Tables

TAKE_BACK_AGAIN_S = 1.0


@dataclass(slots=True)
class NextUp:
    """``wanted``: on which device a decision wanted to start a job, with nobody running there, when memory
    was not ready; until it is, or somebody starts there. ``taken_back``: when somebody had to ask memory
    again, and for whom."""

    tables: Tables
    cluster: Cluster
    wanted: dict[str, str] = field(default_factory=dict)
    taken_back: dict[tuple[str, str], float] = field(default_factory=dict)

    def want(self, job: Job) -> None:
        assert job.held_on is not None
        self.wanted[job.job] = job.held_on

    def begun(self, device: str) -> None:
        """Somebody runs there now."""
        if device in self.wanted.values():
            self.wanted = {job: where for job, where in self.wanted.items() if where != device}

    def jobs(self) -> dict[str, bool]:
        """Those whom a place is kept for on the device where they are, and the wanted. True: nobody has to
        leave the device before."""
        tables, cluster, found = self.tables, self.cluster, {}
        for pin in cluster.pins.values():
            if tables.jobs[pin.job].held_on in dict(pin.where):
                found[pin.job] = not any(cluster.leaving.get(victim) == pin.job for victim in pin.victims)
        for name, device in list(self.wanted.items()):
            job = tables.jobs.get(name)
            if name in cluster.waiting and job and job.held_on == device and job.memory != "granted":
                found.setdefault(name, True)
            else:
                del self.wanted[name]
        return found

    def take_back(self, now_s: float) -> tuple[list[Job], float]:
        """Whose grants are in the way of somebody who lacks room, and when to ask again at the latest. Memory
        may grant it once more while the other's state is on its way, who then lacks it again: so the same is
        done after a while."""
        tables, waiting = self.tables, self.cluster.waiting
        if not (self.wanted or self.taken_back or self.cluster.pins):
            return [], math.inf
        self.taken_back = {one: at_s for one, at_s in self.taken_back.items() if one[1] in waiting}
        found, again_s, next_up = {}, math.inf, self.jobs()
        for name, open_to_it in next_up.items():
            lacks = tables.jobs[name]
            if not (open_to_it and lacks.memory == "held" and lacks.memory_room):
                continue
            assert lacks.held_on is not None
            for job in tables.of_device(lacks.held_on):
                if job.memory != "granted" or job.job in found or job.job in next_up:
                    continue
                due_s = self.taken_back.get((job.job, name), -math.inf) + TAKE_BACK_AGAIN_S
                if now_s < due_s:
                    again_s = min(again_s, due_s)
                else:
                    self.taken_back[job.job, name] = now_s
                    found[job.job] = job
        return list(found.values()), again_s
