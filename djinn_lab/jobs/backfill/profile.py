"""The availability profile: when is how much capacity free, and for how long?

It knows when running jobs are expected to end and what is reserved. Where every request only asks for a
number of whole devices, a sorted list of steps answers. At the first request that asks for more (labels,
shares, cpu, nodes together), the same is looked at node by node. Slurm's backfill keeps such a list of its
nodes too (``node_space_map``); Mu'alem and Feitelson (TPDS 2001) describe it for counts.

Planning anew at each event, in the order of the queue, is EASY backfilling (Lifka 1995): reserve for the
first that cannot start, and let others start only where :meth:`AvailabilityProfile.now` finds capacity for
them. The following holds for the request at the head, with devices as numbers:

- Estimates that are too long, or right: it never starts later than at its first reservation. Running jobs
  end by then; backfilled ones either end by then or leave enough; what comes back early only helps.
- Estimates that are too short by up to ``d`` seconds, when ends in the past are passed as they are: it
  starts at most ``d`` after it. Jobs that were backfilled before that moment end, or leave enough, at most
  ``d`` after it, as do those that ran. From that moment on it only waits for jobs past their estimate, its
  reservation is for the next instant, and nothing is backfilled. (Else, counting on the next of them to
  end, jobs with short estimates could keep it waiting for ever.)

Requests behind the head may get later reservations when something ends early, since those before them then
move to other places; conservative backfilling keeps theirs (:meth:`AvailabilityProfile.release`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from djinn_lab.jobs.backfill.steps import Steps
from djinn_lab.jobs.backfill.timelines import TimedDemand, Timelines
from djinn_lab.jobs.placement import DEFAULT, FreeCapacity, Scoring
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, Demand, Where, members_in


class Ending(NamedTuple):
    """Capacity that comes back, and when; ``ends_s`` None: unknown. A job past its estimate is expected to
    end at any moment."""

    ends_s: float | None
    demand: Demand
    where: Where


class Slot(NamedTuple):
    """A possible start. ``where``: empty where only the number of devices mattered."""

    start_s: float
    members: int
    where: Where


class AvailabilityProfile:
    def __init__(self, capacity: FreeCapacity, endings: Iterable[Ending], now_s: float) -> None:
        """Start from ``capacity`` as it is now; what is taken there afterwards has to be reserved here,
        too."""
        self.now_s = now_s
        self._capacity = capacity
        self._frees = capacity.frees()
        self._soon_s = soon_s = math.nextafter(now_s, math.inf)
        self._all_waited_for = False
        self._waited_for: frozenset[str] = frozenset()
        self._returned = [
            (math.inf if ends_s is None else max(ends_s, soon_s), demand, where)
            for ends_s, demand, where in endings
        ]
        self._booked: list[tuple[Demand, Slot, float]] = []
        self._assigned: dict[tuple[Demand, Slot, float], list[Where]] = {}
        self._steps: Steps | None = None
        self._timelines: Timelines | None = None
        if all(_whole(demand) for _, demand, _ in self._returned):
            self._steps = self._count()
        else:
            self._timelines = Timelines(capacity, self._frees, self._returned, now_s)

    def earliest(
        self,
        demand: Demand,
        seconds: float | None,
        after_s: float | None = None,
        scoring: Scoring = DEFAULT,
        home: str | None = None,
    ) -> Slot | None:
        """Return the first moment from ``after_s`` (now) on at which the demand can run for ``seconds``
        (for ever), with as many members as fit then. None: not after any known end."""
        lasts_s, from_s = _seconds(seconds), self.now_s if after_s is None else max(after_s, self.now_s)
        if self._steps is not None and self._counted(demand):
            start_s = self._steps.earliest(demand.members_min, lasts_s, from_s)
            if start_s is None:
                return None
            return Slot(start_s, min(demand.members, self._steps.least(start_s, lasts_s)), ())
        found = self._by_node().earliest(TimedDemand(demand, lasts_s, scoring, home), from_s)
        return None if found is None else Slot(found[0], members_in(found[1]), found[1])

    def now(
        self, demand: Demand, seconds: float | None, scoring: Scoring = DEFAULT, home: str | None = None
    ) -> Where | None:
        """Return where the demand can start now without touching what is reserved; None: nowhere. Jobs
        past their estimate count only for the requests that have reserved their capacity."""
        lasts_s = _seconds(seconds)
        if self._all_waited_for:
            return None
        if self._steps is not None and self._counted(demand):
            members = min(demand.members, self._steps.least(self.now_s, lasts_s))
            if members < demand.members_min:
                return None
            placed = self._capacity.place(replace(demand, members=members), scoring, home)
            return None if placed is None else placed.where
        return self._by_node().at(TimedDemand(demand, lasts_s, scoring, home), self.now_s, self._waited_for)

    def reserve(self, demand: Demand, slot: Slot, seconds: float | None) -> None:
        """Withhold this from later requests; nothing is taken in the free capacity. More than there is can
        be reserved, such as the capacity of victims that have not stopped yet."""
        lasts_s = _seconds(seconds)
        if slot.start_s == self._soon_s:
            self._all_waited_for = self._all_waited_for or not slot.where
            self._waited_for |= {name for name, _ in slot.where}
        if self._steps is not None and self._counted(demand):
            self._booked.append((demand, slot, lasts_s))
            self._steps.take(slot.members, slot.start_s, lasts_s)
        else:
            timelines = self._by_node()
            timelines.take(demand, self._assign(timelines, demand, slot, lasts_s), slot.start_s, lasts_s)

    def release(self, demand: Demand, slot: Slot, seconds: float | None) -> None:
        """Undo :meth:`reserve`, with the same arguments."""
        lasts_s = _seconds(seconds)
        if self._steps is not None and self._counted(demand):
            self._booked.remove((demand, slot, lasts_s))
            self._steps.take(-slot.members, slot.start_s, lasts_s)
        else:
            timelines = self._by_node()
            where = slot.where or self._assigned[demand, slot, lasts_s].pop()
            timelines.give(demand, where, slot.start_s, lasts_s)

    def _count(self) -> Steps:
        usable = {node.node for node in self._capacity.nodes if node.ready and not node.cordoned}
        counts = (
            (ends_s, sum(members for name, members in where if name in usable))
            for ends_s, _, where in self._returned
            if ends_s < math.inf
        )
        return Steps(self._capacity.devices_free, counts, self.now_s)

    def _counted(self, demand: Demand) -> bool:
        """Return whether a number describes the demand: any nodes will do, and it wants nothing but their
        devices."""
        if not _whole(demand) or demand.nodes is not None or demand.anchor is not None:
            return False
        usable = [kind for kind in self._capacity.kinds if kind.usable]
        if len(self._capacity.eligible(demand)) < len(usable):
            return False
        return demand.together == "anywhere" or sum(kind.size for kind in usable) == 1

    def _by_node(self) -> Timelines:
        """Return the timelines by node, from the first request on that needs them. Reservations by number
        get nodes now, in the order of starting. As a device is reserved from start to end, there is always
        one, unless a job is late."""
        if self._timelines is None:
            self._steps = None
            self._timelines = Timelines(self._capacity, self._frees, self._returned, self.now_s)
            placed_first = sorted(self._booked, key=lambda booked: (not booked[1].where, booked[1].start_s))
            for demand, slot, lasts_s in placed_first:
                where = self._assign(self._timelines, demand, slot, lasts_s)
                self._timelines.take(demand, where, slot.start_s, lasts_s)
        return self._timelines

    def _assign(self, timelines: Timelines, demand: Demand, slot: Slot, lasts_s: float) -> Where:
        """Return nodes for a reservation by number; none where more was reserved than there is."""
        if slot.where:
            return slot.where
        exactly = replace(demand, members=slot.members, members_min=slot.members)
        where = timelines.at(TimedDemand(exactly, lasts_s, DEFAULT, None), slot.start_s) or ()
        self._assigned.setdefault((demand, slot, lasts_s), []).append(where)
        return where


def _whole(demand: Demand) -> bool:
    return demand.device_milli == WHOLE_DEVICE_MILLI and not demand.cpu_milli and not demand.memory_mib


def _seconds(seconds: float | None) -> float:
    """Return the seconds to reserve. A job that runs no time at all still needs its devices for a moment."""
    return math.inf if seconds is None else max(seconds, 1e-6)
