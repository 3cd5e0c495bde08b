"""Guaranteed devices: which jobs are preempted for them, and that no two jobs preempt each other in turn."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from driven_pool import DrivenPool, device_nodes, drawn_request, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from djinn_lab.jobs.decision import (
    POLICIES,
    Cluster,
    Guarantees,
    Plan,
    QosClass,
    class_sentence,
    decide,
    enact,
)
from djinn_lab.jobs.fairness import Amounts, Capacity, Limits, ShareTree
from djinn_lab.jobs.request import Demand, Request

ONLY_RANK = replace(POLICIES["default"], preempts=("rank",))
PREEMPTING = sorted(name for name, policy in POLICIES.items() if policy.preempts)
SLOW = [HealthCheck.too_slow]
HOUR_S = 3600.0
SCAVENGER = 4


def flooded(devices: int, policy: str = "default", account: str = "flood", **guaranteed: float) -> DrivenPool:
    """Return a pool whose devices all run hour-long jobs of one account, with three more pending.
    ``guaranteed``: devices by account."""
    pool = DrivenPool(device_nodes(devices), POLICIES[policy], park_s=0.5)
    for name, number in guaranteed.items():
        guarantee(pool.shares, name.replace("_", "/"), number)
    for number in range(devices + 3):
        pool.arrive(request(f"{account}{number}", number, account=account, seconds=HOUR_S))
    return pool


def guarantee(shares: ShareTree, account: str, devices: float) -> None:
    shares.set_limits(account, Limits(devices_guaranteed=devices))


def preempted_accounts(pool: DrivenPool) -> list[tuple[float, str, str]]:
    """Each preemption: when, the victim's account, and the preemptor."""
    return [(at_s, victim.rstrip("0123456789"), by) for at_s, victim, by in pool.preemptions]


@pytest.mark.parametrize("policy", PREEMPTING)
def test_guaranteed_job_preempts_after_the_minimum_run_time_and_no_others_do(policy: str) -> None:
    """Two late jobs are worse by every other measure. The one within the guarantee gets a device once the
    victim has run for the minimum time; the other waits."""
    pool = flooded(2, policy, vision=1)
    pool.policy = replace(pool.policy, min_runtime_s=20.0)
    for number in (50, 51):
        late = request(f"late{number}", number, account="vision", at_s=5, seconds=10 * HOUR_S)
        pool.arrive(replace(late, attained_s=100 * HOUR_S))
    pool.run(until_s=60)
    assert preempted_accounts(pool) == [(20.0, "flood", "late50")]
    assert set(pool.cluster.devices_held.items()) >= {("vision", 1.0), ("flood", 1.0)}


def test_job_without_a_guarantee_waits() -> None:
    pool = flooded(2, "default", vision=0)
    pool.arrive(request("late", 50, account="vision", at_s=5, seconds=10 * HOUR_S))
    pool.run(until_s=20)
    assert not pool.preemptions


def test_job_within_its_guarantee_is_not_preempted_for_another() -> None:
    pool = flooded(2, flood=2, vision=1)
    pool.arrive(request("late", 50, account="vision", at_s=5, seconds=1.0))
    pool.run(until_s=500)
    assert not pool.preemptions, "neither for a guarantee, nor for fairness or shortness"
    guarantee(pool.shares, "flood", 1)
    pool.run(until_s=510)
    assert [by for _, _, by in pool.preemptions] == ["late"]


def test_guarantee_does_not_protect_from_a_better_rank_or_its_own_account() -> None:
    pool = flooded(1, flood=1)
    pool.arrive(request("urgent", 50, account="vision", rank=1, at_s=5, seconds=10.0))
    pool.arrive(request("short", 51, account="flood", at_s=100, seconds=1.0))
    pool.run(until_s=200)
    assert preempted_accounts(pool) == [(5.0, "flood", "urgent"), (100.0, "flood", "short")]


def test_guarantee_preempts_no_job_of_a_better_rank() -> None:
    pool = DrivenPool(device_nodes(1), POLICIES["default"])
    guarantee(pool.shares, "vision", 1)
    pool.arrive(request("high", 0, rank=1, seconds=HOUR_S))
    pool.arrive(request("late", 1, account="vision", at_s=5, seconds=1.0))
    pool.run(until_s=500)
    assert not pool.preemptions


def test_scavenger_neither_claims_nor_enjoys_a_guarantee() -> None:
    """A scavenger claims no guarantee, does not count against one, and is not protected by one."""
    pool = DrivenPool(device_nodes(2), ONLY_RANK)
    guarantee(pool.shares, "vision", 1)
    pool.arrive(request("flood0", 0, account="flood", rank=SCAVENGER, seconds=HOUR_S))
    pool.arrive(request("theirs0", 1, account="vision", rank=SCAVENGER, seconds=HOUR_S))
    pool.arrive(request("theirs1", 2, account="vision", rank=SCAVENGER, at_s=1, seconds=HOUR_S))
    pool.run(until_s=10)
    assert not pool.preemptions
    guarantee(pool.shares, "other", 1)
    pool.arrive(request("other0", 3, account="other", rank=SCAVENGER - 1, at_s=20, seconds=HOUR_S))
    pool.arrive(request("theirs2", 4, account="vision", rank=SCAVENGER - 1, at_s=30, seconds=HOUR_S))
    pool.run(until_s=40)
    assert [by for _, _, by in pool.preemptions] == ["other0", "theirs2"]


def test_guaranteed_job_preempted_by_rank_preempts_on_another_device_at_once() -> None:
    pool = DrivenPool(device_nodes(2), ONLY_RANK)
    guarantee(pool.shares, "vision", 1)
    pool.arrive(request("theirs", 0, account="vision", seconds=2 * HOUR_S))
    pool.arrive(request("flood", 1, account="flood", seconds=HOUR_S))
    pool.arrive(request("urgent", 2, account="other", rank=1, at_s=5, seconds=HOUR_S))
    pool.run(until_s=6)
    assert [(victim, by) for _, victim, by in pool.preemptions] == [("theirs", "urgent"), ("flood", "theirs")]


def test_guarantee_preempts_other_accounts_and_not_its_own() -> None:
    pool = DrivenPool(device_nodes(2), POLICIES["default"])
    guarantee(pool.shares, "vision", 2)
    pool.arrive(request("own", 0, account="vision", seconds=3 * HOUR_S))
    pool.arrive(request("flood", 1, account="flood", seconds=HOUR_S))
    pool.arrive(request("late", 2, account="vision", at_s=5, seconds=60.0))
    pool.run(until_s=6)
    assert [(victim, by) for _, victim, by in pool.preemptions] == [("flood", "late")]


def test_guarantees_count_where_two_accounts_meet() -> None:
    """An organisation's guarantee to its user does not bind other organisations."""
    for name, expected in (("vision/ann", []), ("vision", ["late"])):
        pool = DrivenPool(device_nodes(1), ONLY_RANK)
        guarantee(pool.shares, name, 1)
        pool.arrive(request("flood", 0, account="speech/carl", seconds=HOUR_S))
        pool.arrive(request("late", 1, account="vision/ann", at_s=5, seconds=HOUR_S))
        pool.run(until_s=10)
        assert [by for _, _, by in pool.preemptions] == expected
    pool = DrivenPool(device_nodes(1), ONLY_RANK)
    guarantee(pool.shares, "vision/ann", 1)
    pool.arrive(request("flood", 0, account="vision/bob", seconds=HOUR_S))
    pool.arrive(request("late", 1, account="vision/ann", at_s=5, seconds=HOUR_S))
    pool.run(until_s=10)
    assert [by for _, _, by in pool.preemptions] == ["late"]


@pytest.mark.parametrize("flood_gang", [1, 4])
def test_a_gang_gets_what_its_guarantee_covers(flood_gang: int) -> None:
    """Even where more devices become free, since a victim gang is preempted as a whole."""
    pool = DrivenPool(device_nodes(4), ONLY_RANK)
    guarantee(pool.shares, "vision", 3)
    for number in range(4 // flood_gang):
        pool.arrive(request(f"flood{number}", number, account="flood", members=flood_gang, seconds=HOUR_S))
    gang = Demand(members=4, members_min=2)
    pool.arrive(request("gang", 50, account="vision", at_s=5, seconds=HOUR_S, demand=gang))
    pool.arrive(request("wide", 51, account="vision", at_s=6, seconds=HOUR_S, members=2))
    pool.run(until_s=60)
    assert pool.cluster.devices_held["vision"] == (2 if flood_gang == 1 else 3)
    assert {by for _, _, by in pool.preemptions} == {"gang"}


@pytest.mark.parametrize(("its_own", "moved"), [(0, 1), (1, 0)])
def test_gang_is_not_preempted_when_its_account_would_fall_below_its_guarantee(
    its_own: int, moved: int
) -> None:
    pool = DrivenPool(device_nodes(4), POLICIES["default"])
    guarantee(pool.shares, "flood", its_own)
    guarantee(pool.shares, "vision", 1)
    pool.arrive(request("flood", 0, account="flood", members=4, seconds=HOUR_S))
    pool.arrive(request("late", 1, account="vision", at_s=5, seconds=10.0))
    pool.run(until_s=14)
    assert len(pool.preemptions) == moved


def test_job_does_not_preempt_a_gang_within_its_own_guaranteed_account() -> None:
    """The gang would give up four devices for a cell that needs one, and others would get three."""
    pool = DrivenPool(device_nodes(4), POLICIES["default"])
    guarantee(pool.shares, "flood", 4)
    pool.arrive(request("gang", 0, account="flood", members=4, seconds=HOUR_S))
    pool.arrive(request("short", 1, account="flood", at_s=5, seconds=1.0))
    pool.run(until_s=60)
    assert not pool.preemptions
    guarantee(pool.shares, "flood", 1)
    pool.run(until_s=60)
    assert [by for _, _, by in pool.preemptions] == ["short"]


def test_reservations_count_against_a_guarantee_before_their_jobs_run() -> None:
    """While a victim of the first job still stops, the second job asks for no other device."""
    cluster, shares, policy = Cluster(device_nodes(2)), ShareTree(), ONLY_RANK
    guarantee(shares, "vision", 1)
    for number in range(2):
        cluster.submit(request(f"flood{number}", number, account="flood", seconds=HOUR_S), 0.0)
    enact(cluster, shares, decide(cluster, shares, policy, 0.0))
    cluster.submit(request("first", 2, account="vision", at_s=1, seconds=HOUR_S), 1.0)
    plan = decide(cluster, shares, policy, 1.0)
    assert [(made.by, made.causes) for made in plan.preemptions] == [("first", ("guarantee",))]
    enact(cluster, shares, plan)
    cluster.submit(request("second", 3, account="vision", at_s=2, seconds=HOUR_S), 2.0)
    assert not decide(cluster, shares, policy, 2.0)


def test_guaranteed_job_starts_behind_many_that_cannot() -> None:
    """Far behind by fairness, too: its account used more than all of the others."""
    pool = flooded(2, vision=1)
    pool.shares.admit("before", "vision", 0.0, Amounts(1e6, 0.0, 0.0))
    for number in range(20):
        wide = Demand(members=1, selector=frozenset(), memory_mib=number)
        pool.arrive(request(f"wide{number}", 100 + number, account="flood", seconds=HOUR_S, demand=wide))
        pool.arrive(request(f"more{number}", 200 + number, account=f"other{number}", seconds=HOUR_S))
    pool.arrive(request("late", 50, account="vision", at_s=5, seconds=10 * HOUR_S))
    pool.run(until_s=6)
    assert "late" in pool.cluster.holdings


@pytest.mark.parametrize(
    ("account", "limits", "said"),
    [
        ("vision", Limits(devices_guaranteed=-1), "0 or more"),
        ("vision", Limits(devices_guaranteed=float("inf")), "0 or more"),
        ("vision", Limits(devices_max=1, devices_guaranteed=2), "2 devices for vision, whose limit is 1"),
        ("vision", Limits(devices_soft=1, devices_guaranteed=2), "soft limit is 1"),
        ("", Limits(devices_guaranteed=1), "whole pool"),
    ],
)
def test_what_cannot_be_guaranteed_is_refused(account: str, limits: Limits, said: str) -> None:
    shares = ShareTree()
    for change in (
        shares.set_limits,
        lambda name, one: shares.set_targets(name, weight=2, limits=one),
    ):
        with pytest.raises(ValueError, match=said):
            change(account, limits)
    assert shares.state().accounts == ShareTree().state().accounts


def warning_on(shares: ShareTree, account: str) -> str:
    return next(one.overcommitted for one in shares.view(0.0) if one.account == account)


def test_overcommitted_guarantees_are_reported_with_numbers_and_survive_reload() -> None:
    shares = ShareTree()
    shares.set_capacity(Capacity(devices=4))
    guarantee(shares, "vision", 3)
    guarantee(shares, "speech", 1)
    guarantee(shares, "vision/ann", 2)
    assert not any(one.overcommitted for one in shares.view(0.0))
    guarantee(shares, "vision/bob", 1.5)
    guarantee(shares, "speech", 2)
    shares = ShareTree(shares.state())
    assert warning_on(shares, "vision/bob") == (
        "Accounts below vision are guaranteed 3.5 devices together, and vision itself 3: "
        "not all can have theirs at once."
    )
    assert warning_on(shares, "speech") == (
        "Accounts of the pool are guaranteed 5 devices together, and the pool has 4: "
        "not all can have theirs at once."
    )
    assert (
        warning_on(shares, "vision") == f"{warning_on(shares, 'speech')} {warning_on(shares, 'vision/bob')}"
    )


def test_guarantee_above_a_parent_limit_is_reported_on_both_accounts() -> None:
    shares = ShareTree()
    guarantee(shares, "vision/ann", 3)
    guarantee(shares, "vision/train/bob", 2)
    assert not any(one.overcommitted for one in shares.view(0.0))
    shares.set_limits("vision", Limits(devices_max=2))
    ann = (
        "vision/ann is guaranteed 3 devices, and vision may have 2 at once: "
        "it can never have all of its guarantee."
    )
    assert warning_on(shares, "vision") == warning_on(shares, "vision/ann") == ann
    assert not warning_on(shares, "vision/train") + warning_on(shares, "vision/train/bob"), (
        "it has what it is guaranteed"
    )
    shares.set_limits("vision", Limits(devices_max=2, devices_soft=1))
    assert warning_on(shares, "vision/train/bob") == (
        "vision/train/bob is guaranteed 2 devices, and the soft limit of vision is 1: "
        "no job is preempted for more than that."
    )
    assert warning_on(shares, "vision") == (
        "vision/ann is guaranteed 3 devices, and the soft limit of vision is 1: "
        "no job is preempted for more than that. So it is with 1 more account below it."
    )
    shares.set_limits("vision", Limits())
    shares.set_limits("", Limits(devices_max=2.5))
    assert "and the pool may have 2.5 at once" in warning_on(shares, "vision/ann")


def test_job_is_classed_by_what_its_account_holds_of_its_guarantee() -> None:
    pool = flooded(2, vision=1)
    pool.arrive(request("late", 50, account="vision/ann", at_s=5, seconds=HOUR_S))
    pool.arrive(request("more", 51, account="vision/ann", at_s=5, seconds=HOUR_S))
    pool.arrive(request("spare", 52, account="vision/ann", at_s=5, rank=SCAVENGER, seconds=HOUR_S))
    pool.run(until_s=10)
    guarantees = Guarantees(pool.cluster, pool.shares)
    running, waiting = pool.cluster.holdings, pool.cluster.waiting
    assert [class_sentence(guarantees.qos_of(one)) for one in (running["late"].request, waiting["more"])] == [
        "Its class is GUARANTEED: with it, vision holds 1 device (1 guaranteed).",
        "Its class is BURSTABLE: with it, vision holds 2 devices (1 guaranteed).",
    ]
    assert guarantees.qos_of(waiting["spare"]).qos_class is QosClass.BEST_EFFORT
    assert guarantees.qos_of(waiting["flood3"]).qos_class is QosClass.BURSTABLE


# -- over random loads ---------------------------------------------------------------------------------------

ACCOUNTS = ("org/ann", "org/bob", "other/carl", "dora")
LOADS = st.lists(
    st.tuples(
        st.sampled_from(ACCOUNTS),
        st.integers(1, 4),
        st.integers(0, 100),
        st.integers(1, 150),
        st.integers(1, 4),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
)
Load = list[tuple[str, int, int, int, int, bool]]
GUARANTEES = st.dictionaries(
    st.sampled_from((*ACCOUNTS, "org", "other")), st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0]), min_size=1
)


def requests_of(load: Load) -> list[Request]:
    return [
        drawn_request(number, *drawn, demand=Demand(members=members, members_min=1 if elastic else members))
        for number, (*drawn, members, elastic) in enumerate(load)
    ]


def loaded(load: Load, policy: str, guarantees: dict[str, float], **changes: object) -> DrivenPool:
    pool = DrivenPool(device_nodes(4), replace(POLICIES[policy], **changes), park_s=0.5, quantum_s=10)
    for account, devices in guarantees.items():
        guarantee(pool.shares, account, devices)
    for one in requests_of(load):
        pool.arrive(one)
    return pool


@given(LOADS, st.sampled_from(PREEMPTING), GUARANTEES, st.sampled_from([0.0, 5.0]))
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
def test_all_jobs_finish_and_preemptions_form_no_cycle(
    load: Load, policy: str, guarantees: dict[str, float], min_runtime_s: float
) -> None:
    """At one moment no job is preempted for a job that was, directly or through others, preempted for it."""
    pool = loaded(load, policy, guarantees, min_runtime_s=min_runtime_s)
    pool.run(steps_max=5000)
    assert len(pool.ended_s) == len(load)
    for _, group in itertools.groupby(pool.preemptions, key=lambda made: made[0]):
        displaced: set[str] = set()
        for _, victim, by in group:
            assert by not in displaced
            displaced.add(victim)


@given(LOADS, st.sampled_from(PREEMPTING), GUARANTEES)
@settings(max_examples=80, deadline=None, suppress_health_check=SLOW)
def test_victim_does_not_preempt_its_preemptor(load: Load, policy: str, guarantees: dict[str, float]) -> None:
    """Also a moment later, when a victim may preempt again."""
    pool = loaded(load, policy, guarantees, min_runtime_s=0.0, age_step_s=None)
    pool.run(until_s=100)
    for holding in list(pool.cluster.holdings.values()):
        if pool.cluster.capacity.devices_free or pool.cluster.waiting:
            return
        taker = replace(holding.request, job="taker", number=10_000, account="dora", estimate_s=40.0)
        pool.cluster.submit(taker, pool.now_s)
        plan = decide(pool.cluster, pool.shares, pool.policy, pool.now_s)
        if not any(made.by == "taker" for made in plan.preemptions):
            pool.cluster.withdraw("taker")
            continue
        pool.runs_s["taker"] = 40.0
        pool.perform(plan)
        pool.settle()
        victims = {victim for _, victim, by in pool.preemptions if by == "taker"}
        pool.now_s += 1e-6
        again = decide(pool.cluster, pool.shares, pool.policy, pool.now_s)
        assert not any(made.by in victims and "taker" in made.victims for made in again.preemptions)
        return


@given(LOADS, st.sampled_from(PREEMPTING), st.dictionaries(st.sampled_from(ACCOUNTS), st.integers(0, 4)))
@settings(max_examples=80, deadline=None, suppress_health_check=SLOW)
def test_guarantees_are_met_where_they_can_be(load: Load, policy: str, guarantees: dict[str, int]) -> None:
    """With one rank, one level, no gangs and no more guaranteed than there is, no job waits within its
    account's guarantee."""
    flat = {account.replace("/", "-"): float(devices) for account, devices in guarantees.items()}
    if sum(flat.values()) > 4:
        return
    same = [(account.replace("/", "-"), 2, at_s, run_s, 1, True) for account, _, at_s, run_s, *_ in load]
    pool = loaded(same, policy, flat, min_runtime_s=0.0, age_step_s=None)
    for time_s in range(0, 300, 20):
        pool.run(until_s=float(time_s))
        held: dict[str, float] = defaultdict(float, pool.cluster.devices_held)
        for one in pool.cluster.waiting.values():
            if one.preempted_at_s is not None and one.preempted_at_s > time_s - 0.2:
                continue
            assert held[one.account] + one.demand.members_min > flat.get(one.account, 0.0), one


class WatchedPool(DrivenPool):
    """A pool that checks every plan before enacting it."""

    guaranteed: dict[str, float]

    def perform(self, plan: Plan) -> None:
        causes = {cause for made in plan.preemptions for cause in made.causes}
        if causes and "rank" not in causes:
            self.watch(plan, claimed="guarantee" in causes)
        super().perform(plan)

    def watch(self, plan: Plan, claimed: bool) -> None:
        """Assert that no account loses guaranteed devices, and that a guarantee's preemption gains some."""
        guarantees = Guarantees(self.cluster, self.shares)
        nodes = {path: self.shares.lineage(path)[-1] for path in (*ACCOUNTS, "org", "other")}
        before = {path: guarantees.held(node) for path, node in nodes.items()}
        for start in plan.starts:
            guarantees.add(self.cluster.waiting[start.job], 0 if start.on_reserved else start.members)
        for made in plan.preemptions:
            guarantees.add(self.cluster.waiting[made.by], sum(members for _, members in made.where))
            for victim in made.victims:
                guarantees.remove(self.cluster.holdings[victim])
        gained = 0.0
        for path, held in before.items():
            guaranteed, after = 1000 * self.guaranteed.get(path, 0.0), guarantees.held(nodes[path])
            assert after >= min(held, guaranteed)
            gained += min(after, guaranteed) - min(held, guaranteed)
        assert gained > 0 or not claimed


@given(LOADS, st.sampled_from(PREEMPTING), GUARANTEES)
@settings(max_examples=80, deadline=None, suppress_health_check=SLOW)
def test_preemption_except_by_rank_never_cuts_into_a_guarantee(
    load: Load, policy: str, guarantees: dict[str, float]
) -> None:
    """Hence no preemption is part of a cycle of any length while no job ends or arrives."""
    rules = replace(POLICIES[policy], min_runtime_s=0.0, age_step_s=None)
    pool = WatchedPool(device_nodes(4), rules, park_s=0.5, quantum_s=10)
    pool.guaranteed = guarantees
    for account, devices in guarantees.items():
        guarantee(pool.shares, account, devices)
    for one in requests_of(load):
        pool.arrive(one)
    pool.run(steps_max=5000)
    assert len(pool.ended_s) == len(load)
