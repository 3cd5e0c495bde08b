"""The result of each job of a run, in columns, and the figures of the whole run."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import msgspec

from djinn_lab.jobs.fairness import jain
from djinn_lab.simulator.queue.workload import TraceJob


class Records:
    """A million jobs are a few dozen megabytes. Rows run parallel and are in the order of ending.
    ``started_s``: for the first time."""

    def __init__(self) -> None:
        self.submitted_s = array("d")
        self.started_s = array("d")
        self.ended_s = array("d")
        self.run_s = array("d")
        self.devices = array("d")
        self.account = array("l")
        self.preempted = array("l")
        self.accounts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ended_s)

    def add(self, job: TraceJob, started_s: float, ended_s: float, preempted: int) -> None:
        self.submitted_s.append(job.submit_s)
        self.started_s.append(started_s)
        self.ended_s.append(ended_s)
        self.run_s.append(job.run_s)
        self.devices.append(job.demand.members * job.demand.device_milli / 1000)
        self.account.append(self.accounts.setdefault(job.account, len(self.accounts)))
        self.preempted.append(preempted)

    def extend(self, other: Records) -> None:
        for column in ("submitted_s", "started_s", "ended_s", "run_s", "devices", "preempted"):
            getattr(self, column).extend(getattr(other, column))
        numbers = [self.accounts.setdefault(name, len(self.accounts)) for name in other.accounts]
        self.account.extend(numbers[number] for number in other.account)


class QueueFigures(msgspec.Struct, frozen=True):
    """``wait``: time in the system beyond the undisturbed run time, wherever it went (queue, parking).
    ``start_wait``: from submission to the first start.
    ``jct``: from submission to completion. ``slowdown``: bounded, ``max(1, jct / max(run, bound))``
    (Feitelson and Rudolph, JSSPP 1998). ``delayed``: jobs that waited at all. ``utilisation``: device-seconds
    of work over what there was from the first submission to the last end. ``jain``: of how quickly each
    account's work went through, its run time over its time in the system (Jain, Chiu, Hawe 1984); None with
    one account. ``unfinished``: jobs that no node could ever hold."""

    policy: str
    trace: str
    jobs: int
    devices: int
    wait_mean_s: float
    wait_p50_s: float
    wait_p90_s: float
    wait_p99_s: float
    wait_max_s: float
    start_wait_mean_s: float
    start_wait_p99_s: float
    jct_mean_s: float
    jct_p99_s: float
    slowdown_mean: float
    slowdown_p99: float
    delayed: int
    utilisation: float
    jain: float | None
    accounts: int
    preemptions: int
    makespan_s: float
    decisions: int
    failures: int = 0
    unfinished: int = 0


class AccountFigures(msgspec.Struct, frozen=True):
    """Figures of one account. ``progress``: its run time over its time in the system."""

    account: str
    jobs: int
    device_s: float
    wait_mean_s: float
    jct_mean_s: float
    progress: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest rank of sorted values; 0 without any."""
    return ordered[max(1, math.ceil(share * len(ordered))) - 1] if ordered else 0.0


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 without values."""
    return math.fsum(values) / len(values) if values else 0.0


def figures_of(
    records: Records,
    *,
    policy: str,
    trace: str,
    devices: int,
    bound_s: float,
    decisions: int,
    failures: int = 0,
    unfinished: int = 0,
) -> QueueFigures:
    rows = range(len(records))
    jct = [records.ended_s[row] - records.submitted_s[row] for row in rows]
    waits = sorted(max(0.0, jct[row] - records.run_s[row]) for row in rows)
    start_waits = sorted(records.started_s[row] - records.submitted_s[row] for row in rows)
    slowdowns = sorted(max(1.0, jct[row] / max(records.run_s[row], bound_s)) for row in rows)
    worked = math.fsum(records.run_s[row] * records.devices[row] for row in rows)
    makespan_s = max(records.ended_s) - min(records.submitted_s) if rows else 0.0
    progress = [one.progress for one in accounts_of(records)]
    jct_mean_s = mean(jct)
    return QueueFigures(
        policy=policy,
        trace=trace,
        jobs=len(records),
        devices=devices,
        wait_mean_s=mean(waits),
        wait_p50_s=percentile(waits, 0.5),
        wait_p90_s=percentile(waits, 0.9),
        wait_p99_s=percentile(waits, 0.99),
        wait_max_s=max(waits, default=0.0),
        start_wait_mean_s=mean(start_waits),
        start_wait_p99_s=percentile(start_waits, 0.99),
        jct_mean_s=jct_mean_s,
        jct_p99_s=percentile(sorted(jct), 0.99),
        slowdown_mean=mean(slowdowns),
        slowdown_p99=percentile(slowdowns, 0.99),
        delayed=sum(wait > 1e-6 for wait in waits),
        utilisation=worked / (devices * makespan_s) if devices and makespan_s else 0.0,
        jain=jain(progress) if len(progress) > 1 else None,
        accounts=len(progress),
        preemptions=sum(records.preempted),
        makespan_s=makespan_s,
        decisions=decisions,
        failures=failures,
        unfinished=unfinished,
    )


def accounts_of(records: Records) -> list[AccountFigures]:
    """Return figures of all accounts, the most device-seconds first."""
    names = list(records.accounts)
    sums = [[0.0, 0.0, 0.0, 0.0] for _ in names]
    for row, number in enumerate(records.account):
        found = sums[number]
        found[0] += 1
        found[1] += records.run_s[row]
        found[2] += records.ended_s[row] - records.submitted_s[row]
        found[3] += records.run_s[row] * records.devices[row]
    found_accounts = [
        AccountFigures(
            name,
            int(jobs),
            device_s,
            (jct_s - run_s) / jobs,
            jct_s / jobs,
            run_s / jct_s if jct_s else 1.0,
        )
        for name, (jobs, run_s, jct_s, device_s) in zip(names, sums, strict=True)
    ]
    return sorted(found_accounts, key=lambda one: (-one.device_s, one.account))
