"""Running jobs by account and by size. The search for victims looks only at those that are large enough,
and asks once for all accounts of one group beside the candidate's.

The index does not depend on time. Of two jobs of equal weight, the one that ends later, less its parking
cost, is the larger one at every moment before their ends. So jobs lie in sorted lists, one for every rank
and weight, sorted once. Jobs that run longer than expected are the exception: they are looked at one by
one."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator

from djinn_lab.jobs.decision.rules.keys import devices_of, remaining_s, weight
from djinn_lab.jobs.decision.rules.policy import QueuePolicy
from djinn_lab.jobs.fairness.account import OWN, AccountNode
from djinn_lab.jobs.request import Holding, members_in

Entry = tuple[float, int, float, float, Holding]
"""The expected end less the weighted parking cost, the number of arrival, the expected end, the held
devices, and the holding."""

Sized = tuple[float, float, float, Holding]
"""The remaining time less the weighted parking cost, by its weight; the remaining seconds; the held
devices; the holding."""

Beside = tuple[AccountNode, AccountNode, "RunningJobs"]
"""An ancestor of the candidate's account, a sibling of that ancestor, and the running jobs below the
sibling."""

RankAndWeight = tuple[int, float]
"""Rank and weight."""


class RunningJobs:
    """Running jobs of one account and of all below it. ``by_size``: the largest last; ``late``: past their
    expected end."""

    __slots__ = ("by_size", "children", "count", "late")

    def __init__(self) -> None:
        self.count = 0
        self.by_size: dict[RankAndWeight, list[Entry]] = {}
        self.late: dict[str, Holding] = {}
        self.children: dict[str, RunningJobs] = {}

    def remove(self, name: RankAndWeight, entry: Entry) -> None:
        line = self.by_size[name]
        del line[bisect_left(line, entry[:2])]
        if not line:
            del self.by_size[name]


class RunningIndex:
    """The running jobs, indexed by account and size. For one policy. ``pool``: all running jobs. Sizes are
    those of the moment of the last :meth:`advance`."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.pool = RunningJobs()
        self._known: dict[str, tuple[tuple[str, ...], RankAndWeight, Entry]] = {}
        self._ends: list[tuple[float, str]] = []
        self._now_s = -math.inf

    def add(self, holding: Holding) -> None:
        """Add a job, or change what is known about it."""
        request = holding.request
        job = request.job
        ends_s = holding.ends_s
        if ends_s is None:
            ends_s = holding.started_s + self.policy.unknown_s
        known = self._known.get(job)
        if known is not None:
            self.discard(job)
        late = ends_s <= self._now_s
        if not late and (known is None or known[2][2] != ends_s):
            heapq.heappush(self._ends, (ends_s, job))
        steps = (*request.account.split("/"), OWN)
        name = (request.rank, weight(request.demand, self.policy))
        devices = devices_of(request.demand, members_in(holding.where))
        size_s = ends_s - self.policy.park_factor * holding.park_s
        entry = (size_s, request.number, ends_s, devices, holding)
        self._known[job] = (steps, name, entry)
        for runners in self._made(steps):
            runners.count += 1
            if late:
                runners.late[job] = holding
            elif name in runners.by_size:
                insort(runners.by_size[name], entry)
            else:
                runners.by_size[name] = [entry]

    def discard(self, job: str) -> None:
        """Remove a job that does not run any more."""
        steps, name, entry = self._known.pop(job)
        late, above = job in self.pool.late, None
        for step, runners in zip(("", *steps), self._made(steps), strict=True):
            runners.count -= 1
            if above is not None and not runners.count:
                del above.children[step]
                return
            if late:
                del runners.late[job]
            else:
                runners.remove(name, entry)
            above = runners

    def advance(self, now_s: float) -> None:
        """Mark the jobs whose expected end has come as late."""
        self._now_s = now_s
        while self._ends and self._ends[0][0] <= now_s:
            ends_s, job = heapq.heappop(self._ends)
            if not self._stale(ends_s, job):
                steps, name, entry = self._known[job]
                for runners in self._made(steps):
                    runners.remove(name, entry)
                    runners.late[job] = entry[4]

    def next_end_s(self) -> float:
        """Return when the first job is expected to end, infinite when none runs."""
        while self._ends and self._stale(*self._ends[0]):
            heapq.heappop(self._ends)
        first_s = self._ends[0][0] if self._ends else math.inf
        for holding in self.pool.late.values():
            first_s = min(first_s, self._now_s + remaining_s(holding, self.policy, self._now_s))
        return first_s

    def largest(self) -> float:
        """Return the size of the largest job, 0 when none runs."""
        sizes = [self._sized(line[-1][4], name[1])[0] for name, line in self.pool.by_size.items()]
        for late in self.pool.late.values():
            sizes.append(self._sized(late, weight(late.request.demand, self.policy))[0])
        return max(sizes, default=0.0)

    def beside(self, account: AccountNode) -> Iterator[Beside]:
        """Yield other accounts' jobs, in groups beside the account's ancestors, one group for each
        sibling."""
        here: RunningJobs | None = self.pool
        for step in account.ancestry:
            assert here is not None
            assert step.parent is not None
            name, siblings = step.name, step.parent.children
            for other, runners in here.children.items():
                if other != name:
                    yield step, siblings[other], runners
            here = here.children.get(name)
            if here is None:
                return

    def own(self, account: AccountNode) -> RunningJobs | None:
        """Return the jobs of the account itself."""
        here: RunningJobs | None = self.pool
        for step in account.ancestry:
            here = here.children.get(step.name) if here is not None else None
        return here

    def larger(self, runners: RunningJobs, rank: int, than: float, worse_than: float) -> list[Sized]:
        """Return the jobs of this rank with a size above ``than``, and of worse ranks above
        ``worse_than``."""
        found: list[Sized] = []
        now_s, factor = self._now_s, self.policy.park_factor
        for (of_rank, weighs), line in runners.by_size.items():
            limit = than if of_rank == rank else worse_than
            if of_rank < rank or limit == math.inf:
                continue
            for _, _, ends_s, devices, holding in reversed(line):
                left_s = ends_s - now_s
                size = (left_s - factor * holding.park_s) * weighs
                if size <= limit:
                    break
                found.append((size, left_s, devices, holding))
        for holding in runners.late.values():
            request = holding.request
            if request.rank >= rank:
                sized = self._sized(holding, weight(request.demand, self.policy))
                if sized[0] > (than if request.rank == rank else worse_than):
                    found.append(sized)
        return found

    def _sized(self, holding: Holding, weighs: float) -> Sized:
        left_s = remaining_s(holding, self.policy, self._now_s)
        size = (left_s - self.policy.park_factor * holding.park_s) * weighs
        return size, left_s, devices_of(holding.request.demand, members_in(holding.where)), holding

    def _made(self, steps: tuple[str, ...]) -> Iterator[RunningJobs]:
        """Yield the path from the pool down, created where there is none."""
        here = self.pool
        yield here
        for step in steps:
            found = here.children.get(step)
            if found is None:
                found = here.children[step] = RunningJobs()
            here = found
            yield here

    def _stale(self, ends_s: float, job: str) -> bool:
        """Return whether the entry is of a job that has stopped, ends at another time, or is known to be
        late."""
        place = self._known.get(job)
        return place is None or place[2][2] != ends_s or job in self.pool.late
