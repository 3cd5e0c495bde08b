"""Guaranteed devices: who is within what his account is guaranteed, as one decision sees it.

The classes are named as Kubernetes names them. Which account counts depends on whom a job meets: the one of
its line below their lowest common ancestor, as with fairness. BEST_EFFORT jobs neither have a guarantee nor
use it up: they run on what others leave."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from djinn_lab.jobs.decision.cluster import Cluster
from djinn_lab.jobs.decision.held import Held, best_effort
from djinn_lab.jobs.fairness import ShareTree
from djinn_lab.jobs.fairness.account import Account
from djinn_lab.jobs.request import Demand, Holding, Request, members_in


class QosClass(StrEnum):
    """What is promised to a job."""

    GUARANTEED = "GUARANTEED"
    """With it, its account holds no more devices than it is guaranteed."""
    BURSTABLE = "BURSTABLE"
    """Its account holds more with it, or is guaranteed none."""
    BEST_EFFORT = "BEST_EFFORT"
    """Its priority is SCAVENGER."""


class Standard(msgspec.Struct, frozen=True):
    """The class of a job that waits or runs. ``account``: of its line, the one whose guarantee counts: the
    first from the pool down that it is within, else the first that has one; with the job it holds, or would
    hold, ``held`` devices."""

    quality: QosClass
    account: str = ""
    held: float = 0.0
    guaranteed: float | None = None


class Standing:
    """Thousandths of devices that accounts hold, by account and everybody above: of those who run and do not
    leave, and of those whom a place is kept for. Counted anew, and one's own to change; :meth:`kept` is the
    cluster's, to be changed on trial only."""

    def __init__(self, cluster: Cluster, shares: ShareTree, held: Held | None = None) -> None:
        self._cluster, self._shares = cluster, shares
        self._held = cluster.held_anew() if held is None else held
        self._held.follow(shares.guaranteed_milli)

    @classmethod
    def kept(cls, cluster: Cluster, shares: ShareTree) -> Standing:
        """What the cluster keeps from event to event."""
        return cls(cluster, shares, cluster.held())

    def checkpoint(self) -> int:
        """A mark to come back to."""
        return self._held.checkpoint()

    def rollback(self, mark: int) -> None:
        self._held.rollback(mark)

    def add(self, request: Request, members: int) -> None:
        """It has so many members from now on; so many fewer when they are below 0."""
        self._held.count(self._cluster.above(request.account), request, members)

    def remove(self, holding: Holding) -> None:
        """It is asked to leave."""
        self.add(holding.request, -members_in(holding.where))

    def held(self, account: Account) -> int:
        return self._held.milli.get(account.account, 0)

    def left(self, account: Account) -> float:
        """What the account is guaranteed and does not hold; below 0: it holds more, or has no guarantee."""
        guaranteed = guaranteed_milli(account)
        return -math.inf if guaranteed is None else guaranteed - self.held(account)

    def guaranteed(self, request: Request) -> list[Account]:
        """The accounts of its line that are guaranteed devices."""
        return [one for one in self._shares.lineage(request.account) if guaranteed_milli(one) is not None]

    def claims(self, account: Account, request: Request) -> bool:
        """Would this waiting job be within the account's guarantee?"""
        needs = request.demand.members_min * request.demand.device_milli
        return needs > 0 and not best_effort(request) and needs <= self.left(account)

    def claims_anywhere(self, request: Request) -> bool:
        """Is there somebody against whom it is within a guarantee?"""
        if not self.short(request.account):
            return False
        return any(self.claims(account, request) for account in self._shares.lineage(request.account))

    def members_within(self, account: Account, demand: Demand) -> int:
        """So many members of a gang the account's guarantee covers."""
        return int(self.left(account) // demand.device_milli)

    def protects(self, account: Account, holding: Holding) -> bool:
        """Would the account hold less than it is guaranteed without this running job?"""
        milli = members_in(holding.where) * holding.request.demand.device_milli
        return not best_effort(holding.request) and self.left(account) + milli > 0

    def short(self, account: str) -> bool:
        """Does it, or one above it, hold less than it is guaranteed?"""
        return not self._held.short.isdisjoint(self._cluster.above(account))

    @property
    def owes(self) -> bool:
        """Is there such an account, of those that wait or have somebody below them who does?"""
        return any(self._cluster.queued.get(name) for name in self._held.short)

    def of(self, request: Request) -> Standard:
        """Of one that waits or runs."""
        if best_effort(request):
            return Standard(QosClass.BEST_EFFORT)
        needs = self._needs(request)
        above = self.guaranteed(request)
        within = [one for one in above if needs <= self.left(one)]
        if not above:
            return Standard(QosClass.BURSTABLE)
        one = (within or above)[0]
        quality = QosClass.GUARANTEED if within else QosClass.BURSTABLE
        return Standard(quality, one.account, (self.held(one) + needs) / 1000, one.limits.devices_guaranteed)

    def _needs(self, request: Request) -> int:
        """Thousandths of devices that are not counted yet."""
        cluster, job = self._cluster, request.job
        if job in cluster.pins or (job in cluster.holdings and job not in cluster.leaving):
            return 0
        holding = cluster.holdings.get(job)
        members = request.demand.members_min if holding is None else members_in(holding.where)
        return members * request.demand.device_milli


class Leaving:
    """Victims of one attempt. Together, with what the preemptor then holds, they leave no account that is
    guaranteed devices with less of them than it has: others of it would ask for them again, and so on."""

    def __init__(self, standing: Standing, preemptor: Request) -> None:
        self._standing = standing
        needs = preemptor.demand.members_min * preemptor.demand.device_milli
        self._comes = 0 if best_effort(preemptor) else needs
        self._its = frozenset(standing.guaranteed(preemptor))
        self._gone: dict[Account, int] = {}

    def admits(self, holding: Holding, *, anyhow: bool) -> bool:
        """May this one leave, too? Then it does. ``anyhow``: for a rank or a
        reservation, which ask nobody."""
        if best_effort(holding.request):
            return True
        milli = members_in(holding.where) * holding.request.demand.device_milli
        above = self._standing.guaranteed(holding.request)
        if not anyhow and any(self._loses(account, milli) for account in above):
            return False
        for account in above:
            self._gone[account] = self._gone.get(account, 0) + milli
        return True

    def _loses(self, account: Account, milli: int) -> bool:
        held = self._standing.held(account)
        left = held - self._gone.get(account, 0) - milli + (self._comes if account in self._its else 0)
        return left < held and left < held + self._standing.left(account)


def guaranteed_milli(account: Account) -> float | None:
    """Thousandths of devices, None for no guarantee."""
    guaranteed = account.limits.devices_guaranteed
    return None if guaranteed is None else guaranteed * 1000
