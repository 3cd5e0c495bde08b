"""Who may be asked to move aside for whom, and which of them costs least.

A preemption is only ever proposed inside a transaction on the room that ended with the preemptor placed;
every victim that turned out not to be needed is spared, and the place is then kept for the preemptor alone.

**No two jobs preempt each other in a loop at one moment.** At one moment (with nothing arriving or ending)
let P be the jobs that have been preempted at it. A preemption needs a preemptor that is not in P
(:func:`find` refuses those with ``preempted_at_s`` = now) and that waits, and it puts at least one job into
P. A job starts at most once without being in P, and every further start needs it to have been preempted,
hence in P, hence no preemptor any more. So at one moment there are at most as many preemptions as jobs.
QED.

**A preempted job that is handed in again at once triggers nothing**, now or later, unless something changed.
Each cause is a strict order on keys that a job has whether it waits or runs (:mod:`.keys`):
- rank: c before v means rank(c) < rank(v); then v before c is false;
- fairness: level(A with c) + margin < level(B without v), below their lowest common ancestor. v against c
  would need level(B with v) < level(A without c) <= level(A with c) < level(B without v) <= level(B with v);
- shorter: size(c) x factor < size(v) less parking, factor >= 1, park >= 0; and where accounts differ, the
  fairness order above with margin 0 must not stand against it;
- attained: queue(c) < queue(v), of attained service.
They are tried in this order and a worse rank ends the question, so the union is free of pairs as well.

**Guarantees** (:mod:`.guarantees`) come after the rank and before the other three. Let A and B be the
accounts of c and v below their lowest common ancestor, G what they are guaranteed, h what they hold without c
and v (who leaves does not hold, who is promised a place does). c is within its guarantee when
h(A) + c <= G(A), whether it waits or runs. Where accounts have guarantees,
- c may preempt v for its guarantee when c is within it, v's rank is not better, and B without v holds no
  less than its own; for fairness, shortness and attained service c may preempt v of another account only
  where B does;
- whatever the cause but the rank or a reservation, all that leave for c together leave no account, of any
  level, with less of its guarantee than it held, c counted (:class:`~.guarantees.Leaving`).
Suppose c preempts v of another account so. Then h(B) >= G(B) once all have left, so v is not within, and v
against c is no preemption for a guarantee. If c came by its guarantee, A without c holds less than its own,
so v against c is none for the other three, nor for its rank. If c came by one of the three, their proofs
above are what they were: guarantees only take from them. If c came by its rank, v has the worse one.

**A reservation** that has begun (:func:`reclaim`) puts whoever it admits before whoever it does not, on its
nodes, whatever else: who had to leave such a node is not placed there again before the reservation ends, so
each job leaves each of its nodes at most once for this cause, and no loop holds one.

Nor is there a longer loop that a guarantee is part of, unless something ends, arrives, is reserved or has a
better rank: the sum over all accounts of min(held, guaranteed) never falls then, and each preemption for a
guarantee, whose victims are all of others, raises it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from djinn_lab.jobs.decision.guarantees import Leaving
from djinn_lab.jobs.decision.keys import (
    attained_queue,
    attained_s,
    devices_of,
    effective_rank,
    estimate_s,
    remaining_s,
    weight,
    within_key,
)
from djinn_lab.jobs.decision.limiting import members_allowed
from djinn_lab.jobs.decision.plan import Preemption
from djinn_lab.jobs.decision.policy import PROMISING, Cause
from djinn_lab.jobs.decision.runners import Runners
from djinn_lab.jobs.decision.trial import Trial, charge_for, fits_at
from djinn_lab.jobs.fairness.account import Account
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, Holding, Request, Where, members_in

AGAIN_S = 0.1
"""So long after it has moved aside a job that is within a guarantee asks others to."""


class Victim(NamedTuple):
    """Sorted, the first to go comes first: worst rank, least cost, longest to run still."""

    better_rank: int
    cost_s: float
    shortness: float
    number: int
    holding: Holding
    cause: Cause
    theirs: Account


class Group(NamedTuple):
    """Those who run on one side of an account of the candidate's line. ``mine``: that account; ``theirs``:
    its sibling that they belong to, itself for the candidate's own. ``behind_s``: by how much ``mine`` would
    still be better entitled than ``theirs``. ``claims``: with the candidate, ``mine`` is within what it is
    guaranteed."""

    mine: Account
    theirs: Account
    runners: Runners
    behind_s: float
    claims: bool = False


class Found(NamedTuple):
    victims: tuple[Victim, ...]
    where: Where
    cost_s: float


def find(trial: Trial, request: Request) -> Preemption | None:
    """The cheapest preemption that gets it placed; None when there is none. Leaves the trial as it was."""
    if request.preempted_at_s is not None and request.preempted_at_s >= trial.now_s:
        if trial.standing is not None and trial.standing.claims_anywhere(request):
            trial.wake_by(trial.now_s + AGAIN_S)
        return None
    if trial.cluster.worst_rank < effective_rank(request, trial.policy, trial.now_s):
        return None
    contest = _Contest(trial, request)
    victims = sorted(contest.eligible(), key=lambda victim: victim[:4])
    if not victims:
        return None
    best = None
    if any(victim.cause == "guarantee" for victim in victims):
        best = _cheapest(contest, [one for one in victims if one.theirs is not contest.claim.account])
        victims = [one for one in victims if one.cause != "guarantee"]
    if best is None and victims:
        best = _cheapest(contest, victims)
    return None if best is None else _preemption(request, best)


def reclaim(trial: Trial, request: Request, node: str | None) -> Preemption | None:
    """As :func:`find`, of nodes that are reserved for it (``node``: of this one), from those who overstay
    there. An operator said so, so neither ranks and shares nor a minimum run time stand against it."""
    overstaying = trial.overstaying.against(request, node) if trial.overstaying else []
    if not overstaying:
        return None
    if request.preempted_at_s is not None and request.preempted_at_s >= trial.now_s:
        trial.wake_by(trial.now_s + AGAIN_S)
        return None
    contest = _Contest(trial, request)
    victims = (contest.overstayer(one) for one in overstaying if trial.may_leave(one))
    best = _cheapest(contest, sorted(victims, key=lambda victim: victim[:4]))
    return None if best is None else _preemption(request, best)


def _preemption(request: Request, found: Found) -> Preemption:
    return Preemption(
        request.job,
        tuple(victim.holding.request.job for victim in found.victims),
        found.where,
        tuple(victim.cause for victim in found.victims),
        found.cost_s,
    )


class _Contest:
    """A candidate against those who run, account by account or, where they all stand together beside the
    candidate's own line, group by group. Those too small to have to go are not looked at. ``demand``: what
    it wants, with no more members than its accounts' limits leave it, soft ones too. ``within``: this, with
    no more than its guarantees cover; for it, others leave for a guarantee."""

    def __init__(self, trial: Trial, request: Request) -> None:
        self.trial, self.request, self.policy = trial, request, trial.policy
        self.rank = effective_rank(request, trial.policy, trial.now_s)
        self.needed_s = estimate_s(request, trial.policy)
        seconds = min(self.needed_s, trial.shares.settings.quantum_s)
        gains = charge_for(request.demand, request.demand.members_min, seconds)
        self.claim = trial.shares.claim(request.account, gains, trial.now_s)
        self.promised = self.policy.passing in PROMISING and bool(trial.blocked)
        self.size = self.needed_s * weight(request.demand, self.policy) * self.policy.shorter_factor
        fair = self.policy.by_fairness and "fairness" in self.policy.preempts
        self.fair_s = self.policy.fair_margin_s if fair else math.inf
        self.runners = trial.runners
        self.standing = trial.standing
        allowed = members_allowed(trial.cluster, trial.shares, request, trial.more, soft=True)
        self.demand = request.demand
        if allowed < request.demand.members:
            self.demand = replace(request.demand, members=allowed)
        self.within = self.demand
        self.shorter = (
            "shorter" in self.policy.preempts and request.estimate_s is not None and self.size < trial.largest
        )

    def eligible(self) -> Iterator[Victim]:
        """Nobody of a better rank. Those of a worse one where rank counts, everybody where service does or
        whose account is ahead, of the others those who are larger."""
        if self.shorter:
            self.trial.wake_by(self.trial.next_end_s)
        by_service = "attained" in self.policy.preempts
        worse_than = -math.inf if "rank" in self.policy.preempts else math.inf
        for group in self._groups():
            behind_s = group.behind_s
            than = self.size if self.shorter and behind_s >= 0 else math.inf
            everybody = by_service or behind_s > self.fair_s or group.claims
            if everybody:
                than = -math.inf
            larger = self.runners.larger(group.runners, self.rank, than, min(than, worse_than))
            if not larger:
                continue
            spare_s = math.inf if everybody or behind_s <= 0 else self._spare_s(group)
            for size, left_s, devices, holding in larger:
                charged_s, equal = holding.charged_until_s, holding.request.rank == self.rank
                if equal and charged_s is not None and (charged_s - self.trial.now_s) * devices > spare_s:
                    continue
                victim = self._victim(holding, left_s, size, group)
                if victim is not None:
                    yield victim

    def _spare_s(self, group: Group) -> float:
        """Who would give back more device time than this makes its group the better entitled one. Most of
        those that are larger are told so, cheaply; rounding errs on the side of asking further."""
        return self.claim.spare_device_s(group.mine, group.theirs) * (1 + 1e-9)

    def _groups(self) -> Iterator[Group]:
        """Who runs, and how the candidate's account stands against them."""
        account, standing = self.claim.account, self.standing
        if not self.policy.by_fairness and standing is None:
            yield Group(account, account, self.runners.pool, 0.0)
            return
        for mine, theirs, runners in self.runners.beside(account):
            behind_s = self.claim.behind_s(mine, theirs) if self.policy.by_fairness else 0.0
            claims = standing is not None and standing.claims(mine, self.request)
            if claims:
                self._cover(mine)
            yield Group(mine, theirs, runners, behind_s, claims)
        own = self.runners.own(account)
        if own is not None:
            yield Group(account, account, own, 0.0)

    def _cover(self, mine: Account) -> None:
        assert self.standing is not None
        covered = self.standing.members_within(mine, self.within)
        if covered < self.within.members:
            self.within = replace(self.within, members=covered)

    def _victim(self, holding: Holding, left_s: float, size: float, group: Group) -> Victim | None:
        policy, victim = self.policy, holding.request
        if not self.trial.may_leave(holding):
            return None
        if victim.preempted >= policy.preemptions_max and self.request.rank > 0:
            return None
        rank = effective_rank(victim, policy, self.trial.now_s)
        cause = self._cause(holding, rank, size, group)
        if cause is None or self._protected(holding) or (self.promised and left_s < self.needed_s):
            return None
        return Victim(-rank, _cost_s(holding), -left_s, -victim.number, holding, cause, group.theirs)

    def overstayer(self, holding: Holding) -> Victim:
        victim, now_s, mine = holding.request, self.trial.now_s, self.claim.account
        rank = effective_rank(victim, self.policy, now_s)
        left_s = remaining_s(holding, self.policy, now_s)
        return Victim(-rank, _cost_s(holding), -left_s, -victim.number, holding, "reservation", mine)

    def _protected(self, holding: Holding) -> bool:
        """In its minimum run time; then the trial wakes at its end."""
        default_s = self.policy.min_runtime_s
        least_s = self.trial.shares.min_runtime_s(holding.request.account, self.request.account, default_s)
        until_s = max(holding.exempt_until_s, holding.started_s + least_s)
        self.trial.wake_by(until_s)
        return self.trial.now_s < until_s

    def _cause(self, holding: Holding, rank: int, size: float, group: Group) -> Cause | None:
        """The first cause that lets the candidate preempt this one. It can only be less behind when the
        other account is given back what the stopped job does not use."""
        policy, request, behind_s = self.policy, self.request, group.behind_s
        if self.rank < rank and "rank" in policy.preempts:
            return "rank"
        if self.rank > rank or self._guaranteed(holding, group):
            return None
        if group.claims:
            return "guarantee"
        if self.rank != rank:
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

    def _guaranteed(self, holding: Holding, group: Group) -> bool:
        """Is it within its account's guarantee? That counts against others, not within the account."""
        if self.standing is None or group.mine is group.theirs:
            return False
        return self.standing.protects(group.theirs, holding)


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


def _cheapest(contest: _Contest, victims: Sequence[Victim]) -> Found | None:
    """Where one node suffices, there."""
    allowed = contest.trial.allowed(contest.request)
    return _on_one_node(contest, victims, allowed) or _attempt(contest, victims, allowed)


def _on_one_node(
    contest: _Contest, victims: Sequence[Victim], allowed: frozenset[str] | None
) -> Found | None:
    """The cheapest of the ways to make room on a single node."""
    trial, request = contest.trial, contest.request
    least = devices_of(request.demand, request.demand.members_min)
    by_node: dict[str, list[Victim]] = {}
    for victim in victims:
        for node, _ in victim.holding.where:
            by_node.setdefault(node, []).append(victim)
    best: Found | None = None
    for node, on_node in sorted(by_node.items(), key=lambda item: item[1][0][:4]):
        if allowed is not None and node not in allowed:
            continue
        if trial.cluster.nodes[node].devices < least:
            continue
        if best is not None and on_node[0].cost_s >= best.cost_s:
            continue
        found = _attempt(contest, on_node, frozenset({node}))
        if found is not None and (best is None or found.cost_s < best.cost_s):
            best = found
            if len(found.victims) == 1 and found.victims[0] is on_node[0] and not found.cost_s:
                break
    return best


def _attempt(contest: _Contest, victims: Sequence[Victim], only: frozenset[str] | None) -> Found | None:
    """Let them go one by one until it fits, then take back whoever need not have gone. Undone at the end."""
    trial, request = contest.trial, contest.request
    room, demand = trial.room, contest.demand
    leaving = None if trial.standing is None else Leaving(trial.standing, request)
    whole = demand.device_milli == WHOLE_DEVICE_MILLI
    mark = room.checkpoint()
    gone: list[Victim] = []
    try:
        for victim in victims:
            if len(gone) == trial.policy.victims_max:
                return None
            anyhow = victim.cause in ("rank", "reservation")
            if leaving is not None and not leaving.admits(victim.holding, anyhow=anyhow):
                continue
            room.give(victim.holding.request.demand, victim.holding.where)
            gone.append(victim)
            if victim.cause == "guarantee":
                demand = contest.within
            if whole and room.devices_free < demand.members_min:
                continue
            placed = room.place(demand, trial.scoring, request.home, only)
            if placed is not None:
                room.take(demand, placed.where)
                needed = tuple(one for one in gone if not _stays(trial, one))
                return Found(needed, placed.where, sum(one.cost_s for one in needed))
        return None
    finally:
        room.rollback(mark)


def _stays(trial: Trial, victim: Victim) -> bool:
    """There is room for it beside the preemptor after all; then it has it again."""
    demand, where = victim.holding.request.demand, victim.holding.where
    if fits_at(trial.room, demand, where):
        trial.room.take(demand, where)
        return True
    return False
