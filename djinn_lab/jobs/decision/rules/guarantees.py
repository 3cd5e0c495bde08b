"""Guaranteed devices: which jobs are within their accounts' guarantees, as one decision sees it.

The classes are named as Kubernetes names them. Of two jobs, the accounts below their lowest common
ancestor count, as with fairness. BEST_EFFORT jobs neither have a guarantee nor use it up: they run on
devices that others leave free."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from djinn_lab.jobs.decision.state.cluster import Cluster
from djinn_lab.jobs.decision.state.held_devices import HeldDevices, best_effort
from djinn_lab.jobs.fairness import ShareTree
from djinn_lab.jobs.fairness.account import AccountNode
from djinn_lab.jobs.request import Demand, Holding, Request, members_in


class QosClass(StrEnum):
    """The class of service of a job."""

    GUARANTEED = "GUARANTEED"
    """With the job, its account holds no more devices than it is guaranteed."""
    BURSTABLE = "BURSTABLE"
    """With the job, its account holds more, or is guaranteed none."""
    BEST_EFFORT = "BEST_EFFORT"
    """Its priority is SCAVENGER."""


class JobQos(msgspec.Struct, frozen=True):
    """The class of a job that waits or runs. ``account``: the ancestor whose guarantee counts: the first
    from the pool down that the job is within, else the first that has one; with the job that account
    holds, or would hold, ``held`` devices."""

    qos_class: QosClass
    account: str = ""
    held: float = 0.0
    guaranteed: float | None = None


class Guarantees:
    """Thousandths of devices that accounts hold, by account and every account above: of running jobs that
    are not being preempted, and of reserved capacity. Counted anew, free to change; :meth:`tracked` shares
    the cluster's own count, to be changed on trial only."""

    def __init__(self, cluster: Cluster, shares: ShareTree, held: HeldDevices | None = None) -> None:
        self._cluster, self._shares = cluster, shares
        self._held = cluster.count_held_devices() if held is None else held
        self._held.follow(shares.guaranteed_milli)

    @classmethod
    def tracked(cls, cluster: Cluster, shares: ShareTree) -> Guarantees:
        """Use the count that the cluster keeps from event to event."""
        return cls(cluster, shares, cluster.held())

    def checkpoint(self) -> int:
        """Return a mark to roll back to."""
        return self._held.checkpoint()

    def rollback(self, mark: int) -> None:
        self._held.rollback(mark)

    def add(self, request: Request, members: int) -> None:
        """Count so many members of the request; fewer when they are below 0."""
        self._held.count(self._cluster.above(request.account), request, members)

    def remove(self, holding: Holding) -> None:
        """Discount a job that is asked to stop."""
        self.add(holding.request, -members_in(holding.where))

    def held(self, account: AccountNode) -> int:
        return self._held.milli.get(account.account, 0)

    def remaining_milli(self, account: AccountNode) -> float:
        """Return what the account is guaranteed and does not hold; below 0: it holds more, or has no
        guarantee."""
        guaranteed = guaranteed_milli(account)
        return -math.inf if guaranteed is None else guaranteed - self.held(account)

    def guaranteed(self, request: Request) -> list[AccountNode]:
        """Return the account and its ancestors that are guaranteed devices."""
        return [one for one in self._shares.lineage(request.account) if guaranteed_milli(one) is not None]

    def claims(self, account: AccountNode, request: Request) -> bool:
        """Return whether this waiting job would be within the account's guarantee."""
        needs = request.demand.members_min * request.demand.device_milli
        return needs > 0 and not best_effort(request) and needs <= self.remaining_milli(account)

    def claims_anywhere(self, request: Request) -> bool:
        """Return whether the waiting job is within a guarantee against any other account."""
        if not self.is_below(request.account):
            return False
        return any(self.claims(account, request) for account in self._shares.lineage(request.account))

    def members_within(self, account: AccountNode, demand: Demand) -> int:
        """Return how many members of a gang the account's guarantee covers."""
        return int(self.remaining_milli(account) // demand.device_milli)

    def protects(self, account: AccountNode, holding: Holding) -> bool:
        """Return whether the account would hold less than it is guaranteed without this running job."""
        milli = members_in(holding.where) * holding.request.demand.device_milli
        return not best_effort(holding.request) and self.remaining_milli(account) + milli > 0

    def is_below(self, account: str) -> bool:
        """Return whether the account, or one above it, holds less than it is guaranteed."""
        return not self._held.below.isdisjoint(self._cluster.above(account))

    @property
    def unmet(self) -> bool:
        """Return whether an account with waiting jobs, at any level, holds less than it is guaranteed."""
        return any(self._cluster.queued.get(name) for name in self._held.below)

    def qos_of(self, request: Request) -> JobQos:
        """Return the class of a waiting or running job."""
        if best_effort(request):
            return JobQos(QosClass.BEST_EFFORT)
        needs = self._needs(request)
        above = self.guaranteed(request)
        within = [one for one in above if needs <= self.remaining_milli(one)]
        if not above:
            return JobQos(QosClass.BURSTABLE)
        one = (within or above)[0]
        qos_class = QosClass.GUARANTEED if within else QosClass.BURSTABLE
        return JobQos(qos_class, one.account, (self.held(one) + needs) / 1000, one.limits.devices_guaranteed)

    def _needs(self, request: Request) -> int:
        """Return the thousandths of devices that are not counted yet."""
        cluster, job = self._cluster, request.job
        if job in cluster.reserved or (job in cluster.holdings and job not in cluster.preempted_for):
            return 0
        holding = cluster.holdings.get(job)
        members = request.demand.members_min if holding is None else members_in(holding.where)
        return members * request.demand.device_milli


class GuaranteeCheck:
    """Checks the victims of one attempt. Together, with what the preemptor then holds, they leave no
    guaranteed account with less than it has: its other jobs would ask for those devices again, and so on.
    """

    def __init__(self, guarantees: Guarantees, preemptor: Request) -> None:
        self._guarantees = guarantees
        needs = preemptor.demand.members_min * preemptor.demand.device_milli
        self._comes = 0 if best_effort(preemptor) else needs
        self._its = frozenset(guarantees.guaranteed(preemptor))
        self._gone: dict[AccountNode, int] = {}

    def admits(self, holding: Holding, *, unconditional: bool) -> bool:
        """Add this victim, if it may be preempted, too, and return whether. ``unconditional``: for a rank
        or a reservation, which no guarantee stands against."""
        if best_effort(holding.request):
            return True
        milli = members_in(holding.where) * holding.request.demand.device_milli
        above = self._guarantees.guaranteed(holding.request)
        if not unconditional and any(self._loses(account, milli) for account in above):
            return False
        for account in above:
            self._gone[account] = self._gone.get(account, 0) + milli
        return True

    def _loses(self, account: AccountNode, milli: int) -> bool:
        held = self._guarantees.held(account)
        left = held - self._gone.get(account, 0) - milli + (self._comes if account in self._its else 0)
        return left < held and left < held + self._guarantees.remaining_milli(account)


def guaranteed_milli(account: AccountNode) -> float | None:
    """Return the guarantee in thousandths of devices, None for no guarantee."""
    guaranteed = account.limits.devices_guaranteed
    return None if guaranteed is None else guaranteed * 1000
