"""Backfill by the pool's own decisions never makes the head of the queue wait longer, and conservative
backfill starts no job later than promised."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_lab.jobs.decision import POLICIES
from djinn_lab.jobs.request import ComputeNode, Demand
from djinn_lab.simulator.queue import QueueSettings, TraceJob
from djinn_lab.simulator.queue.simulation import PoolSimulation

NODES = (ComputeNode("a", devices=4, labels=frozenset({"x"})), ComputeNode("b", devices=4))
COUNTS = st.integers(1, 8).map(lambda members: Demand(members=members, members_min=members))
MIXED = st.one_of(
    COUNTS,
    st.integers(1, 8).map(lambda members: Demand(members=members, members_min=members, together="packed")),
    st.sampled_from([Demand(device_milli=500), Demand(selector=frozenset({"x"}))]),
)


def jobs_of(
    demands: st.SearchStrategy[Demand], error: st.SearchStrategy[int]
) -> st.SearchStrategy[list[TraceJob]]:
    """Draw jobs. ``error``: by how many seconds a job runs longer than its estimate."""
    row = st.tuples(st.integers(0, 20), st.integers(1, 15), demands, error)
    return st.lists(row, min_size=1, max_size=15).map(
        lambda rows: [
            TraceJob(str(number), float(submit), float(max(1, says + more)), demand, "all", float(says))
            for number, (submit, says, demand, more) in enumerate(sorted(rows, key=lambda one: one[0]))
        ]
    )


def first_and_later_promises(
    jobs: list[TraceJob], nodes: tuple[ComputeNode, ...]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return each job's first promised start, and the latest start that it was promised or had."""
    simulation = PoolSimulation(jobs, nodes, POLICIES["conservative"], QueueSettings())
    first: dict[str, float] = {}
    latest: dict[str, float] = {}
    while simulation.step():
        cluster = simulation.cluster
        starts_s = {job: promise.start_s for job, promise in cluster.promises.items()}
        starts_s |= {job: holding.started_s for job, holding in cluster.holdings.items()}
        for job, start_s in starts_s.items():
            first.setdefault(job, start_s)
            latest[job] = max(latest.get(job, 0.0), start_s)
    assert len(simulation.records) == len(jobs)
    return first, latest


@settings(max_examples=100, deadline=None)
@given(jobs_of(COUNTS, st.integers(-14, 0)))
def test_no_start_becomes_later_on_devices_that_are_counted(jobs: list[TraceJob]) -> None:
    first, latest = first_and_later_promises(jobs, (ComputeNode("all", devices=8),))
    assert first == latest


@settings(max_examples=100, deadline=None)
@given(jobs_of(MIXED, st.integers(-14, 0)))
def test_nor_on_nodes_with_shares_labels_and_packing(jobs: list[TraceJob]) -> None:
    first, latest = first_and_later_promises(jobs, NODES)
    assert first == latest


@settings(max_examples=100, deadline=None)
@given(jobs_of(MIXED, st.integers(-5, 10)))
def test_all_still_end_when_jobs_run_longer_than_they_say(jobs: list[TraceJob]) -> None:
    first, latest = first_and_later_promises(jobs, NODES)
    assert first.keys() == latest.keys() == {job.job for job in jobs}


def late_heads(
    jobs: list[TraceJob], nodes: tuple[ComputeNode, ...], policy: str
) -> dict[str, tuple[float, float]]:
    """Return jobs that started later than promised when they were the head of the queue, with both times."""
    simulation = PoolSimulation(jobs, nodes, POLICIES[policy], QueueSettings())
    promised: dict[str, float] = {}
    started: dict[str, float] = {}
    while simulation.step():
        cluster, plan = simulation.cluster, simulation.plan
        started |= {job: holding.started_s for job, holding in cluster.holdings.items()}
        starts_s = {made.job: made.start_s for made in plan.reservations}
        head = next(iter(sorted(cluster.waiting, key=int)), None)
        if head is not None and head in starts_s:
            promised.setdefault(head, starts_s[head])
    assert len(simulation.records) == len(jobs)
    return {job: (promised[job], started[job]) for job in promised if started[job] > promised[job]}


@settings(max_examples=100, deadline=None)
@given(jobs_of(COUNTS, st.integers(-14, 0)), st.sampled_from(["easy", "conservative"]))
def test_backfill_on_counted_devices_never_delays_the_head(jobs: list[TraceJob], policy: str) -> None:
    assert late_heads(jobs, (ComputeNode("all", devices=8),), policy) == {}


@settings(max_examples=100, deadline=None)
@given(jobs_of(MIXED, st.integers(-14, 0)), st.sampled_from(["easy", "conservative"]))
def test_nor_on_nodes_with_shares_labels_and_packing_the_head(jobs: list[TraceJob], policy: str) -> None:
    assert late_heads(jobs, NODES, policy) == {}


def test_the_head_is_promised_something() -> None:
    """A load like those above has a reservation and a backfilled start: the tests above are not empty."""
    gang = Demand(members=8, members_min=8)
    jobs = [TraceJob("0", 0.0, 10.0, gang, "all", 10.0), TraceJob("1", 1.0, 5.0, gang, "all", 5.0)]
    jobs.append(TraceJob("2", 2.0, 5.0, Demand(), "all", 5.0))
    simulation = PoolSimulation(jobs, (ComputeNode("all", devices=9),), POLICIES["easy"], QueueSettings())
    simulation.step()
    simulation.step()
    simulation.step()
    assert [(made.job, made.start_s) for made in simulation.plan.reservations] == [("1", 10.0)]
    assert [start.job for start in simulation.plan.starts] == ["2"]
