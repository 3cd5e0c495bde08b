"""Guarantees of a pool that has lost devices: said in words, met as far as devices go, and as before once the
devices are back."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from driven_pool import DrivenPool, device_nodes, request
from msgspec.structs import replace

from djinn_lab.jobs.decision import POLICIES, Outlook, sentence
from djinn_lab.jobs.fairness import Amounts, Capacity, Limits, ShareTree
from djinn_lab.jobs.request import devices_away

HOUR_S = 3600.0


def guaranteed(**devices: float) -> ShareTree:
    shares = ShareTree()
    shares.set_capacity(Capacity(devices=3))
    for account, number in devices.items():
        shares.set_limits(account, Limits(devices_guaranteed=number))
    return shares


def set_ready(pool: DrivenPool, node: str, *, ready: bool) -> None:
    pool.cluster.set_node(replace(pool.cluster.nodes[node], ready=ready))


def lose(pool: DrivenPool, node: str) -> None:
    """Lose a device; its job, computed again, is pending with all of its run time."""
    for holding in list(pool.cluster.holdings.values()):
        if (node, 1) in holding.where:
            job = holding.request.job
            ran_s = pool.now_s - pool.cluster.finish(job).started_s
            pool.shares.settle(job, Amounts(ran_s))
            pool.cluster.submit(holding.request, pool.now_s)
    set_ready(pool, node, ready=False)


def two_accounts(policy: str) -> DrivenPool:
    """Return a pool of three devices, all guaranteed: two to vision, one to speech; both want more."""
    pool = DrivenPool(device_nodes(3), POLICIES[policy], park_s=0.5)
    pool.shares.set_limits("vision", Limits(devices_guaranteed=2))
    pool.shares.set_limits("speech", Limits(devices_guaranteed=1))
    pool.policy = replace(pool.policy, min_runtime_s=1.0)
    for number in range(2000):
        account = ("vision", "speech")[number % 2]
        pool.arrive(request(f"{account}{number}", number, account=account, seconds=5.0))
    return pool


def device_s(pool: DrivenPool, since_s: float) -> dict[str, float]:
    """Sum the device-seconds of each account since then."""
    found: dict[str, float] = {}
    for job, where, begin_s, end_s in pool.intervals:
        account = job.rstrip("0123456789")
        found[account] = found.get(account, 0.0) + len(where) * max(0.0, end_s - max(begin_s, since_s))
    return found


def test_guarantees_beyond_the_devices_that_are_left_are_said_with_numbers() -> None:
    shares = guaranteed(vision=2, speech=1)
    assert not shares.short_of_devices(0)
    one_away = (
        "Accounts of the pool are guaranteed 3 devices together, and the pool has 3, of which 1 is cordoned "
        "or down: not all can have theirs at once."
    )
    assert shares.short_of_devices(1) == one_away
    assert "of which 2 are cordoned or down" in shares.short_of_devices(2)
    assert {one.overcommitted for one in shares.view(0.0, 1) if one.account} == {one_away}
    assert not any(one.overcommitted for one in shares.view(0.0))


def test_guarantees_that_the_devices_left_can_meet_are_not_reported() -> None:
    assert not guaranteed(vision=2).short_of_devices(1)
    assert not guaranteed().short_of_devices(3)
    assert guaranteed(vision=2).short_of_devices(2)


def test_guarantees_above_the_whole_pool_are_no_news_of_lost_devices() -> None:
    shares = guaranteed(vision=4)
    assert not shares.short_of_devices(0)
    assert "the pool has 3:" in next(one.overcommitted for one in shares.view(0.0) if one.account)


def test_cordoned_devices_and_those_that_are_down_are_away() -> None:
    up, cordoned, down = device_nodes(3)
    assert devices_away([up, replace(cordoned, cordoned=True), replace(down, ready=False)]) == 2


@pytest.mark.parametrize("policy", ["default", "srtf", "tiresias"])
def test_accounts_keep_their_share_of_the_devices_left_and_their_guarantee_once_all_are_back(
    policy: str,
) -> None:
    pool = two_accounts(policy)
    pool.run(until_s=100.0)
    lose(pool, "gpu:2")
    pool.run(until_s=400.0)
    short = device_s(pool, 110.0)
    assert sum(short.values()) == pytest.approx(2 * 290.0, rel=0.1), "both devices are in use"
    assert min(short.values()) > 0.3 * sum(short.values()), "and no account is left out"
    set_ready(pool, "gpu:2", ready=True)
    pool.run(until_s=700.0)
    held = Counter(holding.request.account for holding in pool.cluster.holdings.values())
    assert sum(held.values()) == 3
    assert min(held["vision"], held["speech"]) >= 1


def test_guarantee_counts_on_the_devices_left() -> None:
    """A flood of others still makes room for it."""
    pool = DrivenPool(device_nodes(3), POLICIES["default"], park_s=0.5)
    pool.shares.set_limits("vision", Limits(devices_guaranteed=3))
    for number in range(4):
        pool.arrive(request(f"flood{number}", number, account="flood", seconds=HOUR_S))
    pool.run(until_s=30.0)
    lose(pool, "gpu:1")
    for number in range(3):
        pool.arrive(request(f"vision{number}", 50 + number, account="vision", at_s=31.0, seconds=HOUR_S))
    pool.run(until_s=120.0)
    held = Counter(holding.request.account for holding in pool.cluster.holdings.values())
    assert held == {"vision": 2}
    set_ready(pool, "gpu:1", ready=True)
    pool.run(until_s=240.0)
    held = Counter(holding.request.account for holding in pool.cluster.holdings.values())
    assert held == {"vision": 3}


def test_gang_larger_than_the_devices_left_says_so_and_starts_once_they_are_back() -> None:
    pool = DrivenPool(device_nodes(3), POLICIES["default"])
    set_ready(pool, "gpu:2", ready=False)
    pool.arrive(request("gang", 0, members=3))
    pool.run(until_s=10.0)
    assert "gang" in pool.cluster.waiting
    found = Outlook(pool.cluster, pool.shares, pool.policy, pool.now_s, job="gang").explain("gang")
    assert "of 3 devices: 2 free, which are too few, 1 down" in sentence(found)
    assert not math.isfinite(found.expected_s or math.inf)
    set_ready(pool, "gpu:2", ready=True)
    pool.run(until_s=11.0)
    assert "gang" in pool.cluster.holdings
