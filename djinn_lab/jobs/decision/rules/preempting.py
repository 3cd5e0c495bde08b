"""Choose the victims of a preemption: which jobs may be preempted for a candidate, and which of them cost
least.

A preemption is only ever proposed inside a transaction on free capacity that ended with the preemptor
placed. Every victim that turned out not to be needed is spared, and the capacity is then reserved for the
preemptor alone.

**No two jobs preempt each other in a loop at one moment.** At one moment (with nothing arriving or ending)
let P be the jobs that have been preempted at it. A preemption needs a preemptor that is not in P
(:func:`find` refuses those with ``preempted_at_s`` = now) and that waits, and it puts at least one job
into P. A job starts at most once without being in P, and every further start needs it to have been
preempted, hence in P, hence no preemptor any more. So at one moment there are at most as many preemptions
as jobs. QED.

**A preempted job that is submitted again at once triggers nothing**, now or later, unless something
changed. Each cause is a strict order on keys that a job has whether it waits or runs (:mod:`.keys`):
- rank: c before v means rank(c) < rank(v); then v before c is false;
- fairness: level(A with c) + margin < level(B without v), below their lowest common ancestor. v against c
  would need level(B with v) < level(A without c) <= level(A with c) < level(B without v) <= level(B with
  v);
- shorter: size(c) x factor < size(v) less parking, factor >= 1, park >= 0; and where accounts differ, the
  fairness order above with margin 0 must not stand against it;
- attained: queue(c) < queue(v), of attained service;
- decode: c is a decode step, v a prefill, and seconds(c) < seconds(v), c of an unknown run time being
  short. Where this stands for c against v, none of the three others is asked for v against c.

They are tried in this order, decode after the rank, and a worse rank ends the question, so the union is
free of pairs as well.

**Guarantees** (:mod:`.guarantees`) are tried after the rank and before the others. Let A and B be the
accounts of c and v below their lowest common ancestor, G their guarantees, h what they hold without c and
v (a job being preempted does not hold, reserved capacity counts as held). c is within its guarantee when
h(A) + c <= G(A), whether it waits or runs. Where accounts have guarantees,
- c may preempt v for its guarantee when c is within it, v's rank is not better, and B without v holds no
  less than its own; for fairness, shortness, attained service and a decode step c may preempt v of another
  account only where B does;
- whatever the cause but the rank or a reservation, all victims of c together leave no account, of any
  level, with less of its guarantee than it held, c counted (:class:`~.guarantees.GuaranteeCheck`).

Suppose c preempts v of another account so. Then h(B) >= G(B) once all victims have stopped, so v is not
within, and v against c is no preemption for a guarantee. If c came by its guarantee, A without c holds
less than its own, so v against c is none for the other four, nor for its rank. If c came by one of the
four, their proofs above are what they were: guarantees only take from them. If c came by its rank, v has
the worse one.

**A reservation** that has begun (:func:`reclaim`) puts the jobs that it admits before all others on its
nodes, whatever else. A victim that left such a node is not placed there again before the reservation ends.
So each job leaves each of its nodes at most once for this cause, and no loop holds one.

Nor is there a longer loop that a guarantee is part of, unless something ends, arrives, is reserved or has
a better rank: the sum over all accounts of min(held, guaranteed) never falls then, and each preemption for
a guarantee, whose victims are all of other accounts, raises it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from djinn_lab.jobs.decision.plan import Preemption
from djinn_lab.jobs.decision.rules.guarantees import GuaranteeCheck
from djinn_lab.jobs.decision.rules.interleaving import BRIEF_S, longer_at_home
from djinn_lab.jobs.decision.rules.keys import (
    attained_queue,
    attained_s,
    devices_of,
    effective_rank,
    estimate_s,
    remaining_s,
    weight,
    within_key,
)
from djinn_lab.jobs.decision.rules.limiting import members_allowed
from djinn_lab.jobs.decision.rules.policy import PROMISING_BACKFILL, Cause
from djinn_lab.jobs.decision.state.running import RunningJobs
from djinn_lab.jobs.decision.trial import Trial, charge_for, fits_at
from djinn_lab.jobs.fairness.account import AccountNode
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, Holding, Request, Where, members_in

PREFILL_RUN_S = 0.01
"""So long a prefill runs at the least before it is preempted for a decode step, however short that is."""
RETRY_S = 0.1
"""A preempted job that is within a guarantee may preempt again after this time."""


class PreemptionVictim(NamedTuple):
    """A job that may be preempted. Sorted, the first victim comes first: worst rank, least cost, longest
    remaining time."""

    better_rank: int
    cost_s: float
    shortness: float
    number: int
    holding: Holding
    cause: Cause
    theirs: AccountNode


class RunningGroup(NamedTuple):
    """Running jobs on one side of an ancestor of the candidate's account. ``mine``: that ancestor;
    ``theirs``: the sibling that the jobs belong to, ``mine`` itself for the candidate's own account.
    ``behind_s``: by how much ``mine`` would still be better entitled than ``theirs``. ``claims``: with the
    candidate, ``mine`` is within its guarantee."""

    mine: AccountNode
    theirs: AccountNode
    runners: RunningJobs
    behind_s: float
    claims: bool = False


class VictimSelection(NamedTuple):
    victims: tuple[PreemptionVictim, ...]
    where: Where
    cost_s: float


def find(trial: Trial, request: Request, node: str | None = None) -> Preemption | None:
    """Return the cheapest preemption with which the request is placed (``node``: on this one); None when
    there is none. Leaves the trial as it was."""
    if request.preempted_at_s is not None and request.preempted_at_s >= trial.now_s:
        if trial.guarantees is not None and trial.guarantees.claims_anywhere(request):
            trial.wake_by(trial.now_s + RETRY_S)
        return None
    if trial.cluster.worst_rank < effective_rank(request, trial.policy, trial.now_s):
        return None
    search = _VictimSearch(trial, request)
    victims = sorted(search.eligible(), key=lambda victim: victim[:4])
    if not victims:
        return None
    best = None
    if any(victim.cause == "guarantee" for victim in victims):
        best = _cheapest(search, [one for one in victims if one.theirs is not search.claim.account], node)
        victims = [one for one in victims if one.cause != "guarantee"]
    if best is None and victims:
        best = _cheapest(search, victims, node)
    return None if best is None else _preemption(request, best)


def reclaim(trial: Trial, request: Request, node: str | None) -> Preemption | None:
    """Return the cheapest preemption as :func:`find`, on nodes that are reserved for the request
    (``node``: on this one), of jobs that overrun there. The operator's reservation overrides ranks, shares
    and minimum run times."""
    overruns = trial.overruns.against(request, node) if trial.overruns else []
    if not overruns:
        return None
    if request.preempted_at_s is not None and request.preempted_at_s >= trial.now_s:
        trial.wake_by(trial.now_s + RETRY_S)
        return None
    search = _VictimSearch(trial, request)
    victims = (search.overrun_victim(one) for one in overruns if trial.can_be_preempted(one))
    best = _cheapest(search, sorted(victims, key=lambda victim: victim[:4]))
    return None if best is None else _preemption(request, best)


def find_prefill(trial: Trial, request: Request, node: str | None) -> Preemption | None:
    """Return the cheapest preemption as :func:`find`, of prefills for a decode step."""
    if request.preempted_at_s is not None and request.preempted_at_s >= trial.now_s:
        return None
    search = _VictimSearch(trial, request)
    best = _cheapest(search, sorted(search.prefills(), key=lambda victim: victim[:4]), node)
    return None if best is None else _preemption(request, best)


def _preemption(request: Request, found: VictimSelection) -> Preemption:
    return Preemption(
        request.job,
        tuple(victim.holding.request.job for victim in found.victims),
        found.where,
        tuple(victim.cause for victim in found.victims),
        found.cost_s,
    )


class _VictimSearch:
    """Compares a candidate with the running jobs, account by account or, where many stand beside the
    candidate's own ancestors, group by group. Jobs that are too small are not looked at. ``demand``: the
    candidate's, with no more members than its accounts' limits leave it, soft ones too. ``within``: the
    same, with no more members than its guarantees cover; for it, victims are preempted for a guarantee.
    ``longer``: the job that the candidate would not preempt, but run between the ops of."""

    def __init__(self, trial: Trial, request: Request) -> None:
        self.trial, self.request, self.policy = trial, request, trial.policy
        self.rank = effective_rank(request, trial.policy, trial.now_s)
        self.needed_s = estimate_s(request, trial.policy)
        seconds = min(self.needed_s, trial.shares.settings.quantum_s)
        gains = charge_for(request.demand, request.demand.members_min, seconds)
        self.claim = trial.shares.claim(request.account, gains, trial.now_s)
        self.promised = self.policy.backfill in PROMISING_BACKFILL and bool(trial.blocked)
        self.size = self.needed_s * weight(request.demand, self.policy) * self.policy.shorter_factor
        fair = self.policy.by_fairness and "fairness" in self.policy.preempts
        self.fair_s = self.policy.fair_margin_s if fair else math.inf
        self.runners = trial.runners
        self.guarantees = trial.guarantees
        self.longer = longer_at_home(trial, request)
        allowed = members_allowed(trial.cluster, trial.shares, request, trial.more, soft=True)
        self.demand = request.demand
        if allowed < request.demand.members:
            self.demand = replace(request.demand, members=allowed)
        self.within = self.demand
        self.shorter = (
            "shorter" in self.policy.preempts and request.estimate_s is not None and self.size < trial.largest
        )

    def eligible(self) -> Iterator[PreemptionVictim]:
        """Yield the possible victims, none of a better rank: those of a worse rank where rank is a cause;
        all where service is, or whose account is ahead; of the others those that are larger."""
        if self.shorter:
            self.trial.wake_by(self.trial.next_end_s)
        by_service = "attained" in self.policy.preempts
        worse_than = -math.inf if "rank" in self.policy.preempts else math.inf
        for group in self._groups():
            behind_s = group.behind_s
            than = self.size if self.shorter and behind_s >= 0 else math.inf
            all_groups = by_service or behind_s > self.fair_s or group.claims
            if all_groups:
                than = -math.inf
            larger = self.runners.larger(group.runners, self.rank, than, min(than, worse_than))
            if not larger:
                continue
            spare_s = math.inf if all_groups or behind_s <= 0 else self._spare_s(group)
            for size, left_s, devices, holding in larger:
                charged_s, equal = holding.charged_until_s, holding.request.rank == self.rank
                if equal and charged_s is not None and (charged_s - self.trial.now_s) * devices > spare_s:
                    continue
                victim = self._victim(holding, left_s, size, group)
                if victim is not None:
                    yield victim

    def prefills(self) -> Iterator[PreemptionVictim]:
        """Yield the longer prefills, none of a better rank, whatever their accounts have had."""
        for group in self._groups():
            for size, left_s, _, holding in self.runners.larger(
                group.runners, self.rank, -math.inf, -math.inf
            ):
                if holding.request.phase == "prefill":
                    victim = self._victim(holding, left_s, size, group)
                    if victim is not None:
                        yield victim

    def _spare_s(self, group: RunningGroup) -> float:
        """Return the device time above which a victim, giving it back, makes its group the better entitled
        one. This rules out most larger jobs cheaply; rounding errs on the side of asking further."""
        return self.claim.spare_device_s(group.mine, group.theirs) * (1 + 1e-9)

    def _groups(self) -> Iterator[RunningGroup]:
        """Yield the running jobs by group, with the candidate's account against each."""
        account, guarantees = self.claim.account, self.guarantees
        if not self.policy.by_fairness and guarantees is None:
            yield RunningGroup(account, account, self.runners.pool, 0.0)
            return
        for mine, theirs, runners in self.runners.beside(account):
            behind_s = self.claim.behind_s(mine, theirs) if self.policy.by_fairness else 0.0
            claims = guarantees is not None and guarantees.claims(mine, self.request)
            if claims:
                self._cover(mine)
            yield RunningGroup(mine, theirs, runners, behind_s, claims)
        own = self.runners.own(account)
        if own is not None:
            yield RunningGroup(account, account, own, 0.0)

    def _cover(self, mine: AccountNode) -> None:
        assert self.guarantees is not None
        covered = self.guarantees.members_within(mine, self.within)
        if covered < self.within.members:
            self.within = replace(self.within, members=covered)

    def _victim(
        self, holding: Holding, left_s: float, size: float, group: RunningGroup
    ) -> PreemptionVictim | None:
        policy, victim = self.policy, holding.request
        if not self.trial.can_be_preempted(holding):
            return None
        if victim.preempted >= policy.preemptions_max and self.request.rank > 0:
            return None
        rank = effective_rank(victim, policy, self.trial.now_s)
        cause = self._cause(holding, rank, size, left_s, group)
        if cause is None or self._protected(holding, cause) or (self.promised and left_s < self.needed_s):
            return None
        return PreemptionVictim(
            -rank, _cost_s(holding), -left_s, -victim.number, holding, cause, group.theirs
        )

    def overrun_victim(self, holding: Holding) -> PreemptionVictim:
        victim, now_s, mine = holding.request, self.trial.now_s, self.claim.account
        rank = effective_rank(victim, self.policy, now_s)
        left_s = remaining_s(holding, self.policy, now_s)
        return PreemptionVictim(
            -rank, _cost_s(holding), -left_s, -victim.number, holding, "reservation", mine
        )

    def _protected(self, holding: Holding, cause: Cause) -> bool:
        """Return whether the job is in its minimum run time; then the trial wakes at its end."""
        default_s = self.policy.min_runtime_s
        if cause == "decode":  # so prefills and decode steps each have half of the device, at the least
            default_s = min(default_s, max(self.needed_s, PREFILL_RUN_S))
        if holding is self.longer:
            default_s = min(default_s, BRIEF_S)
        least_s = self.trial.shares.min_runtime_s(holding.request.account, self.request.account, default_s)
        until_s = max(holding.exempt_until_s, holding.started_s + least_s)
        self.trial.wake_by(until_s)
        return self.trial.now_s < until_s

    def _cause(
        self, holding: Holding, rank: int, size: float, left_s: float, group: RunningGroup
    ) -> Cause | None:
        """Return the first cause that lets the candidate preempt this job. The candidate can only be less
        behind when the other account is given back what the stopped job does not use."""
        policy, request, behind_s = self.policy, self.request, group.behind_s
        if self.rank < rank and "rank" in policy.preempts:
            return "rank"
        if self.rank > rank or self._guaranteed(holding, group):
            return None
        if group.claims:
            return "guarantee"
        if self.rank != rank:
            return None
        if "decode" in policy.preempts:
            if self._is_step_before(request, self.needed_s, holding.request, left_s):
                return "decode"
            if self._is_step_before(holding.request, left_s, request, self.needed_s):
                return None
        if "attained" in policy.preempts:
            return "attained" if _less_served(self.trial, request, holding) else None
        margin_s = self.fair_s + policy.park_factor * holding.park_s
        larger = self.shorter and behind_s >= 0 and self.size < size
        if not larger and behind_s <= margin_s:
            return None
        if policy.by_fairness and request.account != holding.request.account:
            unused = self.trial.unused(holding)
            behind_s = self.claim.still_behind_s(group.mine, group.theirs, unused)
            if behind_s > margin_s:
                return "fairness"
        return "shorter" if larger and behind_s >= 0 else None

    def _is_step_before(self, step: Request, step_s: float, prefill: Request, prefill_s: float) -> bool:
        """Return whether the one is a decode step that goes before the other, a longer prefill. Parking does
        not count, since a step is one only once its memory is granted."""
        if step.phase != "decode" or prefill.phase != "prefill":
            return False
        return (self.policy.min_runtime_s if step.estimate_s is None else step_s) < prefill_s

    def _guaranteed(self, holding: Holding, group: RunningGroup) -> bool:
        """Return whether the job is within its account's guarantee. That counts against other accounts, not
        within the account."""
        if self.guarantees is None or group.mine is group.theirs:
            return False
        return self.guarantees.protects(group.theirs, holding)


def _cost_s(holding: Holding) -> float:
    return holding.park_s * (1 + holding.request.preempted)


def _less_served(trial: Trial, request: Request, holding: Holding) -> bool:
    queue = attained_queue(holding, trial.policy, trial.now_s)
    limits = trial.policy.attained_limits_s
    if queue < len(limits):
        members = members_in(holding.where)
        rate = devices_of(holding.request.demand, members)
        if rate:
            had_s = attained_s(holding, trial.now_s)
            trial.wake_by(trial.now_s + (limits[queue] - had_s) / rate)
    return within_key(request, trial.policy)[0] < queue


def _cheapest(
    search: _VictimSearch, victims: Sequence[PreemptionVictim], node: str | None = None
) -> VictimSelection | None:
    """Return the cheapest selection (``node``: on this one); on one node where one suffices."""
    allowed = search.trial.allowed(search.request) if node is None else frozenset({node})
    return _on_one_node(search, victims, allowed) or _attempt(search, victims, allowed)


def _on_one_node(
    search: _VictimSearch, victims: Sequence[PreemptionVictim], allowed: frozenset[str] | None
) -> VictimSelection | None:
    """Return the cheapest selection that frees a single node. On another node than its home, the
    candidate's move is part of the cost."""
    trial, request = search.trial, search.request
    least = devices_of(request.demand, request.demand.members_min)
    by_node: dict[str, list[PreemptionVictim]] = {}
    for victim in victims:
        for node, _ in victim.holding.where:
            by_node.setdefault(node, []).append(victim)
    best: VictimSelection | None = None
    for node, on_node in sorted(by_node.items(), key=lambda item: item[1][0][:4]):
        if allowed is not None and node not in allowed:
            continue
        if trial.cluster.nodes[node].devices < least:
            continue
        move_s = trial.cluster.move_s(request, node)
        if best is not None and on_node[0].cost_s + move_s >= best.cost_s:
            continue
        found = _attempt(search, on_node, frozenset({node}))
        if found is not None and (best is None or found.cost_s + move_s < best.cost_s):
            best = found = found._replace(cost_s=found.cost_s + move_s)
            if len(found.victims) == 1 and found.victims[0] is on_node[0] and not found.cost_s:
                break
    return best


def _attempt(
    search: _VictimSearch, victims: Sequence[PreemptionVictim], only: frozenset[str] | None
) -> VictimSelection | None:
    """Preempt victims one by one until the request fits, then spare those that were not needed. Undone at
    the end."""
    trial, request = search.trial, search.request
    capacity, demand = trial.capacity, search.demand
    preempted_for = None if trial.guarantees is None else GuaranteeCheck(trial.guarantees, request)
    whole = demand.device_milli == WHOLE_DEVICE_MILLI
    mark = capacity.checkpoint()
    gone: list[PreemptionVictim] = []
    try:
        for victim in victims:
            if len(gone) == trial.policy.victims_max:
                return None
            unconditional = victim.cause in ("rank", "reservation")
            if preempted_for is not None and not preempted_for.admits(
                victim.holding, unconditional=unconditional
            ):
                continue
            capacity.give(victim.holding.request.demand, victim.holding.where)
            gone.append(victim)
            if victim.cause == "guarantee":
                demand = search.within
            if whole and capacity.devices_free < demand.members_min:
                continue
            placed = capacity.place(demand, trial.scoring, request.home, only)
            if placed is not None:
                capacity.take(demand, placed.where)
                needed = tuple(one for one in gone if not _can_stay(trial, one))
                return VictimSelection(needed, placed.where, sum(one.cost_s for one in needed))
        return None
    finally:
        capacity.rollback(mark)


def _can_stay(trial: Trial, victim: PreemptionVictim) -> bool:
    """Return whether the victim fits beside the preemptor after all; then its capacity is taken again."""
    demand, where = victim.holding.request.demand, victim.holding.where
    if fits_at(trial.capacity, demand, where):
        trial.capacity.take(demand, where)
        return True
    return False
