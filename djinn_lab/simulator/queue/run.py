"""Simulate a trace on nodes under a policy, and compute the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from djinn_lab.jobs.decision import POLICIES, QueuePolicy
from djinn_lab.jobs.request import ComputeNode
from djinn_lab.simulator.queue.figures import AccountFigures, QueueFigures, Records, accounts_of, figures_of
from djinn_lab.simulator.queue.history import History
from djinn_lab.simulator.queue.settings import QueueSettings
from djinn_lab.simulator.queue.simulation import PoolSimulation
from djinn_lab.simulator.queue.workload import Trace

DEFAULT_SETTINGS = QueueSettings()
Nodes = Iterable[ComputeNode] | Mapping[str, Iterable[ComputeNode]]


class JobRow(msgspec.Struct, frozen=True, array_like=True):
    """One job, for charts."""

    submitted_s: float
    started_s: float
    ended_s: float
    run_s: float
    devices: float
    account: str
    preempted: int


class Course(msgspec.Struct, frozen=True):
    """Means over equal intervals of the run: devices that were held, jobs that waited. ``times_s``: where
    intervals begin."""

    times_s: list[float]
    devices_held: list[float]
    waiting: list[float]


class QueueRun(msgspec.Struct, frozen=True):
    """The figures of one policy on one trace; ``courses``: by pool. ``jobs``: evenly chosen rows, in the
    order of ending."""

    figures: QueueFigures
    accounts: list[AccountFigures]
    courses: dict[str, Course]
    jobs: list[JobRow]


def simulate_queue(
    trace: Trace,
    nodes: Nodes | None = None,
    policy: QueuePolicy | str = "default",
    settings: QueueSettings = DEFAULT_SETTINGS,
) -> QueueRun:
    """Simulate the trace and return its figures; ``nodes``: by pool, or of one pool that takes all jobs;
    None: those of the trace. The same arguments give the same figures."""
    run, _ = simulate_with_records(trace, nodes, policy, settings)
    return run


def simulate_with_records(
    trace: Trace,
    nodes: Nodes | None = None,
    policy: QueuePolicy | str = "default",
    settings: QueueSettings = DEFAULT_SETTINGS,
) -> tuple[QueueRun, Records]:
    """Simulate as :func:`simulate_queue`, and also return the record of every job."""
    chosen = POLICIES[policy] if isinstance(policy, str) else policy
    pools = pools_of(trace, nodes)
    records = Records()
    courses: dict[str, Course] = {}
    devices = decisions = failures = unfinished = 0
    for pool, members in pools.items():
        jobs = trace.jobs if len(pools) == 1 else [job for job in trace.jobs if job.pool == pool]
        simulation = PoolSimulation(jobs, members, chosen, settings, trace.followers)
        simulation.run()
        records.extend(simulation.records)
        courses[pool] = _course(simulation.busy, simulation.queue)
        devices += simulation.devices
        decisions += simulation.decisions
        failures += simulation.failures
        unfinished += simulation.unplaceable + simulation.waiting
    figures = figures_of(
        records,
        policy=chosen.name,
        trace=trace.name,
        devices=devices,
        bound_s=settings.bound_s,
        decisions=decisions,
        failures=failures,
        unfinished=unfinished,
    )
    return QueueRun(figures, accounts_of(records), courses, _rows(records, settings.keep_jobs)), records


def pools_of(trace: Trace, nodes: Nodes | None) -> dict[str, list[ComputeNode]]:
    """Return the nodes by pool. Raises ValueError when their number is not given."""
    chosen = trace.nodes if nodes is None else nodes
    if not isinstance(chosen, Mapping):
        return {"": list(chosen)}
    if not chosen:
        raise ValueError(f"The trace {trace.name} names no nodes")
    return {pool: list(members) for pool, members in chosen.items()}


def _course(busy: History, queue: History) -> Course:
    return Course(busy.times_s, busy.means, queue.means)


def _rows(records: Records, keep: int) -> list[JobRow]:
    names = list(records.accounts)
    step = max(1, -(-len(records) // keep)) if keep else len(records) + 1
    return [
        JobRow(
            records.submitted_s[row],
            records.started_s[row],
            records.ended_s[row],
            records.run_s[row],
            records.devices[row],
            names[records.account[row]],
            records.preempted[row],
        )
        for row in range(0, len(records), step)
    ]
