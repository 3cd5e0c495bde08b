"""The simulated queue beside formulas of queueing theory, by hand, and beside itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from djinn_lab.jobs.decision import POLICIES
from djinn_lab.jobs.request import ComputeNode, Demand
from djinn_lab.simulator.queue import (
    Failures,
    Parking,
    QueueRun,
    QueueSettings,
    Trace,
    TraceJob,
    equal_nodes,
    simulate_queue,
)
from djinn_lab.simulator.traces.synthetic import Synthetic

FREE = Parking(((1, 0.0, 0.0),))
EXACT = QueueSettings(estimates="exact", parking=FREE)


def job(
    name: str, submit_s: float, run_s: float, devices: int = 1, account: str = "all", rank: int = 2
) -> TraceJob:
    demand = Demand(members=devices, members_min=devices)
    return TraceJob(name, submit_s, run_s, demand, account, run_s, rank=rank)


def run(jobs: Sequence[TraceJob], policy: str, devices: int = 1, **changes: object) -> QueueRun:
    trace = Trace("by hand", tuple(jobs), {"": (ComputeNode("node", devices=devices),)})
    return simulate_queue(trace, None, policy, replace(EXACT, **changes))


def ended(found: QueueRun) -> dict[float, float]:
    """Return when jobs ended, by their time of submission."""
    return {row.submitted_s: row.ended_s for row in found.jobs}


def waits_over_seeds(made: Synthetic, seeds: int = 5) -> tuple[float, float]:
    """Mean wait of the later two thirds, over seeds, and three standard errors."""
    means = []
    for seed in range(seeds):
        found = simulate_queue(
            replace(made, seed=seed).trace(), None, "fifo", replace(EXACT, keep_jobs=made.jobs)
        )
        rows = sorted(found.jobs, key=lambda row: row.submitted_s)[made.jobs // 3 :]
        means.append(math.fsum(row.started_s - row.submitted_s for row in rows) / len(rows))
    mean = math.fsum(means) / seeds
    error = math.sqrt(math.fsum((one - mean) ** 2 for one in means) / (seeds - 1) / seeds)
    return mean, 3 * error


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_m_d_1(load: float) -> None:
    """Pollaczek-Khinchine for constant service: W = load x s / (2 (1 - load))."""
    made = Synthetic(jobs=3_000, nodes=1, devices_per_node=1, load=load, run_s=10.0, run_times="constant")
    mean, within = waits_over_seeds(made)
    assert mean == pytest.approx(load * 10.0 / (2 * (1 - load)), abs=within)
    assert within < 0.4 * mean


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (4, 0.8)])
def test_m_m_c(servers: int, load: float) -> None:
    """Erlang C."""
    made = Synthetic(
        jobs=3_000, nodes=1, devices_per_node=servers, load=load, run_s=10.0, run_times="exponential"
    )
    offered = servers * load
    queued = offered**servers / math.factorial(servers) / (1 - load)
    waits = queued / (sum(offered**k / math.factorial(k) for k in range(servers)) + queued)
    mean, within = waits_over_seeds(made)
    assert mean == pytest.approx(waits * 10.0 / (servers * (1 - load)), abs=within)
    assert within < 0.4 * mean


@pytest.mark.parametrize("policy", ["fifo", "srtf", "default"])
def test_little_s_law(policy: str) -> None:
    """Jobs that wait on average = arrivals per second x mean wait; the one is integrated over time, the other
    summed over jobs."""
    made = Synthetic(jobs=2_000, devices_per_node=8, load=0.9, sizes=((1, 70), (4, 30)), users=5)
    found = simulate_queue(made.trace(), None, policy, EXACT)
    course = found.courses[""]
    width_s = course.times_s[1] - course.times_s[0]
    total_wait_s = found.figures.wait_mean_s * found.figures.jobs
    assert math.fsum(course.waiting) * width_s == pytest.approx(total_wait_s, rel=1e-6)
    worked = math.fsum(row.run_s * row.devices for row in found.jobs)
    assert math.fsum(course.devices_held) * width_s == pytest.approx(worked, rel=1e-6)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_finishes_everything_and_does_so_again(policy: str) -> None:
    made = Synthetic(
        jobs=250,
        nodes=4,
        devices_per_node=4,
        load=1.1,
        sizes=((1, 60), (2, 20), (8, 20)),
        users=4,
        estimate_sigma=0.7,
    )
    first, second = (simulate_queue(made.trace(), None, policy) for _ in range(2))
    assert first.figures.jobs == 250
    assert first.figures.unfinished == 0
    assert first == second
    assert all(row.ended_s - row.started_s >= row.run_s - 1e-6 for row in first.jobs)


def test_fifo_runs_jobs_in_order_of_arrival() -> None:
    found = run([job("a", 0, 10), job("b", 1, 5), job("c", 2, 1)], "fifo")
    assert ended(found) == {0: 10, 1: 15, 2: 16}
    assert found.figures.wait_mean_s == pytest.approx((0 + 9 + 13) / 3)
    assert found.figures.slowdown_mean == pytest.approx((1 + 14 / 10 + 14 / 10) / 3)
    assert found.figures.utilisation == pytest.approx(1.0)


def test_a_preempted_job_pays_for_parking_and_coming_back() -> None:
    jobs = [job("long", 0, 1000), job("short", 100, 10)]
    costs = Parking(((1, 3.0, 4.0),))
    found = run(jobs, "srtf", parking=costs)
    assert found.figures.preemptions == 1
    assert ended(found) == {100: 113, 0: 1017}
    assert ended(run(jobs, "srtf", parking=FREE)) == {100: 110, 0: 1010}


def test_a_preempted_gang_pays_by_its_size() -> None:
    jobs = [job("long", 0, 1000, devices=2), job("short", 100, 10, devices=2)]
    found = run(jobs, "srtf", devices=2, parking=Parking(((1, 0.0, 1.0), (8, 0.0, 30.0))))
    assert ended(found) == {100: 110, 0: 1040}


def test_nodes_that_fail_cost_what_was_computed_there() -> None:
    jobs = [job(str(number), 10.0 * number, 100.0) for number in range(60)]
    trace = Trace("failing", tuple(jobs), {"": equal_nodes(2, 4)})
    failures = Failures(every_s=500.0, repair_s=50.0)
    found = simulate_queue(trace, None, "fifo", replace(EXACT, failures=failures))
    calm = simulate_queue(trace, None, "fifo", EXACT)
    assert found.figures.failures > 0
    assert found.figures.jobs == 60
    assert found.figures.jct_mean_s > calm.figures.jct_mean_s
    assert asdict(found.figures) == asdict(
        simulate_queue(trace, None, "fifo", replace(EXACT, failures=failures)).figures
    )


def test_job_larger_than_every_node_is_counted_unfinished_and_others_run() -> None:
    found = run([job("huge", 0, 10, devices=9), job("small", 1, 10)], "fifo", devices=8)
    assert (found.figures.jobs, found.figures.unfinished) == (1, 1)


def test_pools_do_not_help_each_other() -> None:
    jobs = tuple(replace(job(str(number), 0, 10), pool=pool) for number, pool in enumerate("aab"))
    trace = Trace("two", jobs, {"a": equal_nodes(1, 1, "a"), "b": equal_nodes(1, 1, "b")})
    assert sorted(row.ended_s for row in simulate_queue(trace, None, "fifo", EXACT).jobs) == [10, 10, 20]
    together = simulate_queue(trace, equal_nodes(2, 1), "fifo", EXACT)
    assert sorted(row.ended_s for row in together.jobs) == [10, 10, 20]


def test_history_learns_from_what_has_ended() -> None:
    """The account's jobs always run ten seconds; after two of them the shorter one goes first."""
    short = [replace(job(f"s{number}", 0, 10, account="short"), estimate_s=None) for number in range(3)]
    long = replace(job("long", 1, 500, account="long"), estimate_s=350.0)
    again = replace(job("again", 25, 10, account="short"), estimate_s=400.0)
    found = run([*short, long, again], "sjf", estimates="history")
    assert ended(found)[25] < ended(found)[1]
    given_only = run([*short, long, again], "sjf", estimates="given")
    assert ended(given_only)[25] > ended(given_only)[1]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=25),
    st.sampled_from(sorted(POLICIES)),
)
def test_no_device_is_held_twice(rows: list[tuple[int, int, int]], policy: str) -> None:
    jobs = [
        job(str(number), float(submit), float(lasts), devices, account=f"u{number % 3}")
        for number, (submit, lasts, devices) in enumerate(sorted(rows))
    ]
    found = run(jobs, policy, devices=8, parking=Parking(((1, 1.0, 2.0),)))
    assert found.figures.jobs == len(jobs)
    assert max(found.courses[""].devices_held, default=0.0) <= 8.0
    assert found.figures.utilisation <= 1.0


@pytest.mark.parametrize(("guaranteed", "started_s"), [({}, 1000.0), ({"vision": 1.0}, 6.0)])
def test_guaranteed_devices_start_jobs_after_one_parking(
    guaranteed: dict[str, float], started_s: float
) -> None:
    """Parking takes a second. Without a guarantee the job waits for an end: this policy preempts by rank."""
    flood = [job(f"flood{number}", 0.0, 1000.0, account="speech/ann") for number in range(4)]
    late = [job(f"late{number}", 5.0, 2000.0, account="vision/bob") for number in range(2)]
    trace = Trace("flood", (*flood, *late), {"": equal_nodes(2, 1)})
    policy = replace(POLICIES["default"], preempts=("rank",), age_step_s=None)
    found = simulate_queue(trace, None, policy, QueueSettings(estimates="exact", guaranteed=guaranteed))
    assert min(row.started_s for row in found.jobs if row.submitted_s == 5) == started_s
    assert found.figures.preemptions == len(guaranteed)
