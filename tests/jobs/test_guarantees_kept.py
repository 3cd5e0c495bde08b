"""The devices that accounts hold of their guarantees are counted from event to event: equal to a full count,
with the decisions of a pool that counts anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from driven_pool import device_nodes, request
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from djinn_lab.jobs.decision import (
    POLICIES,
    Cluster,
    DecisionSnapshot,
    DecisionTrace,
    Guarantees,
    decide,
    enact,
    end,
    park,
)
from djinn_lab.jobs.fairness import Capacity, Limits, ShareTree
from djinn_lab.jobs.request import Demand

ACCOUNTS = ("org/red/ann", "org/red/bob", "org/blue/carl", "dora")
GUARANTEED = ("org", "org/red", *ACCOUNTS)
DEVICES = 4
_One = TypeVar("_One")


class Program:
    """A full pool under random events, with victims that are slow to stop."""

    def __init__(self, policy: str, guarantees: Sequence[float]) -> None:
        self.policy = replace(POLICIES[policy], min_runtime_s=0.0, preempt_depth=1)
        self.cluster, self.shares = Cluster(device_nodes(DEVICES)), ShareTree()
        self.shares.set_capacity(Capacity(devices=DEVICES))
        self.now_s = 0.0
        self.numbers = 0
        for account, devices in zip(GUARANTEED, guarantees, strict=True):
            self.shares.set_limits(account, Limits(devices_guaranteed=devices))
        for number in range(DEVICES):
            self.submit(7 * number + 3 * (number % 2), 20 * number)
        self.settle()

    def submit(self, which: int, size: int) -> None:
        self.numbers += 1
        demand = Demand(members=1 + size % 3, members_min=1)
        account, rank = ACCOUNTS[which % 4], (2, 2, 2, 2, 3, 4, 1)[which % 7]
        seconds = 1.0 + 10.0 * size
        self.cluster.submit(
            request(
                f"job{self.numbers}",
                self.numbers,
                account=account,
                rank=rank,
                at_s=self.now_s,
                seconds=seconds,
                demand=demand,
            ),
            self.now_s,
        )

    def finish(self, which: int, _: int) -> None:
        """End a running job, whether it is being preempted or not."""
        for job in chosen(self.cluster.holdings, which):
            end(self.cluster, self.shares, job, self.now_s)

    def leave(self, which: int, size: int) -> None:
        for job in chosen(self.cluster.preempted_for, which):
            park(self.cluster, self.shares, job, self.now_s, 1.0 + size)

    def withdraw(self, which: int, _: int) -> None:
        """Withdraw a pending job, one with a reservation first."""
        for job in chosen(self.cluster.reserved or self.cluster.waiting, which):
            self.cluster.withdraw(job)

    def unreserve(self, which: int, _: int) -> None:
        for job in chosen(self.cluster.reserved, which):
            self.cluster.unreserve(job)

    def change(self, which: int, size: int) -> None:
        for job in chosen(self.cluster.reserved or self.cluster.waiting, which):
            self.cluster.change(replace(self.cluster.waiting[job], rank=size % 5), self.now_s)

    def shrink(self, which: int, _: int) -> None:
        gangs = [job for job, holding in self.cluster.holdings.items() if len(holding.where) > 1]
        for job in chosen(gangs, which):
            self.cluster.shrink(job, self.cluster.holdings[job].where[1:])

    def guarantee(self, which: int, size: int) -> None:
        devices = (None, 0.0, 0.5, 1.0, 2.0, 3.0)[size % 6]
        self.shares.set_limits(GUARANTEED[which % 6], Limits(devices_guaranteed=devices))

    def limit(self, which: int, size: int) -> None:
        self.shares.set_limits(("", *GUARANTEED)[which % 7], Limits(devices_max=float(1 + size % 4)))

    def lose_node(self, which: int, _: int) -> None:
        for name in chosen(self.cluster.nodes, which):
            for job in list(self.cluster.on_node[name]):
                end(self.cluster, self.shares, job, self.now_s)
            node = self.cluster.nodes[name]
            self.cluster.remove_node(name)
            self.cluster.set_node(node)

    def wait(self, which: int, size: int) -> None:
        self.now_s += which * size

    def settle(self) -> None:
        for _ in range(50):
            self.compare()
            snapshot = DecisionSnapshot.taken(self.cluster, self.shares, self.policy, self.now_s)
            plan = decide(self.cluster, self.shares, self.policy, self.now_s)
            assert plan == snapshot.decide()
            traced = decide(self.cluster, self.shares, self.policy, self.now_s, DecisionTrace())
            assert (plan.starts, plan.preemptions) == (traced.starts, traced.preemptions), "all are looked at"
            self.compare()
            if not plan:
                return
            for made in plan.preemptions:
                event(f"preemption by {made.causes[0]}")
            enact(self.cluster, self.shares, plan)
        raise AssertionError("decisions at one moment do not come to an end")

    def compare(self) -> None:
        kept, anew = Guarantees.tracked(self.cluster, self.shares), Guarantees(self.cluster, self.shares)
        for account in GUARANTEED:
            line = self.shares.lineage(account)
            assert [kept.held(one) for one in line] == [anew.held(one) for one in line]
            assert (
                kept.is_below(account)
                == anew.is_below(account)
                == any(anew.remaining_milli(one) > 0 for one in line)
            )
        assert kept.unmet == anew.unmet


def chosen(among: Iterable[_One], which: int) -> list[_One]:
    """Choose one item, if there is any."""
    there = list(among)
    return [there[which % len(there)]] if there else []


STEPS = ("submit",) * 5 + ("leave",) * 3 + ("finish", "finish", "wait", "guarantee", "limit")
SELDOM = ("withdraw", "unreserve", "change", "shrink", "lose_node")
PROGRAMS = st.lists(
    st.tuples(st.sampled_from((*STEPS, *SELDOM)), st.integers(0, 41), st.integers(0, 11)),
    min_size=15,
    max_size=40,
)


@given(
    st.sampled_from(sorted(name for name, policy in POLICIES.items() if policy.preempts)),
    st.tuples(*[st.sampled_from([None, 0.0, 1.0, 2.0])] * len(GUARANTEED)),
    PROGRAMS,
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_incremental_guarantee_counts_equal_a_full_count(
    policy: str, guarantees: tuple[float, ...], steps: list[tuple[str, int, int]]
) -> None:
    program = Program(policy, guarantees)
    for kind, which, size in steps:
        getattr(program, kind)(which, size)
        program.settle()
