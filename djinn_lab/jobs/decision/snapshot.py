"""Everything that a decision reads, as a value: to decide again, elsewhere or later, and compare."""

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
    """Everything that a decision reads, at one moment. ``now_s``: the time of the decision."""

    cluster: ClusterState
    shares: ShareState
    policy: QueuePolicy
    now_s: float

    @classmethod
    def taken(
        cls, cluster: Cluster, shares: ShareTree, policy: QueuePolicy, now_s: float
    ) -> DecisionSnapshot:
        """Copy the state as it is now."""
        return cls(cluster.state(), shares.state(), policy, now_s)

    @property
    def digest(self) -> str:
        """Return a hash of everything in it."""
        return blake3(_encode(self)).hexdigest(16)

    def decide(self) -> Plan:
        """Decide again, on a copy."""
        cluster = Cluster.restored(self.cluster, self.now_s)
        return decide(cluster, ShareTree(self.shares), self.policy, self.now_s)
