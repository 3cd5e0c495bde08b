"""What a decision was made from, and its outcome: enough to make it again and compare."""

from __future__ import annotations

import msgspec
from blake3 import blake3

from djinn_lab.jobs.decision.decide import decide
from djinn_lab.jobs.decision.plan import Plan
from djinn_lab.jobs.decision.rules.policy import QueuePolicy
from djinn_lab.jobs.decision.state.cluster import Cluster, ClusterState
from djinn_lab.jobs.fairness import ShareState, ShareTree

_encode = msgspec.json.Encoder(order="deterministic").encode


class DecisionSnapshot(msgspec.Struct, frozen=True):
    """All that a decision reads."""

    cluster: ClusterState
    shares: ShareState
    policy: QueuePolicy
    now_s: float

    @classmethod
    def taken(
        cls, cluster: Cluster, shares: ShareTree, policy: QueuePolicy, now_s: float
    ) -> DecisionSnapshot:
        return cls(cluster.state(), shares.state(), policy, now_s)

    @property
    def digest(self) -> str:
        return blake3(_encode(self)).hexdigest(16)

    def decide(self) -> Plan:
        """Decide again, on a copy."""
        cluster = Cluster.restored(self.cluster, self.now_s)
        return decide(cluster, ShareTree(self.shares), self.policy, self.now_s)


class DecisionRecord(msgspec.Struct, frozen=True):
    """One row of a decision trace. ``seed``: of the random numbers drawn around the core, which draws
    none. The digests are of the snapshot before and of the plan."""

    now_s: float
    policy: str
    policy_version: int
    snapshot: str
    plan: str
    starts: int
    preemptions: int
    seed: int | None = None


def record(snapshot: DecisionSnapshot, plan: Plan, seed: int | None = None) -> DecisionRecord:
    return DecisionRecord(
        snapshot.now_s,
        snapshot.policy.name,
        snapshot.policy.version,
        snapshot.digest,
        blake3(_encode(plan)).hexdigest(16),
        len(plan.starts),
        len(plan.preemptions),
        seed,
    )
