"""In which order those who wait would be served as things are. No promise: a decision looks at room, limits
and reservations, too, and every start changes whose turn it is."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import groupby, islice

from djinn_lab.jobs.commands import LINE_TOLD_MAX
from djinn_lab.jobs.contest import Contest
from djinn_lab.jobs.decision.waiting import Bucket, Entry
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.states import IN_LINE
from djinn_lab.jobs.tables import Tables

LOOKED_AT_MAX = 256


class Lines:
    """The line of every device: those who contend from it in the order of decisions, then what stands behind
    them in their own sessions."""

    def __init__(self, tables: Tables, contest: Contest) -> None:
        self._tables = tables
        self._contest = contest

    def order(self) -> Iterator[Job]:
        """Everybody who contends for a device."""
        contest = self._contest
        index = contest.cluster.index(contest.policy, self._tables.now_s)
        turns = contest.shares.ranks() if contest.policy.by_fairness else {}
        for rank in sorted(index.ranks):
            buckets = sorted(index.ranks[rank].values(), key=lambda bucket: turns.get(bucket.account, 0))
            for _, equal in groupby(buckets, key=lambda bucket: turns.get(bucket.account, 0)):
                for _, name in heapq.merge(*(entries for bucket in equal for entries in _entries(bucket))):
                    yield self._tables.jobs[name]

    def of_device(self, device: str) -> list[Job]:
        """All of one device's line."""
        first = [job for job in self.order() if job.held_on == device]
        ahead = {job.job for job in first}
        behind = [job for job in self._tables.of_device(device) if job.job not in ahead]
        whole = [*first, *sorted(behind, key=lambda job: job.arrival)]
        return [job for job in whole if job.state in IN_LINE]

    def all(self) -> dict[str, list[Job]]:
        """The lines of all devices."""
        lines: dict[str, list[Job]] = {name: [] for name in self._tables.devices}
        contending = list(self.order())
        ahead = {job.job for job in contending}
        behind = (job for job in self._tables.in_state(*IN_LINE) if job.job not in ahead)
        for job in (*contending, *sorted(behind, key=lambda job: job.arrival)):
            if job.state in IN_LINE and job.held_on is not None:
                lines[job.held_on].append(job)
        return lines

    def next_of_each(self) -> dict[str, tuple[str, ...]]:
        """Of every device the first few whose turn is near, in line or waiting for memory."""
        found: dict[str, list[str]] = {name: [] for name in self._tables.devices}
        for job in islice(self.order(), LOOKED_AT_MAX):
            if job.held_on is not None and len(found[job.held_on]) < LINE_TOLD_MAX:
                found[job.held_on].append(job.job)
        return {name: tuple(jobs) for name, jobs in found.items()}


def _entries(bucket: Bucket) -> Iterator[list[Entry]]:
    for waiting in bucket.classes.values():
        yield waiting.entries
