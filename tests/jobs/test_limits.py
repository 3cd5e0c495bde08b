"""Limits of accounts during preemption, while capacity is reserved for the preemptor."""

from __future__ import annotations

import pytest
from driven_pool import device_nodes, request

from djinn_lab.jobs.decision import POLICIES, Cluster, Plan, Reason, decide, enact, end, explain, park
from djinn_lab.jobs.fairness import Limits, ShareTree
from djinn_lab.jobs.request import Demand, Request, members_in

DEFAULT = POLICIES["default"]
HOUR_S = 3600.0


class Pool:
    """All its devices run ``train0``, ``train1`` and so on, of so many members each. Victims stop when a test
    calls :meth:`leave`."""

    def __init__(self, devices: int, members: int = 1) -> None:
        self.cluster, self.shares = Cluster(device_nodes(devices)), ShareTree()
        for number in range(devices // members):
            train = request(f"train{number}", number, account="ann", seconds=HOUR_S, members=members)
            self.cluster.submit(train, 0.0)
        self.obey(0.0)

    def obey(self, at_s: float) -> Plan:
        plan = decide(self.cluster, self.shares, DEFAULT, at_s)
        enact(self.cluster, self.shares, plan)
        return plan

    def wants(self, one: Request, at_s: float) -> Plan:
        self.cluster.submit(one, at_s)
        return self.obey(at_s)

    def leave(self, at_s: float) -> None:
        for job in list(self.cluster.preempted_for):
            park(self.cluster, self.shares, job, at_s, HOUR_S)


def urgent(**more: object) -> Request:
    return request("urgent", 100, rank=0, account="bob", seconds=HOUR_S, **more)


@pytest.mark.parametrize("most", [0.0, 1.0])
def test_reservation_ends_when_the_account_limit_no_longer_allows_it(most: float) -> None:
    """Other jobs get the capacity, and the job waits like any other until the limit is raised."""
    pool = Pool(2)
    for number in range(2):
        pool.wants(request(f"urgent{number}", 100 + number, rank=0, account="bob", seconds=HOUR_S), 1.0)
    pool.shares.set_limits("bob", Limits(devices_max=most))
    pool.leave(2.0)
    while pool.obey(2.0):
        pass
    assert pool.cluster.devices_held.get("bob", 0.0) == most
    assert pool.cluster.devices_held["ann"] == 2 - most
    waits = explain(pool.cluster, pool.shares, DEFAULT, 2.0, "urgent1")
    assert waits.reason is (Reason.ACCOUNT_LIMIT if most else Reason.ABOVE_LIMIT)
    pool.shares.set_limits("bob", Limits())
    assert {made.by for made in pool.obey(3.0).preemptions} == {"urgent0", "urgent1"} - {
        *pool.cluster.holdings
    }


def test_reservation_lasts_until_the_victims_have_stopped() -> None:
    """The devices above the limit may be those of the victims."""
    pool = Pool(2)
    pool.shares.set_limits("ann", Limits(devices_max=3))
    pool.wants(request("short", 9, account="ann", rank=0, seconds=1.0), 1.0)
    pool.shares.set_limits("ann", Limits(devices_max=2))
    assert not pool.obey(2.0)
    pool.leave(3.0)
    assert [(start.job, start.on_reserved) for start in pool.obey(3.0).starts] == [("short", True)]


def test_reservation_counts_against_the_limit_until_the_victims_have_stopped() -> None:
    """Otherwise another job of the account would start meanwhile, above the account's limit."""
    pool = Pool(2)
    pool.shares.set_limits("bob", Limits(devices_max=1))
    pool.wants(urgent(), 1.0)
    [other] = set(pool.cluster.holdings) - set(pool.cluster.preempted_for)
    end(pool.cluster, pool.shares, other, 2.0)
    pool.wants(request("second", 101, account="bob"), 2.0)
    pool.leave(3.0)
    pool.obey(3.0)
    assert "urgent" in pool.cluster.holdings
    assert pool.cluster.devices_held["bob"] == 1


@pytest.mark.parametrize("limits", [Limits(devices_max=2), Limits(devices_soft=2)])
@pytest.mark.parametrize("limited", ["team", "team/bob"])
def test_gang_reserves_no_more_of_its_victims_than_its_limit_allows(limits: Limits, limited: str) -> None:
    """Even where the victim held more, since a gang is preempted as a whole."""
    pool = Pool(4, members=4)
    pool.shares.set_limits(limited, limits)
    gang = request("gang", 100, rank=0, account="team/bob", demand=Demand(members=4, members_min=2))
    [made] = pool.wants(gang, 1.0).preemptions
    assert (made.victims, members_in(made.where)) == (("train0",), 2)
