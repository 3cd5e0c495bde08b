"""Why a job waits: each sentence is checked by acting on it."""

from __future__ import annotations

import copy

import pytest
from driven_pool import DrivenPool, device_nodes, drawn_request, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_lab.jobs.decision import (
    POLICIES,
    CalendarReservation,
    Outlook,
    Reason,
    explain,
    sentence,
    what_if,
)
from djinn_lab.jobs.decision.explaining.forecast import Change, changed_request
from djinn_lab.jobs.fairness import Limits
from djinn_lab.jobs.request import ComputeNode, Demand, Request

DEFAULT = POLICIES["default"]


def explained(pool: DrivenPool, job: str) -> str:
    return sentence(explain(pool.cluster, pool.shares, pool.policy, pool.now_s, job))


def why(pool: DrivenPool, job: str) -> Reason:
    return explain(pool.cluster, pool.shares, pool.policy, pool.now_s, job, advise=False).reason


def busy_pool(nodes: int = 1) -> DrivenPool:
    """Every device is held by ``holder0``, ``holder1`` of ann for 100 s."""
    pool = DrivenPool(device_nodes(nodes), DEFAULT)
    for number in range(nodes):
        pool.arrive(request(f"holder{number}", number, seconds=100.0 + number))
    pool.run(until_s=0)
    return pool


def test_explain_next_job_names_the_holder_and_its_expected_end() -> None:
    pool = busy_pool()
    pool.arrive(request("mine", 9, seconds=90, account="bob", at_s=10))
    pool.run(until_s=10)
    assert explained(pool, "mine") == (
        "It is next, and waits for gpu:0, held by holder0 of ann (expected to end in 90 s). "
        "It is expected to start in 90 s, as number 1 of 1 waiting jobs. "
        "With `--priority HIGH` it would start now."
    )
    pool.run()
    assert pool.first_start_s["mine"] == 100.0


def test_explain_job_that_memory_defers_gives_that_reason_alone() -> None:
    pool = busy_pool()
    pool.arrive(request("mine", 9, seconds=90, account="bob", at_s=10))
    pool.run(until_s=10)
    found = explain(pool.cluster, pool.shares, pool.policy, pool.now_s, "mine")
    said = sentence(found, with_start=False, memory="it needs 2 MiB; others wait before it")
    assert said == "It needs 2 MiB; others wait before it."


def test_explain_names_a_holder_past_its_predicted_end() -> None:
    pool = DrivenPool(device_nodes(1), DEFAULT)
    pool.arrive(request("holder", 0, seconds=1.0), runs_s=100.0)
    pool.arrive(request("mine", 9, seconds=50.0, account="bob", rank=3))
    pool.run(until_s=0)
    found = explain(pool.cluster, pool.shares, pool.policy, 1.5, "mine")
    assert "gpu:0, held by holder of ann (runs longer than predicted)" in sentence(found)


def test_explain_names_a_holder_that_ends_in_a_moment() -> None:
    pool = DrivenPool(device_nodes(1), DEFAULT)
    pool.arrive(request("holder", 0, seconds=100.0))
    pool.arrive(request("mine", 9, seconds=50.0, account="bob", rank=3))
    pool.run(until_s=0)
    found = explain(pool.cluster, pool.shares, pool.policy, 99.9999, "mine")
    assert "held by holder of ann (expected to end in less than 1 ms)" in sentence(found)


def test_behind_others_counts_them_by_account() -> None:
    pool = busy_pool()
    for number in range(3):
        pool.arrive(request(f"early{number}", 10 + number, seconds=60, at_s=1, account="carl"))
    pool.arrive(request("mine", 20, seconds=70, at_s=1, account="carl"))
    pool.run(until_s=1)
    found = explain(pool.cluster, pool.shares, DEFAULT, 1.0, "mine", advise=False)
    assert found.reason is Reason.BEHIND
    assert [(one.account, one.jobs) for one in found.ahead] == [("carl", 3)]
    assert "3 jobs are expected to start before it (3 of carl)" in sentence(found)
    pool.run()
    assert list(pool.first_start_s).index("mine") == 1 + 3
    assert pool.first_start_s["mine"] == found.expected_s


def test_explain_gang_counts_missing_devices_and_names_their_holders() -> None:
    pool = busy_pool(2)
    pool.cluster.set_node(ComputeNode("gpu:2"))
    pool.arrive(request("wide", 9, seconds=90, account="bob", at_s=10, members=3))
    pool.run(until_s=10)
    assert explained(pool, "wide").startswith(
        "It is next, and waits for 2 of 3 devices at once; gpu:0 and gpu:1 are held by holder0 of ann "
        "(expected to end in 90 s) and holder1 of ann (expected to end in 91 s). "
    )
    assert "With `--gang 1` it would start now." in explained(pool, "wide")
    pool.run()
    assert pool.first_start_s["wide"] == 101.0


def test_a_gang_larger_than_the_pool_never_starts() -> None:
    pool = DrivenPool(device_nodes(2), DEFAULT)
    pool.arrive(request("wide", 0, members=3))
    pool.run()
    text = explained(pool, "wide")
    assert "It can never start: it needs 3 members at once, and the whole pool holds 2" in text
    assert "With `--gang 2` it would start now." in text
    pool.cluster.change(changed_request(pool.cluster.waiting["wide"], Change(members=2)), pool.now_s)
    pool.settle()
    assert "wide" in pool.cluster.holdings


def test_explain_labels_of_no_device_says_never() -> None:
    pool = DrivenPool(device_nodes(1), DEFAULT)
    pool.arrive(request("picky", 0, demand=Demand(selector=frozenset({"model=h200"}))))
    pool.run()
    assert "It can never start: no device has all the labels that it asks for." in explained(pool, "picky")
    assert "With `no --target` it would start now." in explained(pool, "picky")
    assert not pool.first_start_s


def test_cordoned_nodes() -> None:
    pool = DrivenPool([ComputeNode("gpu:0", cordoned=True)], DEFAULT)
    pool.arrive(request("mine", 0))
    pool.run()
    assert explained(pool, "mine").startswith(
        "Every device that could hold it is cordoned or down; of 1 device: 1 cordoned; an operator lets one"
        " serve again with: djinn-lab uncordon gpu:0. As things are, it does not"
    )
    pool.cluster.set_node(ComputeNode("gpu:0"))
    pool.settle()
    assert "mine" in pool.cluster.holdings


def test_cordoned_nodes_keep_all_of_several_jobs() -> None:
    pool = DrivenPool([ComputeNode("gpu:0", cordoned=True)], DEFAULT)
    for name in ("first", "second"):
        pool.arrive(request(name, len(name)))
    pool.run()
    for name in ("first", "second"):
        assert explained(pool, name).startswith("Every device that could hold it is cordoned or down")


def test_a_promised_job_is_no_obstacle_to_itself() -> None:
    """``short`` fits beside the running job, and would delay the start that was promised to ``wide``."""
    pool = DrivenPool(device_nodes(2), POLICIES["conservative"])
    pool.arrive(request("running", 0, seconds=10))
    pool.arrive(request("wide", 1, members=2, seconds=10, at_s=1))
    pool.arrive(request("long", 2, seconds=30, at_s=2))
    pool.run(until_s=2)
    text = explained(pool, "long")
    assert "wide of" in text
    assert "long of" not in text


def test_account_limits_by_devices() -> None:
    pool = DrivenPool(device_nodes(3), DEFAULT)
    pool.shares.set_limits("team", Limits(devices_max=2))
    for number in range(3):
        pool.arrive(request(f"job{number}", number, account="team/ann", seconds=30))
    pool.arrive(request("wide", 3, account="team/ann", members=3))
    pool.run(until_s=0)
    text = explained(pool, "job2")
    assert text.startswith("Account team holds 2 of its limit of 2 devices, and it wants 1.")
    assert "It is expected to start in 30 s" in text
    assert "it wants 3 devices, and account team may have 2 at once" in explained(pool, "wide")
    pool.run()
    assert pool.first_start_s["job2"] == 30.0
    assert "wide" in pool.cluster.waiting


def test_account_limits_by_usage_end_by_themselves() -> None:
    pool = DrivenPool(device_nodes(1), DEFAULT)
    pool.arrive(request("first", 0, seconds=100))
    pool.run()
    pool.shares.set_limits("ann", Limits(device_s_max=99.0))
    pool.arrive(request("second", 1, at_s=100.0))
    pool.run(until_s=100)
    found = explain(pool.cluster, pool.shares, DEFAULT, 100.0, "second", advise=False)
    assert found.reason is Reason.ACCOUNT_LIMIT
    assert found.limit is not None
    assert found.limit.until_s is not None
    assert found.expected_s == pytest.approx(found.limit.until_s)
    pool.run()
    assert pool.first_start_s["second"] == pytest.approx(found.limit.until_s)


def test_soft_limit_applies_while_other_accounts_wait_and_not_after() -> None:
    pool = DrivenPool(device_nodes(2), DEFAULT)
    pool.shares.set_limits("ann", Limits(devices_soft=1))
    pool.arrive(request("a", 0, account="ann", rank=1))
    pool.arrive(request("b", 1, account="ann", rank=1))
    pool.arrive(request("c", 2, account="bob"))
    pool.run(until_s=0)
    assert set(pool.cluster.holdings) == {"a", "c"}
    assert why(pool, "b") is Reason.SOFT_LIMIT
    pool.run()
    assert pool.first_start_s["b"] == 10.0


def test_a_reservation_is_named() -> None:
    pool = DrivenPool(device_nodes(2), POLICIES["easy"])
    pool.arrive(request("first", 0, seconds=10))
    pool.arrive(request("wide", 1, members=2))
    pool.arrive(request("long", 2, seconds=11, account="bob"))
    pool.run(until_s=0)
    text = explained(pool, "long")
    assert "wide of ann is to start in 10 s" in text
    pool.run()
    assert pool.first_start_s["wide"] == 10.0


def test_explain_job_waiting_for_its_home_device_names_the_holder() -> None:
    pool = DrivenPool(device_nodes(2), DEFAULT)
    pool.arrive(request("busy", 0, seconds=10, home="gpu:0"))
    pool.arrive(request("mine", 1, seconds=5, home="gpu:0", move_s=60, at_s=1))
    pool.run(until_s=1)
    assert explained(pool, "mine").startswith(
        "Its state lies where busy of ann (expected to end in 9 s) runs, and waiting there costs less"
    )
    pool.run()
    assert pool.first_start_s["mine"] == 10.0


def test_calendar_is_named() -> None:
    pool = DrivenPool(device_nodes(1), DEFAULT)
    pool.cluster.set_calendar(CalendarReservation("demo", frozenset({"gpu:0"}), 5.0, 50.0))
    pool.cluster.set_calendar(CalendarReservation("over", frozenset({"gpu:0"}), -9.0, -5.0))
    pool.cluster.set_calendar(
        CalendarReservation("course", frozenset({"gpu:0"}), 60.0, 90.0, frozenset({"vision"}))
    )
    pool.arrive(request("mine", 0, seconds=10))
    pool.run(until_s=0)
    assert why(pool, "mine") is Reason.CALENDAR
    assert (
        "reserved for other accounts before it would end: gpu:0 for no account (demo, begins in 5 s)."
        in explained(pool, "mine")
    )
    assert "It is expected to start in 50 s" in explained(pool, "mine")
    pool.run(until_s=6)
    assert "gpu:0 for no account (demo, ends in 44 s)." in explained(pool, "mine")
    pool.run()
    assert pool.first_start_s["mine"] == 50.0


def test_not_ready_and_a_scheduler_that_sleeps() -> None:
    pool = DrivenPool(device_nodes(1), DEFAULT)
    pool.cluster.submit(request("mine", 0, startable=False), 0.0)
    pool.settle()
    assert why(pool, "mine") is Reason.NOT_READY
    pool.cluster.decided_s = 0.0
    pool.cluster.change(request("mine", 0), 60.0)
    text = sentence(explain(pool.cluster, pool.shares, DEFAULT, 60.0, "mine"))
    assert text == "Nothing blocks it, but the scheduler has not decided anything for 60 s."


def test_explain_preemptor_names_its_victim() -> None:
    pool = busy_pool()
    pool.cluster.submit(request("urgent", 5, rank=0, account="bob"), 10.0)
    found = explain(pool.cluster, pool.shares, DEFAULT, 10.0, "urgent")
    assert found.reason is Reason.PREEMPTING
    assert sentence(found).startswith("Holder0 of ann (expected to end in 90 s) is being preempted for it.")


def test_explain_beyond_the_forecast_predicts_no_start() -> None:
    pool = busy_pool()
    for number in range(5):
        pool.arrive(request(f"other{number}", 10 + number, account="carl"))
    pool.arrive(request("mine", 30, account="carl"))
    pool.run(until_s=0)
    outlook = Outlook(pool.cluster, pool.shares, DEFAULT, 0.0, starts_max=3)
    text = sentence(outlook.explain("mine", advise=False))
    assert text.startswith("Other jobs start before it; of 1 device: 1 busy.")
    later_s = outlook.explain("mine", advise=False).later_than_s
    assert later_s is not None
    pool.run()
    assert pool.first_start_s["mine"] > later_s


def test_what_if_with_a_priority_above_the_limit() -> None:
    pool = busy_pool()
    pool.shares.set_limits("bob", Limits(rank_min=2))
    pool.cluster.submit(request("mine", 5, account="bob"), 1.0)
    found = what_if(pool.cluster, pool.shares, DEFAULT, 1.0, "mine", priority="HIGH")
    assert found.refused is not None
    assert found.refused.kind == "rank"
    assert found.sooner_s == 0
    with pytest.raises(ValueError, match="URGENT"):
        what_if(pool.cluster, pool.shares, DEFAULT, 1.0, "mine", priority="URGENT")


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["org/ann", "org/bob", "carl"]),
        st.integers(1, 4),
        st.integers(0, 30),
        st.integers(1, 40),
        st.integers(1, 3),
        st.sampled_from([None, "gpu:0", "gpu:2"]),
    ),
    min_size=1,
    max_size=14,
)


def some_pool(policy: str, drawn: list[tuple[str, int, int, int, int, str | None]]) -> DrivenPool:
    pool = DrivenPool(device_nodes(3), POLICIES[policy], park_s=0.25)
    for number, (*one, home) in enumerate(drawn):
        pool.arrive(
            drawn_request(
                number,
                *one,
                home=home,
                move_s=3.0 if home else 0.0,
            )
        )
    return pool


@given(REQUESTS, st.sampled_from(sorted(POLICIES)))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_expected_starts_come_true_when_estimates_do(
    drawn: list[tuple[str, int, int, int, int, str | None]], policy: str
) -> None:
    pool = some_pool(policy, drawn)
    pool.run(until_s=30)
    outlook = Outlook(pool.cluster, pool.shares, pool.policy, pool.now_s)
    found = {job: outlook.explain(job, advise=False) for job in pool.cluster.waiting}
    first_before = dict(pool.first_start_s)
    pool.run()
    for job, explanation in found.items():
        assert sentence(explanation).endswith(".")
        if job not in first_before:
            assert pool.first_start_s.get(job) == pytest.approx(explanation.expected_s)
            assert explanation.reason.never == (job not in pool.first_start_s)


@given(REQUESTS, st.sampled_from(["default", "easy", "fifo", "srtf"]))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_advice_is_right(drawn: list[tuple[str, int, int, int, int, str | None]], policy: str) -> None:
    pool = some_pool(policy, drawn)
    pool.run(until_s=30)
    for job in list(pool.cluster.waiting)[:2]:
        explanation = explain(pool.cluster, pool.shares, pool.policy, pool.now_s, job)
        for advice in explanation.would:
            tried = copy.deepcopy(pool)
            tried.first_start_s.pop(job, None)
            option, _, value = advice.option.partition(" ")
            change = Change(members=int(value)) if option == "--gang" else Change(priority=value)
            tried.cluster.change(changed(tried, job, change), tried.now_s)
            tried.settle()
            tried.run()
            assert tried.first_start_s[job] == pytest.approx(advice.start_s)
            assert explanation.expected_s is None or advice.start_s < explanation.expected_s


def changed(pool: DrivenPool, job: str, change: Change) -> Request:
    return changed_request(pool.cluster.waiting[job], change)
