"""Explain why a job waits, what blocks it, when it will start, and what would help. Every part is computed
by the decision itself: its verdict (:mod:`.verdicts`), the same decision run forward (:mod:`.forecast`),
and run forward again with a change."""

from __future__ import annotations

from collections import Counter

import msgspec

from djinn_lab.jobs.decision.decide import decide
from djinn_lab.jobs.decision.explaining.forecast import (
    STARTS_MAX,
    Basis,
    Change,
    Forecast,
    changed_request,
    forecast,
    start_with,
)
from djinn_lab.jobs.decision.explaining.verdicts import DecisionTrace, Reason, Verdict
from djinn_lab.jobs.decision.plan import Plan
from djinn_lab.jobs.decision.rules.policy import QueuePolicy
from djinn_lab.jobs.decision.state.cluster import CalendarReservation, Cluster
from djinn_lab.jobs.fairness import LimitHit, ShareTree
from djinn_lab.jobs.placement import EverFits, Misfit
from djinn_lab.jobs.request import Request
from djinn_lab.jobs.states import RANKS

ADVICE_S = 0.05
"""Advice that gains less is left out."""


class Blocker(msgspec.Struct, frozen=True):
    """A job that blocks another. ``where``: the nodes that it holds, or is promised. ``until_s``: when it
    is expected to end (for a promise: to start), None when unknown."""

    job: str
    account: str
    where: tuple[str, ...]
    until_s: float | None


class Ahead(msgspec.Struct, frozen=True):
    """How many jobs of an account are expected to start earlier."""

    account: str
    jobs: int


class Counterfactual(msgspec.Struct, frozen=True):
    """Another option that the user could set, and when the job would start then."""

    option: str
    start_s: float


class Explanation(msgspec.Struct, frozen=True):
    """Why a job waits. ``position``: in the order of expected starts, of ``waiting`` jobs; None when the job
    is not expected to start. ``ahead``: by account, most first. ``expected_s``: when the job starts if
    running jobs end when they are expected to and no other job arrives; ``later_than_s``: the forecast went
    so far without its starting. ``scores``: of the node that it would get. ``needs``: members at once, at
    least. ``calendar``: reservations of other accounts that exclude it. ``rank``: of its priority.
    ``brought``: its state or memory is not on its device yet; ``stuck``: nor on its way. ``place``:
    ``device`` where each node is one device, else ``node``. ``cordoned``: cordoned nodes that it could use,
    where all that could hold it are cordoned or down."""

    job: str
    account: str
    now_s: float
    reason: Reason
    position: int | None
    waiting: int
    ahead: tuple[Ahead, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    limit: LimitHit | None = None
    impossible: EverFits | None = None
    nodes: Misfit | None = None
    expected_s: float | None = None
    later_than_s: float | None = None
    basis: Basis | None = None
    expected_where: tuple[str, ...] = ()
    scores: dict[str, float] = {}
    would: tuple[Counterfactual, ...] = ()
    decided_s: float | None = None
    needs: int = 1
    calendar: tuple[CalendarReservation, ...] = ()
    rank: int = 0
    brought: bool = False
    stuck: bool = False
    place: str = "node"
    cordoned: tuple[str, ...] = ()


class Outlook:
    """One decision and one forecast, from which any waiting job is explained: for a whole page of them."""

    def __init__(
        self,
        cluster: Cluster,
        shares: ShareTree,
        policy: QueuePolicy,
        now_s: float,
        *,
        job: str | None = None,
        starts_max: int = STARTS_MAX,
    ) -> None:
        """``job``: look ahead only until this one starts; ``starts_max``: and only so many starts."""
        self.cluster, self.shares, self.policy, self.now_s = cluster, shares, policy, now_s
        single_devices = all(node.devices == 1 for node in cluster.nodes.values())
        self.place = "device" if single_devices else "node"
        self.trace = DecisionTrace()
        self.plan: Plan = decide(cluster, shares, policy, now_s, self.trace)
        self.forecast: Forecast = forecast(cluster, shares, policy, now_s, job=job, starts_max=starts_max)

    def explain(self, job: str, *, advise: bool = True) -> Explanation:
        """Explain the job. ``advise``: also try what would help, which costs a forecast for each idea."""
        request = self.cluster.waiting[job]
        note = self._note(request)
        reason = note.reason if note is not None else self._unless_away(request, Reason.BEHIND)
        expected = self.forecast.expected(job)
        if reason is Reason.BUSY and expected is not None and expected.before:
            reason = Reason.BEHIND
        start = next((start for start in self.plan.starts if start.job == job), None)
        impossible = self.cluster.capacity.ever_fits(request.demand) if reason is Reason.IMPOSSIBLE else None
        by_account = Counter(
            self.cluster.waiting[other].account for other in (expected.before if expected else ())
        )
        return Explanation(
            job,
            request.account,
            self.now_s,
            reason,
            None if expected is None else len(expected.before) + 1,
            len(self.cluster.waiting),
            tuple(Ahead(account, jobs) for account, jobs in by_account.most_common()),
            self._blockers(request, reason),
            note.limit if note is not None else None,
            impossible,
            self.cluster.capacity.misfit(request.demand),
            None if expected is None else expected.start_s,
            self.forecast.until_s if expected is None and not self.forecast.complete else None,
            None if expected is None else expected.basis,
            () if expected is None else tuple(node for node, _ in expected.where),
            {} if start is None else start.scores,
            self._advice(request, reason) if advise else (),
            self.cluster.decided_s,
            request.demand.members_min,
            self._calendar(request) if reason is Reason.CALENDAR else (),
            request.rank,
            not request.startable,
            request.stuck,
            self.place,
            self._cordoned(request) if reason is Reason.UNAVAILABLE else (),
        )

    def _cordoned(self, request: Request) -> tuple[str, ...]:
        wanted = request.demand.nodes
        nodes = self.cluster.nodes.values()
        return tuple(one.node for one in nodes if one.cordoned and (wanted is None or one.node in wanted))

    def _calendar(self, request: Request) -> tuple[CalendarReservation, ...]:
        found = [one for one in self.cluster.calendar.values() if one.excludes(request, self.now_s)]
        return tuple(sorted(found, key=lambda one: (one.ends_s, one.name)))

    def _note(self, request: Request) -> Verdict | None:
        rank = self.cluster.index(self.policy, self.now_s).rank(request.job)
        note = self.trace.verdict(request, rank)
        if note is None and not self.cluster.capacity.ever_fits(request.demand):
            return Verdict(
                request.job, rank, (request.account, request.demand, None, 0, True, ""), Reason.IMPOSSIBLE
            )
        if note is not None and note.reason in (Reason.BUSY, Reason.BEHIND):
            reason = note.reason if note.job == request.job else Reason.BEHIND
            return msgspec.structs.replace(note, reason=self._unless_away(request, reason))
        return note

    def _unless_away(self, request: Request, reason: Reason) -> Reason:
        """Return the reason, or UNAVAILABLE where all nodes that could hold the request are cordoned or
        away."""
        misfit = self.cluster.capacity.misfit(request.demand)
        away = (
            not misfit.busy and not misfit.open and (misfit.cordoned or misfit.not_ready or misfit.expected)
        )
        return Reason.UNAVAILABLE if away else reason

    def _blockers(self, request: Request, reason: Reason) -> tuple[Blocker, ...]:
        cluster = self.cluster
        match reason:
            case Reason.RESERVED:
                return tuple(
                    Blocker(
                        made.job,
                        cluster.waiting[made.job].account,
                        tuple(node for node, _ in made.where),
                        made.start_s,
                    )
                    for made in self.plan.reservations
                    if made.job != request.job
                )
            case Reason.HOME:
                nodes = {request.home} if request.home is not None else set()
            case Reason.PREEMPTING:
                reservation = cluster.reserved.get(request.job)
                planned = [made.where for made in self.plan.preemptions if made.by == request.job]
                nodes = {node for node, _ in (reservation.where if reservation is not None else planned[0])}
            case Reason.BUSY | Reason.BEHIND | Reason.SOFT_LIMIT:
                expected = self.forecast.expected(request.job)
                nodes = set() if expected is None else {node for node, _ in expected.where}
            case _:
                return ()
        jobs = {job for node in nodes for job in cluster.on_node.get(node, {})}
        held = sorted((cluster.holdings[job] for job in jobs), key=lambda one: one.request.number)
        return tuple(
            Blocker(one.request.job, one.request.account, tuple(node for node, _ in one.where), one.ends_s)
            for one in held
        )

    def _advice(self, request: Request, reason: Reason) -> tuple[Counterfactual, ...]:
        """Return what the user could ask for instead, the soonest start first."""
        if reason in (Reason.STARTS_NOW, Reason.PREEMPTING, Reason.NOT_READY):
            return ()
        expected = self.forecast.expected(request.job)
        found = []
        for option, change in self._ideas(request):
            changed = changed_request(request, change)
            tried = start_with(self.cluster, self.shares, self.policy, self.now_s, changed)
            if tried is None or isinstance(tried, LimitHit):
                continue
            if expected is None or tried < expected.start_s - ADVICE_S:
                found.append(Counterfactual(option, tried))
        return tuple(sorted(found, key=lambda one: one.start_s))

    def _ideas(self, request: Request) -> list[tuple[str, Change]]:
        ideas: list[tuple[str, Change]] = []
        if request.demand.members_min > 1:
            there = self.cluster.capacity.misfit(request.demand).members_open
            sizes = {1, there} if 1 < there < request.demand.members_min else {1}
            ideas += [(f"--gang {size}", Change(members=size)) for size in sorted(sizes, reverse=True)]
        better = [name for name, rank in RANKS.items() if rank == request.rank - 1 and rank > 0]
        ideas += [(f"--priority {name}", Change(priority=name)) for name in better]
        bound_home = request.home is not None and request.demand.nodes == frozenset({request.home})
        if request.demand.selector or (request.demand.nodes is not None and not bound_home):
            ideas.append(("no --target", Change(anywhere=True)))
        return ideas


def explain(
    cluster: Cluster, shares: ShareTree, policy: QueuePolicy, now_s: float, job: str, *, advise: bool = True
) -> Explanation:
    """Explain one waiting job. Raises KeyError for one that does not wait. For many at once:
    :class:`Outlook`."""
    assert cluster.waiting[job]
    return Outlook(cluster, shares, policy, now_s, job=job).explain(job, advise=advise)
