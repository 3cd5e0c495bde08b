"""Any order of events, with victims that are slow to stop: decisions keep their promises."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from djinn_lab.jobs.decision import (
    POLICIES,
    Cluster,
    DecisionSnapshot,
    Explanation,
    Plan,
    QueuePolicy,
    decide,
    enact,
    end,
    explain,
    park,
    sentence,
)
from djinn_lab.jobs.fairness import Capacity, Limits, ShareTree
from djinn_lab.jobs.request import ComputeNode, Demand, Holding, Request
from djinn_lab.srg.structure import GraphPhase

ACCOUNTS = ("org/red/ann", "org/red/bob", "org/blue/carl", "dora")
NODES = ("a", "b", "c")
HOSTS = {"a": {"host=one"}, "b": {"host=one"}, "c": {"host=two"}}
DEMANDS = st.builds(
    lambda members, least, together, milli: Demand(
        members=members, members_min=min(members, least), together=together, device_milli=milli
    ),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from(["anywhere", "one_node", "packed"]),
    st.sampled_from([1000, 1000, 1000, 500]),
)


def node(name: str, devices: int, cordoned: bool = False) -> ComputeNode:
    return ComputeNode(name, devices, labels=frozenset(HOSTS[name]), cordoned=cordoned)


class DecisionMachine(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(sorted(POLICIES)))
    def begin(self, policy: str) -> None:
        self.policy: QueuePolicy = POLICIES[policy]
        self.cluster = Cluster([node("a", 2), node("b", 4)])
        self.shares = ShareTree()
        self.shares.set_capacity(Capacity(devices=6))
        self.now_s = 0.0
        self.numbers = 0
        self.device_us = 0
        self.limits: dict[str, float] = {}

    # -- events ----------------------------------------------------------------------------------------------

    @rule(
        account=st.sampled_from(ACCOUNTS),
        rank=st.integers(0, 4),
        demand=DEMANDS,
        seconds=st.none() | st.floats(0.01, 1000),
        home=st.sampled_from([None, *NODES]),
        move_s=st.sampled_from([0.0, 0.5, 20.0]),
        other_host_s=st.sampled_from([0.0, 20.0]),
        startable=st.sampled_from([True, True, True, False]),
        deadline_s=st.none() | st.floats(0, 5000),
        phase=st.sampled_from(["", "prefill", "decode"]),
    )
    def submit(
        self,
        account: str,
        rank: int,
        demand: Demand,
        seconds: float | None,
        home: str | None,
        move_s: float,
        other_host_s: float,
        startable: bool,
        deadline_s: float | None,
        phase: GraphPhase,
    ) -> None:
        self.numbers += 1
        request = Request(
            job=f"job{self.numbers}",
            account=account,
            rank=rank,
            number=self.numbers,
            arrived_s=self.now_s,
            demand=demand,
            estimate_s=seconds,
            deadline_s=deadline_s,
            home=home,
            move_s=move_s,
            other_host_s=other_host_s,
            startable=startable,
            park_s=0.2,
            phase=phase,
        )
        self.cluster.submit(request, self.now_s)
        self.settle()

    @rule(pick=st.randoms(use_true_random=False))
    @precondition(lambda self: self.cluster.waiting)
    def withdraw(self, pick: st.DataObject) -> None:
        self.cluster.withdraw(pick.choice(sorted(self.cluster.waiting)))
        self.settle()

    @rule(pick=st.randoms(use_true_random=False))
    @precondition(lambda self: self.cluster.holdings)
    def finish(self, pick: st.DataObject) -> None:
        self.count(end(self.cluster, self.shares, self.running(pick), self.now_s))
        self.settle()

    @rule(pick=st.randoms(use_true_random=False), left_s=st.none() | st.floats(0.01, 100))
    @precondition(lambda self: self.cluster.preempted_for)
    def leave(self, pick: st.DataObject, left_s: float | None) -> None:
        job = pick.choice(sorted(self.cluster.preempted_for))
        self.count(self.cluster.holdings[job])
        park(self.cluster, self.shares, job, self.now_s, left_s)
        self.settle()

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 50.0, 1e4, 1e6]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.settle()

    @rule(account=st.sampled_from(["org", "org/red", "dora", ""]), most=st.integers(1, 9))
    def limit(self, account: str, most: int) -> None:
        self.limits[account] = most
        self.shares.set_limits(account, Limits(devices_max=most, devices_soft=most / 2))
        self.settle()

    @rule(
        account=st.sampled_from(["org", "org/red", *ACCOUNTS]), devices=st.sampled_from([0.0, 0.5, 1.0, 3.0])
    )
    def guarantee(self, account: str, devices: float) -> None:
        self.limits.pop(account, None)
        self.shares.set_limits(account, Limits(devices_guaranteed=devices))
        self.settle()

    @rule(account=st.sampled_from(["org", "org/red", *ACCOUNTS]), weight=st.floats(0.1, 10))
    def weigh(self, account: str, weight: float) -> None:
        self.shares.set_weight(account, weight)
        self.settle()

    @rule(name=st.sampled_from(NODES), cordoned=st.booleans(), devices=st.integers(4, 6))
    def change_node(self, name: str, cordoned: bool, devices: int) -> None:
        known = self.cluster.nodes.get(name)
        size = devices if known is None else known.devices
        self.cluster.set_node(node(name, size, cordoned))
        self.settle()

    @rule(name=st.sampled_from(NODES))
    @precondition(lambda self: len(self.cluster.nodes) > 1)
    def lose_node(self, name: str) -> None:
        if name in self.cluster.nodes:
            for job in list(self.cluster.on_node[name]):
                self.count(end(self.cluster, self.shares, job, self.now_s))
            self.cluster.remove_node(name)
            self.settle()

    # -- what is always so -----------------------------------------------------------------------------------

    @invariant()
    def capacity_is_never_exceeded(self) -> None:
        held = dict.fromkeys(self.cluster.nodes, 0)
        for holding in self.cluster.holdings.values():
            for node, members in holding.where:
                held[node] += members * holding.request.demand.device_milli
        for name, milli in held.items():
            assert milli <= 1000 * self.cluster.nodes[name].devices

    @invariant()
    def gangs_are_whole(self) -> None:
        for holding in self.cluster.holdings.values():
            demand, members = holding.request.demand, sum(members for _, members in holding.where)
            assert demand.members_min <= members <= demand.members
            assert demand.together != "one_node" or len(holding.where) == 1

    @invariant()
    def the_ledger_is_exact(self) -> None:
        total = sum(state.used[0] for state in self.shares.state().accounts)
        assert total == self.device_us

    @invariant()
    def every_pending_job_is_explained(self) -> None:
        for job in list(self.cluster.waiting)[:2]:
            found: Explanation = explain(
                self.cluster, self.shares, self.policy, self.now_s, job, advise=False
            )
            assert sentence(found).endswith(".")

    # -- parts -----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Decisions are pure, replay, keep pins and come to an end."""
        for _ in range(50):
            snapshot = DecisionSnapshot.taken(self.cluster, self.shares, self.policy, self.now_s)
            plan = decide(self.cluster, self.shares, self.policy, self.now_s)
            after = DecisionSnapshot.taken(self.cluster, self.shares, self.policy, self.now_s)
            assert after == snapshot
            assert decide(self.cluster, self.shares, self.policy, self.now_s) == plan
            if not any(request.demand.device_milli < 1000 for request in snapshot.cluster.waiting):
                assert snapshot.decide() == plan
            if not plan:
                return
            self.check(plan)
            enact(self.cluster, self.shares, plan)
            for start in plan.starts:
                for account in self.cluster.above(self.cluster.holdings[start.job].request.account):
                    most = self.limits.get(account, 1e9)
                    assert self.cluster.devices_held[account] <= most
        raise AssertionError("decisions at one moment do not come to an end")

    def check(self, plan: Plan) -> None:
        starting = {start.job for start in plan.starts}
        kept = {
            node
            for reservation in self.cluster.reserved.values()
            if reservation.job not in starting
            for node, _ in reservation.where
        }
        for start in plan.starts:
            assert not kept & {node for node, _ in start.where}
            assert self.cluster.waiting[start.job].startable
            assert not any(self.cluster.nodes[node].cordoned for node, _ in start.where)
        victims = [victim for made in plan.preemptions for victim in made.victims]
        assert len(victims) == len(set(victims))
        assert not set(victims) & (starting | set(self.cluster.preempted_for))

    def count(self, holding: Holding) -> None:
        members = sum(members for _, members in holding.where)
        seconds = max(0.0, self.now_s - holding.started_s)
        self.device_us += round(members * holding.request.demand.device_milli / 1000 * seconds * 1e6)

    def running(self, pick: st.DataObject) -> str:
        job: str = pick.choice(sorted(self.cluster.holdings))
        return job


DecisionMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestDecisions = DecisionMachine.TestCase
