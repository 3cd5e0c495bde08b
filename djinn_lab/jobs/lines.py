"""In which order those who wait would be served as things are. No promise: a decision looks at room, limits
and reservations, too, and every start changes whose turn it is."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import islice

from djinn_lab.jobs.commands import LINE_TOLD_MAX
from djinn_lab.jobs.contest import Contest
from djinn_lab.jobs.decision.waiting import Bucket, Entry
from djinn_lab.jobs.explain import PLACES_MAX
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.kept_back import KeptBack
from djinn_lab.jobs.states import CONTENDING, IN_LINE
from djinn_lab.jobs.tables import Tables

CHOSEN, IN_TURN, SHUT_OUT = range(3)
"""Where somebody stands, before the order counts: next up (:mod:`.next_up`); like most; behind, since his own
wish, a reservation of others or a limit of his account keeps him from starting there as things are."""


class Lines:
    """The line of every device: those who contend from it in the order of decisions, then what stands behind
    them in their own sessions. Room is kept for the first few of each, so those come first whom a decision
    can start."""

    def __init__(self, tables: Tables, contest: Contest) -> None:
        self._tables = tables
        self._contest = contest
        self._near: list[Job] = []
        self._rest: Iterator[Job] | None = None
        self._first: list[Job] | None = None

    def changed(self) -> None:
        """An event was applied: what was found before is out of date."""
        self._near, self._rest, self._first = [], None, None

    def order(self) -> Iterator[Job]:
        """Everybody who contends for a device."""
        contest = self._contest
        index = contest.cluster.index(contest.policy, self._tables.now_s)
        for rank in sorted(index.ranks):
            for equal in self._in_turn(index.ranks[rank]):
                for _, name in heapq.merge(*(entries for bucket in equal for entries in _entries(bucket))):
                    yield self._tables.jobs[name]

    def _nearest(self) -> Iterator[Job]:
        """The first PLACES_MAX who contend. Found once for an event, and no further than is looked."""
        rest = self._rest = self._rest or islice(self.order(), PLACES_MAX)
        yield from self._near
        for job in rest:
            self._near.append(job)
            yield job

    def _in_turn(self, buckets: Mapping[str, Bucket]) -> Iterator[list[Bucket]]:
        """Those of accounts of equal rank together, the first that are due first; lazily."""
        if not self._contest.policy.by_fairness:
            yield list(buckets.values())
            return
        shares, left = self._contest.shares, len(buckets)
        shares.know(buckets.keys())
        for group in shares.order(buckets.keys()):
            equal = [buckets[leaf.account] for leaf in group if leaf.account in buckets]
            if equal:
                yield equal
            left -= len(equal)
            if not left:
                return

    def of_device(self, device: str) -> list[Job]:
        """All of one device's line."""
        here = [job for job in self.order() if job.held_on == device]
        first = self._by_standing(here, self._chosen())
        ahead = {job.job for job in first}
        behind = [job for job in self._tables.of_device(device) if job.job not in ahead]
        whole = [*first, *sorted(behind, key=lambda job: job.arrival)]
        return [job for job in whole if job.state in IN_LINE]

    def all(self) -> dict[str, list[Job]]:
        """The lines of all devices."""
        lines: dict[str, list[Job]] = {name: [] for name in self._tables.devices}
        if self._nobody:
            return lines
        contending = self._by_standing(self.order(), self._chosen())
        ahead = {job.job for job in contending}
        behind = (job for job in self._tables.in_state(*IN_LINE) if job.job not in ahead)
        for job in (*contending, *sorted(behind, key=lambda job: job.arrival)):
            if job.state in IN_LINE and job.held_on is not None:
                lines[job.held_on].append(job)
        return lines

    @property
    def long(self) -> bool:
        """Are too many in line to give all of them places at every event?"""
        return sum(len(self._tables.of_state[state]) for state in IN_LINE) > PLACES_MAX

    def first_of_each(self) -> dict[str, list[Job]]:
        """The beginnings of the devices' lines, as far as their jobs are among the first of all."""
        lines: dict[str, list[Job]] = {}
        for job in self._first_by_standing():
            if job.state in IN_LINE and job.held_on is not None:
                lines.setdefault(job.held_on, []).append(job)
        return lines

    def next_of_each(self) -> dict[str, tuple[str, ...]]:
        """Of every device the first few whose turn is near, in line or waiting for memory; nobody where one
        stands alone who has what he needs."""
        if self._nobody:
            return {}
        kept_back, chosen, tables = self.kept_back(), self._chosen(), self._tables
        found: dict[str, list[str]] = {name: [] for name in tables.devices}
        for name in chosen:
            _add(found, tables.jobs[name])
        behind: dict[str, list[str]] = {name: [] for name in tables.devices}
        short = set(tables.load)  # a session of each that contends there is counted
        for job in self._nearest():
            if job.job in chosen or job.held_on is None:
                continue
            _add(behind if kept_back.why(job) else found, job)
            if len(found[job.held_on]) == LINE_TOLD_MAX:
                short.discard(job.held_on)
                if not short:
                    break
        lines = {name: (*jobs, *behind[name])[:LINE_TOLD_MAX] for name, jobs in found.items()}
        return {name: jobs for name, jobs in lines.items() if len(jobs) > 1 or self._lack(jobs)}

    def _first_by_standing(self) -> list[Job]:
        """Those who contend and come first. Found once for an event."""
        if self._first is None:
            near, chosen = {job.job: job for job in self._nearest()}, self._chosen()
            for name in chosen:
                near.setdefault(name, self._tables.jobs[name])
            self._first = self._by_standing(near.values(), chosen)
        return self._first

    @property
    def _nobody(self) -> bool:
        """Neither contends for a device, nor stands behind somebody who does."""
        in_state = self._tables.of_state
        return not (self._contest.next_up.wanted or any(map(in_state.__getitem__, CONTENDING)))

    def _lack(self, jobs: Iterable[str]) -> bool:
        """Memory is still to say more about one of them."""
        return any(self._tables.jobs[name].memory in ("line", "held") for name in jobs)

    def _chosen(self) -> Set[str]:
        return self._contest.next_up.jobs().keys()

    def _by_standing(self, contending: Iterable[Job], chosen: Set[str]) -> list[Job]:
        """Those of equal standing stay in order."""
        kept_back = self.kept_back()
        lines: tuple[list[Job], ...] = ([], [], [])
        for job in contending:
            standing = CHOSEN if job.job in chosen else SHUT_OUT if kept_back.why(job) else IN_TURN
            lines[standing].append(job)
        return [*lines[CHOSEN], *lines[IN_TURN], *lines[SHUT_OUT]]

    def kept_back(self) -> KeptBack:
        return KeptBack(self._tables, self._contest.cluster, self._contest.shares)


def _add(lines: dict[str, list[str]], job: Job) -> None:
    """Where there is still a place in its device's."""
    if job.held_on is not None and len(lines[job.held_on]) < LINE_TOLD_MAX:
        lines[job.held_on].append(job.job)


def _entries(bucket: Bucket) -> Iterator[list[Entry]]:
    for waiting in bucket.classes.values():
        yield waiting.entries
