"""What a shared queue guarantees its users, over random loads."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from driven_pool import DrivenPool, device_nodes, drawn_request, loads, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from djinn_lab.jobs.decision import POLICIES, Cluster, DecisionTrace, decide, enact
from djinn_lab.jobs.fairness import Limits, ShareTree, jain
from djinn_lab.jobs.request import ComputeNode

SLOW = [HealthCheck.too_slow]
PREEMPTING = sorted(name for name, policy in POLICIES.items() if policy.preempts)
LOADS = loads(["org/ann", "org/bob", "other/carl"], at_s=200, seconds=150, members=4, size=20)
Load = list[tuple[str, int, int, int, int]]


def loaded(load: Load, policy: str, park_s: float = 0.5, **changes: object) -> DrivenPool:
    pool = DrivenPool(device_nodes(4), replace(POLICIES[policy], **changes), park_s=park_s, quantum_s=10)
    for number, drawn in enumerate(load):
        pool.arrive(drawn_request(number, *drawn))
    return pool


def device_seconds(pool: DrivenPool, until_s: float) -> dict[str, float]:
    used: dict[str, float] = defaultdict(float)
    for job, where, start_s, end_s in pool.intervals:
        used[job.partition("-")[0]] += len(where) * (min(end_s, until_s) - min(start_s, until_s))
    return used


@given(LOADS, st.sampled_from(PREEMPTING), st.sampled_from([0.0, 5.0]))
@settings(max_examples=50, deadline=None, suppress_health_check=SLOW)
def test_all_jobs_finish_and_preemptions_form_no_cycle(load: Load, policy: str, min_runtime_s: float) -> None:
    """At one moment no job is preempted for a job that was, directly or through others, preempted for it."""
    pool = loaded(load, policy, min_runtime_s=min_runtime_s)
    pool.run(steps_max=5000)
    assert len(pool.ended_s) == len(load)
    for _, group in itertools.groupby(pool.preemptions, key=lambda made: made[0]):
        displaced: set[str] = set()
        for _, victim, by in group:
            assert by not in displaced
            displaced.add(victim)


@given(LOADS, st.sampled_from(PREEMPTING))
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_job_worse_by_every_key_preempts_no_job(load: Load, policy: str) -> None:
    """Such as a victim that is submitted again under another name."""
    pool = loaded(load, policy, min_runtime_s=0.0)
    pool.run(until_s=100)
    for holding in list(pool.cluster.holdings.values()):
        extra = replace(
            holding.request,
            job="late",
            number=10_000,
            rank=min(4, holding.request.rank + 1),
            estimate_s=500.0,
            account=holding.request.account,
        )
        pool.cluster.submit(extra, pool.now_s)
        found = decide(pool.cluster, pool.shares, pool.policy, pool.now_s)
        assert not any(
            made.by == "late" and holding.request.job in made.victims for made in found.preemptions
        )
        pool.cluster.withdraw("late")


@given(LOADS)
@settings(max_examples=50, deadline=None, suppress_health_check=SLOW)
def test_easy_never_delays_the_head_when_estimates_hold(load: Load) -> None:
    in_order = sorted((at_s, account, seconds, members) for account, _, at_s, seconds, members in load)
    pool = loaded(
        [(account, 2, at_s, seconds, members) for at_s, account, seconds, members in in_order], "easy"
    )
    promised: dict[str, float] = {}
    times = sorted({float(at_s) for _, _, at_s, _, _ in load} | {float(step) for step in range(0, 400, 20)})
    for time_s in times:
        pool.run(until_s=time_s)
        plan = decide(pool.cluster, pool.shares, pool.policy, pool.now_s, DecisionTrace())
        for reserved in plan.reservations[:1]:
            promised.setdefault(reserved.job, reserved.start_s)
    pool.run()
    for job, start_s in promised.items():
        assert pool.first_start_s[job] <= start_s + 1e-6


@given(LOADS, st.sampled_from(["fifo_passing", "srtf", "default", "fair_share_only"]))
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_no_device_idles_while_a_pending_job_fits(load: Load, policy: str) -> None:
    pool = loaded(load, policy, age_step_s=None)
    for time_s in range(0, 300, 30):
        pool.run(until_s=float(time_s))
        capacity = pool.cluster.capacity
        assert not any(capacity.place(one.demand) for one in pool.cluster.waiting.values())


@given(LOADS, st.sampled_from(sorted(POLICIES)), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_limits_hold_at_every_moment(load: Load, policy: str, org: int, ann: int) -> None:
    pool = loaded(load, policy)
    pool.shares.set_limits("org", Limits(devices_max=org))
    pool.shares.set_limits("org/ann", Limits(devices_max=ann))
    pool.run()
    owner = {f"job{number}": account for number, (account, *_) in enumerate(load)}
    moments = sorted({start_s for _, _, start_s, _ in pool.intervals})
    for moment_s in moments:
        held = defaultdict(int)
        for job, where, start_s, end_s in pool.intervals:
            if start_s <= moment_s < end_s:
                held[owner[job]] += sum(members for _, members in where)
                held[owner[job].partition("/")[0]] += sum(members for _, members in where)
        assert held["org"] <= org
        assert held["org/ann"] <= ann


def flood(pool: DrivenPool, user: str, account: str, jobs: int, seconds: float, at_s: float = 0.0) -> None:
    for number in range(jobs):
        unique = len(pool.runs_s)
        pool.arrive(request(f"{user}-{number}", unique, account=account, seconds=seconds, at_s=at_s))


def test_flooding_user_gets_no_more_than_one_share() -> None:
    pool = DrivenPool(device_nodes(2), POLICIES["default"], park_s=0.05)
    flood(pool, "ann", "ann", 2000, 1.0)
    flood(pool, "bob", "bob", 400, 2.0)
    flood(pool, "carl", "carl", 900, 0.5)
    pool.run(until_s=400)
    used = device_seconds(pool, 400)
    assert jain(used[user] for user in ("ann", "bob", "carl")) >= 0.95


@pytest.mark.parametrize("weight", [1.0, 2.0, 5.0])
def test_shares_converge_to_weights_and_follow_when_they_change(weight: float) -> None:
    pool = DrivenPool(device_nodes(3), POLICIES["default"])
    pool.shares.set_weight("ann", weight)
    flood(pool, "ann", "ann/x", 3000, 1.0)
    flood(pool, "bob", "bob/y", 3000, 1.0)
    pool.run(until_s=600)
    used = device_seconds(pool, 600)
    assert used["ann"] / used["bob"] == pytest.approx(weight, rel=0.05)
    pool.shares.set_weight("ann", 1.0)
    pool.shares.set_weight("bob", weight)
    pool.run(until_s=800)
    later = device_seconds(pool, 800)
    assert later["bob"] - used["bob"] >= later["ann"] - used["ann"]


def test_sharing_is_no_worse_than_a_private_part() -> None:
    """Sharing incentive: with a third of three devices each, ann alone on one device would need 100 s."""
    pool = DrivenPool(device_nodes(3), POLICIES["default"], park_s=0.01)
    flood(pool, "bob", "bob", 3000, 1.0)
    flood(pool, "carl", "carl", 3000, 1.0)
    flood(pool, "ann", "ann", 100, 1.0)
    pool.run(until_s=200)
    ann_done_s = max(end_s for job, end_s in pool.ended_s.items() if job.startswith("ann"))
    assert sum(job.startswith("ann") for job in pool.ended_s) == 100
    assert ann_done_s <= 105


def test_an_interactive_cell_waits_for_the_minimum_run_time_at_most() -> None:
    pool = DrivenPool(device_nodes(2), POLICIES["default"], park_s=0.02)
    flood(pool, "ann", "ann", 50, 100.0)
    for number in range(20):
        at_s = 5.0 + 7 * number
        pool.arrive(request(f"quick{number}", 1000 + number, account="bob", at_s=at_s, seconds=0.01))
    pool.run(until_s=200)
    waits = [pool.first_start_s[f"quick{number}"] - (5.0 + 7 * number) for number in range(20)]
    assert max(waits) <= 0.2


def test_preemptor_keeps_its_reservation_until_its_victims_stop() -> None:
    cluster, shares, policy = Cluster([ComputeNode("gpu:0")]), ShareTree(), POLICIES["default"]
    cluster.submit(request("train", 0), 0.0)
    enact(cluster, shares, decide(cluster, shares, policy, 0.0))
    cluster.submit(request("urgent", 1, rank=0, account="bob"), 1.0)
    plan = decide(cluster, shares, policy, 1.0)
    assert plan.preemptions[0].victims == ("train",)
    enact(cluster, shares, plan)
    cluster.submit(request("more urgent", 2, rank=0, account="carl", seconds=0.1), 1.5)
    assert not decide(cluster, shares, policy, 1.5)
    cluster.requeue_preempted("train", 2.0, 8.0)
    [start] = decide(cluster, shares, policy, 2.0).starts
    assert (start.job, start.on_reserved) == ("urgent", True)
