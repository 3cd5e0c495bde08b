"""Devices reserved for some accounts for a while, and jobs that still run there when that begins."""

from __future__ import annotations

import pytest
from driven_pool import DrivenPool, device_nodes, drawn_request, loads, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_lab.jobs.decision import POLICIES, CalendarReservation, Cluster, decide, enact, park
from djinn_lab.jobs.fairness import Capacity, ShareTree

BEGINS_S, ENDS_S = 50.0, 80.0
KEPT = frozenset({"gpu:0"})


def reserved(policy: str, devices: int = 1, park_s: float = 0.0) -> DrivenPool:
    pool = DrivenPool(device_nodes(devices), POLICIES[policy], park_s=park_s)
    pool.cluster.set_calendar(CalendarReservation("course", KEPT, BEGINS_S, ENDS_S, frozenset({"teaching"})))
    return pool


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_job_overrunning_into_a_reservation_is_preempted_and_resumes_after_it(policy: str) -> None:
    pool = reserved(policy)
    pool.arrive(request("late", 0, seconds=40, rank=0), runs_s=100)  # runs longer than was expected
    pool.arrive(request("lesson", 1, seconds=10, at_s=20, account="teaching/ann", rank=4))
    pool.run()
    assert pool.first_start_s == {"late": 0.0, "lesson": BEGINS_S}
    assert pool.preemptions == [(BEGINS_S, "late", "lesson")]
    assert pool.ended_s == {"lesson": 60.0, "late": ENDS_S + 50.0}


def test_unused_reservation_preempts_no_job() -> None:
    pool = reserved("default")
    pool.arrive(request("late", 0, seconds=40), runs_s=100)
    pool.arrive(request("another", 1, seconds=10, at_s=55, account="vision"))
    pool.run(until_s=ENDS_S - 1)
    assert pool.preemptions == []
    assert pool.first_start_s == {"late": 0.0}


def test_job_of_the_reserving_account_is_not_preempted_when_it_begins() -> None:
    pool = reserved("default")
    pool.arrive(request("lesson", 0, seconds=30, at_s=45, account="teaching/ann"))
    pool.arrive(request("next", 1, seconds=30, at_s=60, account="teaching/ann"))
    pool.run()
    assert pool.preemptions == []
    assert pool.first_start_s == {"lesson": 45.0, "next": 75.0}


def test_a_gang_that_overstays_leaves_as_a_whole() -> None:
    pool = reserved("default", devices=2)
    pool.arrive(request("gang", 0, members=2, seconds=40), runs_s=100)
    pool.arrive(request("lesson", 1, seconds=10, at_s=60, account="teaching/ann"))
    pool.run()
    assert pool.preemptions == [(60.0, "gang", "lesson")]
    assert pool.ended_s == {"lesson": 70.0, "gang": ENDS_S + 40.0}


def test_reservation_of_a_job_is_released_when_a_calendar_reservation_begins() -> None:
    cluster, shares, policy = Cluster(device_nodes(1)), ShareTree(), POLICIES["default"]
    shares.set_capacity(Capacity(devices=1))
    cluster.submit(request("long", 0, seconds=600, rank=3), 0.0)
    enact(cluster, shares, decide(cluster, shares, policy, 0.0))
    cluster.submit(request("urgent", 1, seconds=5, at_s=40, rank=0), 40.0)
    enact(cluster, shares, decide(cluster, shares, policy, 40.0))
    assert list(cluster.reserved) == ["urgent"]
    cluster.set_calendar(CalendarReservation("course", KEPT, BEGINS_S, ENDS_S, frozenset({"teaching"})))
    park(cluster, shares, "long", BEGINS_S, 560.0)
    plan = decide(cluster, shares, policy, BEGINS_S)
    assert (plan.released, plan.starts, plan.wake_at_s) == (("urgent",), (), ENDS_S)
    enact(cluster, shares, plan)
    cluster.submit(request("lesson", 2, at_s=BEGINS_S, account="teaching/ann", rank=4), BEGINS_S)
    [start] = decide(cluster, shares, policy, BEGINS_S).starts
    assert start.job == "lesson"


LOADS = loads(["teaching/ann", "org/bob", "org/carl"], at_s=120, seconds=80, members=2, size=16)


@given(LOADS, st.sampled_from(sorted(POLICIES)), st.sampled_from([1.0, 3.0]))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_all_jobs_end_and_each_is_preempted_for_the_reservation_at_most_once(
    load: list[tuple[str, int, int, int, int]], policy: str, longer: float
) -> None:
    """While the reservation lasts, no other account's job starts there, and no preempted job returns."""
    pool = reserved(policy, devices=2, park_s=0.5)
    for number, drawn in enumerate(load):
        pool.arrive(drawn_request(number, *drawn), runs_s=longer * drawn[3])
    theirs = {f"job{number}" for number, drawn in enumerate(load) if drawn[0] == "teaching/ann"}
    pool.run(steps_max=20_000)
    assert len(pool.ended_s) == len(load)
    began = {
        job
        for job, where, start_s, _ in pool.intervals
        if BEGINS_S <= start_s < ENDS_S and not KEPT.isdisjoint(node for node, _ in where)
    }
    assert began <= theirs
    left = [
        victim
        for plan in pool.plans
        for made in plan.preemptions
        for victim, cause in zip(made.victims, made.causes, strict=True)
        if cause == "reservation"
    ]
    assert len(left) == len(set(left))
    assert theirs.isdisjoint(left)
