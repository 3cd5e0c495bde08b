"""Why does this job wait, what stands in its way, when will it start, and what would help? Every part is
computed by the decision itself: its verdict (:mod:`.trace`), the same decision run forward
(:mod:`.forecast`), and run forward again with something changed."""

from __future__ import annotations

from collections import Counter

import msgspec

from djinn_lab.jobs.decision.cluster import Calendar, Cluster
from djinn_lab.jobs.decision.decide import decide
from djinn_lab.jobs.decision.forecast import (
    STARTS_MAX,
    Basis,
    Change,
    Forecast,
    changed_request,
    forecast,
    start_with,
)
from djinn_lab.jobs.decision.plan import Plan
from djinn_lab.jobs.decision.policy import QueuePolicy
from djinn_lab.jobs.decision.reasons import Reason
from djinn_lab.jobs.decision.trace import Note, Trace
from djinn_lab.jobs.fairness import LimitHit, ShareTree
from djinn_lab.jobs.placement import EverFits, Misfit
from djinn_lab.jobs.request import Request
from djinn_lab.jobs.states import RANKS

ADVICE_S = 0.05
"""What gains less is not worth telling."""


class Blocker(msgspec.Struct, frozen=True):
    """A job in the way. ``where``: what it holds, or is promised. ``until_s``: when it is expected to end
    (for a promise: to start), None when nobody knows."""

    job: str
    account: str
    where: tuple[str, ...]
    until_s: float | None


class Ahead(msgspec.Struct, frozen=True):
    """How many jobs of an account are expected to start earlier."""

    account: str
    jobs: int


class Counterfactual(msgspec.Struct, frozen=True):
    """What the user could write instead, and when it would start then."""

    option: str
    start_s: float


class Explanation(msgspec.Struct, frozen=True):
    """``position``: in the order of expected starts, of ``waiting`` jobs; None when it is not expected to
    start. ``ahead``: by account, most first. ``until_s``: when the reason ends by itself, where that is
    known. ``expected_s``: when it starts if everybody ends when he is expected to and nobody else comes;
    ``later_than_s``: the forecast went so far without its starting. ``scores``: of the node it would get.
    ``needs``: members at once, at least. ``calendar``: others' reservations that are in its way. ``rank``: of
    its priority. ``brought``: what it needs is not on its device yet, and ``stuck``: nor on its way.
    ``place``: what a node is called where each has one device. ``cordoned``: nodes that are, where all that
    could hold it are or are away."""

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
    calendar: tuple[Calendar, ...] = ()
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
        lone = all(node.devices == 1 for node in cluster.nodes.values())
        self.place = "device" if lone else "node"
        self.trace = Trace()
        self.plan: Plan = decide(cluster, shares, policy, now_s, self.trace)
        self.forecast: Forecast = forecast(cluster, shares, policy, now_s, job=job, starts_max=starts_max)

    def explain(self, job: str, *, advise: bool = True) -> Explanation:
        """``advise``: also try what would help, which costs a forecast for each idea."""
        request = self.cluster.waiting[job]
        note = self._note(request)
        reason = note.reason if note is not None else self._unless_away(request, Reason.BEHIND)
        expected = self.forecast.expected(job)
        if reason is Reason.BUSY and expected is not None and expected.before:
            reason = Reason.BEHIND
        start = next((start for start in self.plan.starts if start.job == job), None)
        impossible = self.cluster.room.ever_fits(request.demand) if reason is Reason.IMPOSSIBLE else None
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
            self.cluster.room.misfit(request.demand),
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

    def _calendar(self, request: Request) -> tuple[Calendar, ...]:
        found = [one for one in self.cluster.calendar.values() if one.shuts_out(request, self.now_s)]
        return tuple(sorted(found, key=lambda one: (one.ends_s, one.name)))

    def _note(self, request: Request) -> Note | None:
        rank = self.cluster.index(self.policy, self.now_s).rank(request.job)
        note = self.trace.verdict(request, rank)
        if note is not None and note.reason is Reason.BUSY and note.job != request.job:
            return msgspec.structs.replace(note, reason=Reason.BEHIND)
        if note is None and not self.cluster.room.ever_fits(request.demand):
            return Note(
                request.job, rank, (request.account, request.demand, None, 0, True), Reason.IMPOSSIBLE
            )
        if note is not None and note.reason in (Reason.BUSY, Reason.BEHIND):
            return msgspec.structs.replace(note, reason=self._unless_away(request, note.reason))
        return note

    def _unless_away(self, request: Request, reason: Reason) -> Reason:
        """Unless all that could hold it are cordoned or away."""
        misfit = self.cluster.room.misfit(request.demand)
        away = not misfit.busy and not misfit.open and (misfit.cordoned or misfit.not_ready)
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
                )
            case Reason.HOME:
                nodes = {request.home} if request.home is not None else set()
            case Reason.MAKING_ROOM:
                pin = cluster.pins.get(request.job)
                planned = [made.where for made in self.plan.preemptions if made.by == request.job]
                nodes = {node for node, _ in (pin.where if pin is not None else planned[0])}
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
        """What the user could ask for instead, the soonest first."""
        if reason in (Reason.STARTS_NOW, Reason.MAKING_ROOM, Reason.NOT_READY):
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
            there = self.cluster.room.misfit(request.demand).members_open
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
    """Of one waiting job. Raises KeyError for one that does not wait. For many at once: :class:`Outlook`."""
    assert cluster.waiting[job]
    return Outlook(cluster, shares, policy, now_s, job=job).explain(job, advise=advise)
