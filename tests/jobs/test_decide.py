"""Decisions: order, backfill, promised starts."""

from __future__ import annotations

import pytest
from driven_pool import DrivenPool, device_nodes, request
from msgspec.structs import replace

from djinn_lab.jobs.decision import POLICIES, CalendarReservation, Cluster, decide
from djinn_lab.jobs.decision.explaining.verdicts import DecisionTrace
from djinn_lab.jobs.fairness import ShareTree
from djinn_lab.jobs.request import ComputeNode, Demand


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_runs_every_job(name: str) -> None:
    pool = DrivenPool([ComputeNode("a", 4), ComputeNode("b", 4)], POLICIES[name])
    for number in range(60):
        pool.arrive(
            request(
                f"job{number}",
                number,
                account=f"u{number % 3}",
                at_s=float(number),
                seconds=5.0 + 7 * number % 50,
                members=1 + number % 4,
            )
        )
    pool.run()
    assert len(pool.ended_s) == 60
    assert not pool.cluster.waiting
    assert not pool.cluster.holdings


def test_fifo_is_strict() -> None:
    pool = DrivenPool(device_nodes(2), POLICIES["fifo"])
    pool.arrive(request("first", 0, seconds=10))
    pool.arrive(request("wide", 1, members=2, seconds=10))
    pool.arrive(request("narrow", 2, seconds=1))
    pool.run()
    assert pool.first_start_s == {"first": 0.0, "wide": 10.0, "narrow": 20.0}


def test_easy_passes_only_what_does_not_delay() -> None:
    pool = DrivenPool(device_nodes(2), POLICIES["easy"])
    pool.arrive(request("first", 0, seconds=10))
    pool.arrive(request("wide", 1, members=2, seconds=10))
    pool.arrive(request("long", 2, seconds=11))
    pool.arrive(request("short", 3, seconds=10))
    pool.run()
    assert pool.first_start_s == {"first": 0.0, "wide": 10.0, "long": 20.0, "short": 0.0}


@pytest.mark.parametrize(("spread", "starts_s"), [(1.0, 0.0), (2.0, 0.0), (4.0, 20.0)])
def test_backfill_counts_on_the_conservative_end_of_an_estimate(spread: float, starts_s: float) -> None:
    """A hole of ten seconds before a reservation takes a job of five only if nine of ten such jobs fit."""
    pool = DrivenPool(device_nodes(2), POLICIES["easy"])
    pool.arrive(request("first", 0, seconds=10))
    pool.arrive(request("wide", 1, members=2, seconds=10))
    pool.arrive(request("unsure", 2, seconds=5, spread=spread))
    pool.run()
    assert pool.first_start_s == {"first": 0.0, "wide": 10.0, "unsure": starts_s}


def test_srtf_runs_the_shortest() -> None:
    pool = DrivenPool(device_nodes(1), POLICIES["srtf"])
    pool.arrive(request("long", 0, seconds=100))
    pool.arrive(request("short", 1, seconds=10, at_s=5))
    pool.run()
    assert pool.ended_s == {"short": 15.0, "long": 110.0}
    assert pool.preemptions == [(5.0, "long", "short")]


def test_ours_takes_turns_by_usage() -> None:
    pool = DrivenPool(device_nodes(1), POLICIES["default"])
    for number in range(10):
        pool.arrive(request(f"ann{number}", number, account="ann"))
        pool.arrive(request(f"bob{number}", 100 + number, account="bob"))
    pool.run(until_s=95)
    started = list(pool.first_start_s)
    assert {name[:3] for name in started[:2]} == {"ann", "bob"}
    assert abs(sum(name.startswith("ann") for name in started) - 5) <= 1


def test_critical_job_preempts_and_starts_on_the_freed_device() -> None:
    pool = DrivenPool(device_nodes(1), POLICIES["default"], park_s=0.5)
    pool.arrive(request("train", 0, seconds=100))
    pool.arrive(request("urgent", 1, rank=0, at_s=10, seconds=200, account="bob"))
    pool.run()
    assert pool.preemptions == [(10.0, "train", "urgent")]
    assert pool.ended_s == {"urgent": 210.0, "train": 300.5}


def test_minimum_run_time_is_kept_and_the_decision_wakes_at_its_end() -> None:
    pool = DrivenPool(device_nodes(1), POLICIES["default"])
    pool.shares.set_min_runtime("ann", 30.0)
    pool.arrive(request("train", 0, seconds=100))
    pool.arrive(request("urgent", 1, rank=0, at_s=10, account="bob"))
    pool.run()
    assert pool.preemptions == [(30.0, "train", "urgent")]


def test_decide_changes_nothing() -> None:
    cluster, shares = Cluster(device_nodes(2)), ShareTree()
    for number in range(5):
        cluster.submit(request(f"job{number}", number, account=f"u{number}"), 0.0)
    before = cluster.state(), shares.state()
    plan = decide(cluster, shares, POLICIES["default"], 0.0)
    assert len(plan.starts) == 2
    assert (cluster.state(), shares.state()) == before
    assert decide(cluster, shares, POLICIES["default"], 0.0) == plan


def test_job_waits_for_its_home_device_unless_moving_is_faster() -> None:
    for move_s, expected in ((20.0, "gpu:0"), (3.0, "gpu:0"), (2.0, "gpu:1")):
        pool = DrivenPool(device_nodes(2), POLICIES["default"])
        pool.arrive(request("busy", 0, seconds=10, home="gpu:0", move_s=1.0))
        pool.arrive(request("mine", 1, seconds=10, home="gpu:0", move_s=move_s))
        pool.run()
        where = {job: where[0][0] for job, where, _, _ in pool.intervals}
        assert where == {"busy": "gpu:0", "mine": expected}


def test_job_preempts_none_elsewhere_while_its_home_is_soon_free() -> None:
    pool = DrivenPool(device_nodes(2), POLICIES["default"])
    pool.arrive(request("long", 0, seconds=100, home="gpu:1", move_s=1.0))
    pool.arrive(request("brief", 1, seconds=1, home="gpu:0", move_s=1.0))
    pool.arrive(request("mine", 2, seconds=2, at_s=0.2, home="gpu:0", move_s=1.0))
    pool.run()
    assert pool.preemptions == []
    assert pool.first_start_s == {"long": 0.0, "brief": 0.0, "mine": 1.0}


def test_job_that_others_always_pass_at_home_does_not_wait_for_it_forever() -> None:
    """``long`` runs on the other device, and jobs that are shorter keep coming."""
    pool = DrivenPool(device_nodes(2), replace(POLICIES["default"], passing_stretch=None))
    pool.arrive(request("long", 0, seconds=100, home="gpu:1", move_s=1.0))
    for number in range(60):
        name = f"brief{number}"
        pool.arrive(request(name, 10 + number, seconds=1, at_s=0.9 * number, home="gpu:0", move_s=100.0))
    pool.arrive(request("mine", 1, seconds=2, at_s=0.2, home="gpu:0", move_s=1.0))
    pool.run()
    [(at_s, victim, preemptor)] = pool.preemptions
    assert (victim, preemptor) == ("long", "mine")
    assert 20 < at_s < 40


def test_idle_device_takes_a_job_whose_home_others_keep_busy() -> None:
    """After its patience of 4 s; the others come later, and are as long."""
    pool = DrivenPool(device_nodes(2), POLICIES["default"])
    for number in range(30):
        pool.arrive(request(f"job{number}", number, seconds=1, at_s=0.2 * number, home="gpu:0", move_s=1.0))
    pool.run()
    waits_s = [pool.first_start_s[f"job{number}"] - 0.2 * number for number in range(30)]
    assert max(waits_s) < 18  # 24 where none moves
    assert len([where for _, where, _, _ in pool.intervals if where == (("gpu:1", 1),)]) > 5


def test_job_takes_no_device_for_which_others_wait() -> None:
    """While its wait is less than six times its patience: a session moves for an idle device only."""
    pool = DrivenPool(device_nodes(2), POLICIES["default"])
    for number in range(16):
        home = f"gpu:{number % 2}"
        pool.arrive(request(f"job{number}", number, seconds=1, home=home, move_s=1.0))
    pool.run()
    assert {job: where for job, where, _, _ in pool.intervals} == {
        f"job{number}": ((f"gpu:{number % 2}", 1),) for number in range(16)
    }


def test_jobs_of_about_equal_length_start_in_the_order_of_arrival() -> None:
    pool = DrivenPool(device_nodes(1), POLICIES["default"])
    pool.arrive(request("first", 0, seconds=10))
    for number in range(1, 6):
        pool.arrive(request(f"next{number}", number, seconds=10 - 0.01 * number, at_s=0.5 * number))
    pool.arrive(request("short", 6, seconds=1, at_s=4))
    pool.run()
    starts = sorted(pool.first_start_s, key=lambda job: pool.first_start_s[job])
    assert starts[:2] == ["first", "short"]
    assert starts[2:] == [f"next{number}" for number in range(1, 6)]


def test_calendar_keeps_nodes_free() -> None:
    pool = DrivenPool(device_nodes(1), POLICIES["default"])
    pool.cluster.set_calendar(
        CalendarReservation("demo", frozenset({"gpu:0"}), 50.0, 80.0, frozenset({"vision"}))
    )
    pool.arrive(request("short", 0, seconds=50))
    pool.arrive(request("other", 1, seconds=50))
    pool.arrive(request("theirs", 2, seconds=10, at_s=50, account="vision/ann"))
    pool.run()
    assert pool.first_start_s == {"short": 0.0, "theirs": 50.0, "other": 80.0}


def test_impossible_job_blocks_no_other() -> None:
    pool = DrivenPool(device_nodes(2), POLICIES["fifo"])
    pool.arrive(request("huge", 0, members=3))
    pool.arrive(request("small", 1))
    pool.run()
    assert pool.first_start_s == {"small": 0.0}


def test_elastic_gang_starts_with_what_there_is() -> None:
    pool = DrivenPool(device_nodes(2), POLICIES["default"])
    pool.arrive(request("gang", 0, demand=Demand(members=4, members_min=2)))
    pool.run(until_s=1)
    assert sum(members for _, members in pool.cluster.holdings["gang"].where) == 2


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("home", [None, "a", "b", "c", "gone"])
@pytest.mark.parametrize("seconds", [None, 0.0, 5.0, 500.0])
def test_only_pending_job_gets_the_same_decision_by_the_short_way(
    name: str, home: str | None, seconds: float | None
) -> None:
    """A trace takes the whole way to a decision; without one the short way is taken where possible."""
    nodes = [
        ComputeNode("a"),
        ComputeNode("b", 2),
        ComputeNode("c", cordoned=True),
        ComputeNode("d", taints=frozenset({"others"})),
    ]
    for demand in (Demand(), Demand(nodes=frozenset({"b"})), Demand(nodes=frozenset({"c"})), Demand(2)):
        cluster, shares = Cluster(nodes), ShareTree()
        one = replace(request("one", 0), demand=demand, estimate_s=seconds, home=home, move_s=1.0)
        cluster.submit(one, 0.0)
        short, whole = (
            decide(cluster, shares, POLICIES[name], 7.0, trace) for trace in (None, DecisionTrace())
        )
        assert short == whole
        assert cluster.waiting.keys() == {"one"}
