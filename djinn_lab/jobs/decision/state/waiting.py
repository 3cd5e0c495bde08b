"""Waiting requests, in the order of a policy, as equivalence classes.

Requests that differ only in their queue position (equal rank, account, demand, home) form a class: when
the first of it does not fit, none does. So ten thousand waiting cells cost as many looks as they have
classes (Kueue KEP-9694, Armada's scheduling key). Classes of one rank and account lie in a bucket, by
their first request. Everything is kept sorted by bisection; nothing is sorted again."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from itertools import count

from djinn_lab.jobs.decision.rules.keys import (
    Key,
    effective_rank,
    next_rank_change_s,
    raised_from_s,
    within_key,
)
from djinn_lab.jobs.decision.rules.policy import QueuePolicy
from djinn_lab.jobs.request import Demand, Request

ROUNDING_S = 1e-6
"""A moment that was added up may be off by less than this."""

Entry = tuple[Key, str]
Shape = tuple[str, Demand, str | None, int, bool, str]
"""Account, demand, home, cost of moving (in powers of two), startable, the process of a brief one."""


class WaitingClass:
    """Waiting requests that are alike. ``entries``: sorted by key."""

    __slots__ = ("account", "entries", "number", "shape")

    def __init__(self, shape: Shape, number: int) -> None:
        self.shape = shape
        self.account = shape[0]
        self.number = number
        self.entries: list[Entry] = []


Head = tuple[Key, int, int, WaitingClass]
"""Key of the first entry, the class's number, the entry's index, the class."""


class Bucket:
    """The classes of one rank and, where the policy is fair, one account. ``heads``: by key."""

    __slots__ = ("account", "classes", "heads")

    def __init__(self, account: str) -> None:
        self.account = account
        self.classes: dict[Shape, WaitingClass] = {}
        self.heads: list[Head] = []

    def add(self, shape: Shape, entry: Entry, numbers: count[int]) -> None:
        found = self.classes.get(shape)
        if found is None:
            found = self.classes[shape] = WaitingClass(shape, next(numbers))
        entries = found.entries
        if not entries or entry < entries[0]:
            self._drop_head(found)
            entries.insert(0, entry)
            insort(self.heads, (entry[0], found.number, 0, found))
        else:
            insort(entries, entry)

    def discard(self, shape: Shape, entry: Entry) -> None:
        found = self.classes[shape]
        index = bisect_left(found.entries, entry)
        assert found.entries[index] == entry
        if index:
            del found.entries[index]
            return
        self._drop_head(found)
        del found.entries[0]
        if found.entries:
            insort(self.heads, (found.entries[0][0], found.number, 0, found))
        else:
            del self.classes[shape]

    def _drop_head(self, waiting: WaitingClass) -> None:
        if waiting.entries:
            index = bisect_left(self.heads, (waiting.entries[0][0], waiting.number))
            assert self.heads[index][3] is waiting
            del self.heads[index]


class Cursor:
    """A walk over a bucket that leaves it as it is."""

    __slots__ = ("_heads", "_index")

    def __init__(self, bucket: Bucket) -> None:
        self._heads = bucket.heads.copy()
        self._index = 0

    @property
    def head(self) -> Head | None:
        return self._heads[self._index] if self._index < len(self._heads) else None

    @property
    def job(self) -> str:
        """The cursor's job."""
        _, _, index, waiting = self._heads[self._index]
        return waiting.entries[index][1]

    def of_class(self) -> Cursor:
        """Return a walk over what is left of the cursor's class."""
        cursor = object.__new__(Cursor)
        cursor._heads, cursor._index = [self._heads[self._index]], 0
        return cursor

    def shorter_of_class(self, waiting: Mapping[str, Request]) -> None:
        """Advance to the first of the class that ends sooner than the candidate; only those can start."""
        _, number, index, of_class = self._heads[self._index]
        limit_s = waiting[of_class.entries[index][1]].promised_s
        self._index += 1
        for later in range(index + 1, len(of_class.entries)):
            key, job = of_class.entries[later]
            promised_s = waiting[job].promised_s
            if promised_s is not None and (limit_s is None or promised_s < limit_s):
                insort(self._heads, (key, number, later, of_class), lo=self._index)
                return

    def drop_class(self) -> None:
        """Skip the class: none of it can start."""
        self._index += 1

    def next_of_class(self) -> None:
        """Advance from the first of this class; the next one is ordered by its own key."""
        _, number, index, waiting = self._heads[self._index]
        self._index += 1
        if index + 1 < len(waiting.entries):
            head = (waiting.entries[index + 1][0], number, index + 1, waiting)
            insort(self._heads, head, lo=self._index)


class WaitingIndex:
    """The waiting requests, in the order of a policy. For one policy. ``ranks``: by effective rank, then
    account (``""`` for all where the policy is not fair)."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.ranks: dict[int, dict[str, Bucket]] = {}
        self._known: dict[str, tuple[int, Shape, Entry]] = {}
        self._changes: list[tuple[float, str]] = []
        self._change_s: dict[str, float] = {}
        self._raises: list[tuple[float, str]] | None = None
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, request: Request, now_s: float) -> None:
        rank = effective_rank(request, self.policy, now_s)
        shape = shape_of(request)
        entry = (within_key(request, self.policy), request.job)
        buckets = self.ranks.setdefault(rank, {})
        account = request.account if self.policy.by_fairness else ""
        bucket = buckets.get(account)
        if bucket is None:
            bucket = buckets[account] = Bucket(account)
        bucket.add(shape, entry, self._numbers)
        self._known[request.job] = (rank, shape, entry)
        change_s = next_rank_change_s(request, self.policy, now_s)
        if change_s < math.inf:
            self._change_s[request.job] = change_s
            heapq.heappush(self._changes, (change_s, request.job))
        if self._raises is not None:
            heapq.heappush(self._raises, (raised_from_s(request, self.policy), request.job))

    def discard(self, request: Request) -> None:
        rank, shape, entry = self._known.pop(request.job)
        self._change_s.pop(request.job, None)
        buckets = self.ranks[rank]
        account = request.account if self.policy.by_fairness else ""
        bucket = buckets[account]
        bucket.discard(shape, entry)
        if not bucket.classes:
            del buckets[account]
            if not buckets:
                del self.ranks[rank]

    def rank(self, job: str) -> int:
        return self._known[job][0]

    def any_raised(self, waiting: Mapping[str, Request], now_s: float) -> bool:
        """Return whether age or a deadline has raised a request, or is about to. ``waiting``: all of them, by
        job."""
        if self._raises is None:
            self._raises = [(raised_from_s(waiting[job], self.policy), job) for job in self._known]
            heapq.heapify(self._raises)
        while self._raises and self._raises[0][0] <= now_s + ROUNDING_S:
            raised_s, job = self._raises[0]
            if job in self._known and raised_from_s(waiting[job], self.policy) == raised_s:
                return True
            heapq.heappop(self._raises)
        return False

    def next_change_s(self) -> float:
        """Return when the first waiting request comes to another rank by itself."""
        while self._changes and self._stale(self._changes[0]):
            heapq.heappop(self._changes)
        return self._changes[0][0] if self._changes else math.inf

    def due(self, now_s: float) -> list[str]:
        """Return the jobs whose rank may have changed; each is named once."""
        found = []
        while self._changes and self._changes[0][0] <= now_s:
            change = heapq.heappop(self._changes)
            if not self._stale(change):
                self._change_s[change[1]] = math.inf
                found.append(change[1])
        return found

    def _stale(self, change: tuple[float, str]) -> bool:
        """Return whether the change is of a request that has left, or has come back since."""
        return self._change_s.get(change[1]) != change[0]


def shape_of(request: Request) -> Shape:
    move_s = 0.0 if request.home is None else request.move_s + request.other_host_s
    moving = math.frexp(move_s)[1] if move_s > 0 else 0
    process = request.process if request.brief else ""
    return (request.account, request.demand, request.home, moving, request.startable, process)
