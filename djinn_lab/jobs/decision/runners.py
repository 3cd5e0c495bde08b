"""Who runs, by account and by size: the search for somebody who could move aside looks only at those that are
large enough, and asks once for all accounts that stand together beside the candidate's.

What is kept does not depend on time. Of two jobs that weigh the same, the one that ends later, less what
parking it costs, is the larger one at every moment before their ends; so jobs lie in lines, one for every
rank and weight, sorted once. Those that run longer than expected are the exception: they are looked at one
by one."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator

from djinn_lab.jobs.decision.keys import devices_of, remaining_s, weight
from djinn_lab.jobs.decision.policy import QueuePolicy
from djinn_lab.jobs.fairness.account import OWN, Account
from djinn_lab.jobs.request import Holding, members_in

Entry = tuple[float, int, float, float, Holding]
"""The expected end less what parking counts for, the number of arrival, the expected end, the devices that it
holds, and who."""

Sized = tuple[float, float, float, Holding]
"""What it needs still, less what parking counts for, by its weight; what it needs in seconds; the devices
that it holds; itself."""

Beside = tuple[Account, Account, "Runners"]
"""An account of the candidate's line, a sibling of it, and those who run below that."""

LineName = tuple[int, float]
"""Rank and weight."""


class Runners:
    """Those of one account and of all below it. ``lines``: the largest last; ``late``: past their expected
    end."""

    __slots__ = ("children", "count", "late", "lines")

    def __init__(self) -> None:
        self.count = 0
        self.lines: dict[LineName, list[Entry]] = {}
        self.late: dict[str, Holding] = {}
        self.children: dict[str, Runners] = {}

    def take_out(self, name: LineName, entry: Entry) -> None:
        line = self.lines[name]
        del line[bisect_left(line, entry[:2])]
        if not line:
            del self.lines[name]


class RunnerIndex:
    """For one policy. ``pool``: everybody. Sizes are those of the moment of the last :meth:`advance`."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.pool = Runners()
        self._places: dict[str, tuple[tuple[str, ...], LineName, Entry]] = {}
        self._ends: list[tuple[float, str]] = []
        self._now_s = -math.inf

    def add(self, holding: Holding) -> None:
        """It runs from now on, or what is known about it is another now."""
        request = holding.request
        job = request.job
        ends_s = holding.ends_s
        if ends_s is None:
            ends_s = holding.started_s + self.policy.unknown_s
        known = self._places.get(job)
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
        self._places[job] = (steps, name, entry)
        for runners in self._made(steps):
            runners.count += 1
            if late:
                runners.late[job] = holding
            elif name in runners.lines:
                insort(runners.lines[name], entry)
            else:
                runners.lines[name] = [entry]

    def discard(self, job: str) -> None:
        """It does not run any more."""
        steps, name, entry = self._places.pop(job)
        late, above = job in self.pool.late, None
        for step, runners in zip(("", *steps), self._made(steps), strict=True):
            runners.count -= 1
            if above is not None and not runners.count:
                del above.children[step]
                return
            if late:
                del runners.late[job]
            else:
                runners.take_out(name, entry)
            above = runners

    def advance(self, now_s: float) -> None:
        """Those whose expected end has come are late from now on."""
        self._now_s = now_s
        while self._ends and self._ends[0][0] <= now_s:
            ends_s, job = heapq.heappop(self._ends)
            if not self._stale(ends_s, job):
                steps, name, entry = self._places[job]
                for runners in self._made(steps):
                    runners.take_out(name, entry)
                    runners.late[job] = entry[4]

    def next_end_s(self) -> float:
        """When the first of them is expected to be done, infinite when nobody runs."""
        while self._ends and self._stale(*self._ends[0]):
            heapq.heappop(self._ends)
        first_s = self._ends[0][0] if self._ends else math.inf
        for holding in self.pool.late.values():
            first_s = min(first_s, self._now_s + remaining_s(holding, self.policy, self._now_s))
        return first_s

    def largest(self) -> float:
        """The size of the largest, 0 when nobody runs."""
        sizes = [self._sized(line[-1][4], name[1])[0] for name, line in self.pool.lines.items()]
        for late in self.pool.late.values():
            sizes.append(self._sized(late, weight(late.request.demand, self.policy))[0])
        return max(sizes, default=0.0)

    def beside(self, account: Account) -> Iterator[Beside]:
        """Those of others, in groups that stand beside the account's line at one place in the tree."""
        here: Runners | None = self.pool
        for step in account.line:
            assert here is not None
            assert step.parent is not None
            name, siblings = step.name, step.parent.children
            for other, runners in here.children.items():
                if other != name:
                    yield step, siblings[other], runners
            here = here.children.get(name)
            if here is None:
                return

    def own(self, account: Account) -> Runners | None:
        """Those of the account itself."""
        here: Runners | None = self.pool
        for step in account.line:
            here = here.children.get(step.name) if here is not None else None
        return here

    def larger(self, runners: Runners, rank: int, than: float, worse_than: float) -> list[Sized]:
        """Of this rank those whose size is above ``than``, of worse ones those above ``worse_than``."""
        found: list[Sized] = []
        now_s, factor = self._now_s, self.policy.park_factor
        for (of_rank, weighs), line in runners.lines.items():
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

    def _made(self, steps: tuple[str, ...]) -> Iterator[Runners]:
        """From the pool down, made where there is none."""
        here = self.pool
        yield here
        for step in steps:
            found = here.children.get(step)
            if found is None:
                found = here.children[step] = Runners()
            here = found
            yield here

    def _stale(self, ends_s: float, job: str) -> bool:
        """Noted for a job that has left, or is expected to end at another time, or is known to be late."""
        place = self._places.get(job)
        return place is None or place[2][2] != ends_s or job in self.pool.late
