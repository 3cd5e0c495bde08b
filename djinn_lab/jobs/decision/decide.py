"""The decision: a pure function of cluster, shares, policy and time.

Candidates come in the order of the policy (:mod:`.waiting`, :mod:`.keys`): by effective rank; where the
policy is fair, by the Fair Tree order of their accounts, looked at again after every start, since a start
is charged at once; then by the policy's key. One look at the first of an equivalence class answers for the
whole class.

Before that, decode steps that wait behind larger prefills may preempt these, whatever the order.

A candidate that fits starts, unless that would delay a job ahead with a promised start (EASY: the first k
that could not start; conservative: all of them). One that does not fit may preempt (:mod:`.preempting`).
If it cannot, it is promised a start, and the policy says whether later candidates may be backfilled. All
of it happens in transactions on capacity and shares that are rolled back at the end: :func:`decide`
changes nothing, :mod:`.enact` does."""

from __future__ import annotations

import math

from msgspec.structs import replace

from djinn_lab.jobs.decision.explaining.verdicts import DecisionTrace, Reason
from djinn_lab.jobs.decision.plan import Plan, Preemption
from djinn_lab.jobs.decision.rules import preempting
from djinn_lab.jobs.decision.rules.guarantees import Guarantees
from djinn_lab.jobs.decision.rules.interleaving import joins_free, joins_running
from djinn_lab.jobs.decision.rules.keys import estimate_s, steps, within_key
from djinn_lab.jobs.decision.rules.limiting import members_allowed, soft_limit, start_limit
from djinn_lab.jobs.decision.rules.policy import PROMISING_BACKFILL, QueuePolicy
from djinn_lab.jobs.decision.rules.shortcuts import GuaranteeSearch, PreemptionAttempts, start_only_job
from djinn_lab.jobs.decision.state.cluster import Cluster
from djinn_lab.jobs.decision.state.waiting import Bucket, Cursor, WaitingIndex
from djinn_lab.jobs.decision.trial import Trial, fits_at
from djinn_lab.jobs.fairness import LimitHit, ShareTree
from djinn_lab.jobs.placement import Placed
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, Demand, Request, members_in

HOME_WAITS_MAX = 6.0
"""After so many times its patience a candidate starts, or preempts, on any device: others were always before
it at home. The wait is bounded as in delay scheduling (Zaharia et al., EuroSys 2010)."""


def decide(
    cluster: Cluster, shares: ShareTree, policy: QueuePolicy, now_s: float, trace: DecisionTrace | None = None
) -> Plan:
    """Return what is to be done now. ``trace`` records the verdict on every class that was looked at."""
    shares.advance(now_s)
    if trace is None and _nothing_to_decide(cluster, policy, now_s):
        return Plan(now_s, promised=policy.backfill == "conservative")
    if trace is None and (only_start := start_only_job(cluster, shares, policy, now_s)) is not None:
        return only_start
    index = cluster.index(policy, now_s)
    counts = shares.guarantees and policy.preempts and cluster.waiting
    guarantees = Guarantees.tracked(cluster, shares) if counts else None
    capacity_mark, shares_mark = cluster.capacity.checkpoint(), shares.checkpoint()
    standing_mark = 0 if guarantees is None else guarantees.checkpoint()
    try:
        return _Decision(Trial(cluster, shares, policy, now_s, guarantees), trace, index).run(index)
    finally:
        if guarantees is not None:
            guarantees.rollback(standing_mark)
        shares.rollback(shares_mark)
        cluster.capacity.rollback(capacity_mark)


def _nothing_to_decide(cluster: Cluster, policy: QueuePolicy, now_s: float) -> bool:
    """Return whether no job waits, no charge of a running job is used up, and no device is reserved."""
    if cluster.waiting or cluster.calendar:
        return False
    return not (policy.by_fairness and cluster.holdings and cluster.charge_due(now_s)[0])


class _Decision:
    """``why``: what kept the last candidate from being placed. ``unmet``: what accounts hold, where a
    waiting account has less than it is guaranteed. ``spent``: no candidate can start or is tried any more,
    but for a guarantee. ``full_homes``: where a demand does not fit; capacity only shrinks in a decision."""

    def __init__(self, trial: Trial, trace: DecisionTrace | None, index: WaitingIndex) -> None:
        self.trial = trial
        self.trace = trace
        self.policy = trial.policy
        self.full_homes: set[tuple[str, Demand]] = set()
        self.attempts = PreemptionAttempts(self.policy)
        guarantees = trial.guarantees
        self.unmet = guarantees if guarantees is not None and guarantees.unmet else None
        self.guarantee_search = None if self.unmet is None else GuaranteeSearch(trial, self.unmet, index)
        self.spent = False
        self.rank = 0
        self.stopped = False
        self.why = Reason.BUSY
        self.deferred: list[Cursor] = []

    def run(self, index: WaitingIndex) -> Plan:
        trial = self.trial
        trial.top_up()
        self._use_reserved_capacity()
        self._preempt_prefills()
        for rank in sorted(index.ranks):
            self.rank = rank
            self._walk(index.ranks[rank])
        self._above_soft_limits()
        if trial.blocked and self.trace is not None:
            trial.book()
        if len(trial.cluster.waiting) > len(trial.starts) + len(trial.interleavings):
            trial.wake_by(index.next_change_s())
        return Plan(
            trial.now_s,
            tuple(trial.starts),
            tuple(trial.preemptions),
            tuple(trial.reservations),
            tuple(trial.top_ups),
            None if trial.wake_s == math.inf else trial.wake_s,
            trial.keeps_promises,
            tuple(trial.released),
            tuple(trial.interleavings),
        )

    def _use_reserved_capacity(self) -> None:
        """Handle reserved capacity: start its job where all victims have stopped, else close it to other
        jobs. Release it where its account's limits forbid it now, other accounts have it reserved, or
        memory does not fit."""
        trial, cluster = self.trial, self.trial.cluster
        for reservation in cluster.reserved.values():
            request, members = cluster.waiting[reservation.job], members_in(reservation.where)
            left = not any(
                cluster.preempted_for.get(victim) == reservation.job for victim in reservation.victims
            )
            hit = start_limit(cluster, trial.shares, request, trial.now_s, trial.more, members)
            if left and hit is not None:
                trial.wake_by(hit.until_s or 0.0)
                trial.release_reservation(reservation)
                self._note(request, Reason.ACCOUNT_LIMIT, hit)
            elif left and not trial.reserved_from(request).isdisjoint(node for node, _ in reservation.where):
                trial.release_reservation(reservation)
                self._note(request, Reason.CALENDAR)
            elif left and request.stuck:
                trial.release_reservation(reservation)
                self._note(request, Reason.NOT_READY)
            elif left and request.startable and fits_at(trial.capacity, request.demand, reservation.where):
                trial.start(request, Placed(reservation.where, {}), on_reserved=True)
                self._note(request, Reason.STARTS_NOW)
            else:
                trial.reserve(request, reservation.where, reservation.victims)
                trial.count(request, members)
                self._note(request, Reason.PREEMPTING)

    def _preempt_prefills(self) -> None:
        """Let decode steps that wait for nothing but a device preempt prefills, the shortest step first."""
        trial, cluster = self.trial, self.trial.cluster
        if "decode" not in self.policy.preempts or not (cluster.prefills and cluster.decode_steps):
            return
        left, prefills = self.policy.preempt_depth, cluster.prefills
        for request in sorted(cluster.decode_steps.values(), key=lambda one: within_key(one, self.policy)):
            if not (left and prefills):
                return
            if request.job in cluster.reserved or not request.startable or self._is_limited(request):
                continue
            if self._place(request) is not None or self.why is not Reason.BUSY:
                continue
            found = preempting.find_prefill(trial, request, self._only_node(request, claims=False))
            if found is None:
                left -= 1
            elif joins_running(trial, request, found):
                trial.interleave(request, found.where[0][0])
            else:
                prefills -= len(found.victims)
                self._preempt(request, found)

    def _is_limited(self, request: Request) -> bool:
        """Return whether an account's limit keeps the request from starting, a soft one too."""
        cluster, shares, more = self.trial.cluster, self.trial.shares, self.trial.more
        hit = start_limit(cluster, shares, request, self.trial.now_s, more)
        return hit is not None or soft_limit(cluster, shares, request, more) is not None

    # -- in order --------------------------------------------------------------------------------------------

    def _walk(self, buckets: dict[str, Bucket]) -> None:
        """Look at the candidates of one rank in order. The fair-share order is asked again after every
        charge."""
        if self._exhausted:
            return
        if not self.policy.by_fairness:
            self._take_turns([Cursor(buckets[""])])
            return
        cursors: dict[str, Cursor | None] = dict.fromkeys(buckets)
        self.trial.shares.register(buckets.keys())
        while cursors and not self._exhausted and not self._round(buckets, cursors):
            pass

    def _round(self, buckets: dict[str, Bucket], cursors: dict[str, Cursor | None]) -> bool:
        """Go through the groups of accounts of equal rank. True when all have been looked at and none was
        charged."""
        if len(cursors) == 1:
            return self._alone(buckets, cursors)
        for group in self.trial.shares.order(cursors.keys()):
            here = []
            due = self._due if len(group) == 1 else None
            for leaf in group:
                if due is not None and leaf.account not in due:
                    cursors.pop(leaf.account, None)
                if leaf.account in cursors:
                    cursor = cursors[leaf.account] or Cursor(buckets[leaf.account])
                    cursors[leaf.account] = cursor
                    here.append(cursor)
            if not here:
                continue
            if self._take_turns(here):
                return False
            if self._exhausted:
                return True
            for leaf in group:
                cursors.pop(leaf.account, None)
            if not cursors:
                return True
        return True

    def _alone(self, buckets: dict[str, Bucket], cursors: dict[str, Cursor | None]) -> bool:
        """Look at the one account that is left, whatever the shares are."""
        [(account, cursor)] = cursors.items()
        due = self._due
        if due is not None and account not in due:
            return True
        cursor = cursors[account] = cursor or Cursor(buckets[account])
        return not self._take_turns([cursor])

    def _take_turns(self, cursors: list[Cursor]) -> bool:
        """Look at the candidates of accounts of equal rank, by key. True when an account was charged."""
        before = len(self.trial.admitted)
        while not self._exhausted:
            heads = [(head, cursor) for cursor in cursors if (head := cursor.head) is not None]
            if not heads:
                return False
            cursor = heads[0][1] if len(heads) == 1 else min(heads)[1]
            self._look(cursor)
            if self.policy.by_fairness and len(self.trial.admitted) != before:
                return True
        return False

    @property
    def _exhausted(self) -> bool:
        """Return whether no other candidate can start or preempt, so that none need be looked at."""
        if self.stopped:
            return True
        if not self.spent:
            self.spent = (
                self.attempts.left <= 0
                and not self.trial.overruns
                and self.trace is None
                and not self.trial.keeps_promises
                and not self.trial.cluster.sharing
                and not self.trial.capacity.devices_free
            )
        return self.spent and (self.guarantee_search is None or self._due == set())

    @property
    def _due(self) -> set[str] | None:
        """Accounts whose candidates are worth a look; None: all."""
        return self.guarantee_search.due() if self.spent and self.guarantee_search is not None else None

    def _look(self, cursor: Cursor) -> None:
        """Decide on the cursor's candidate, and move the cursor on."""
        trial = self.trial
        request = trial.cluster.waiting[cursor.job]
        if request.job in trial.cluster.reserved:
            cursor.next_of_class()
            return
        due = self._due
        if due is not None and (request.account not in due or self.attempts.cannot_use_guarantee(request)):
            self._drop_unsatisfiable(cursor)
            return
        if not request.startable:
            self._note(request, Reason.NOT_READY)
            cursor.drop_class()
            return
        hit = start_limit(trial.cluster, trial.shares, request, trial.now_s, trial.more)
        if hit is not None:
            trial.wake_by(hit.until_s or 0.0)
            self._note(request, Reason.ABOVE_LIMIT if hit.never else Reason.ACCOUNT_LIMIT, hit)
            cursor.drop_class()
            return
        hit = soft_limit(trial.cluster, trial.shares, request, trial.more)
        if hit is not None:
            self.deferred.append(cursor.of_class())
            self._note(request, Reason.SOFT_LIMIT, hit)
            cursor.drop_class()
            return
        self._attempt(request, cursor)

    def _drop_unsatisfiable(self, cursor: Cursor) -> None:
        """Drop the cursor's class, and the following ones that cannot start either."""
        cluster, attempts = self.trial.cluster, self.attempts
        cursor.drop_class()
        while cursor.head is not None:
            request = cluster.waiting[cursor.job]
            if request.job in cluster.reserved or not attempts.cannot_use_guarantee(request):
                return
            cursor.drop_class()

    def _above_soft_limits(self) -> None:
        """Let jobs above their soft limits have what is left when all others have been looked at."""
        for cursor in self.deferred:
            while cursor.head is not None and not self.stopped:
                request = self.trial.cluster.waiting[cursor.job]
                hit = start_limit(
                    self.trial.cluster, self.trial.shares, request, self.trial.now_s, self.trial.more
                )
                placed = self._place(request) if hit is None else None
                if placed is None:
                    break
                self._start(request, placed, cursor)

    # -- one candidate ---------------------------------------------------------------------------------------

    def _attempt(self, request: Request, cursor: Cursor) -> None:
        """Start the candidate, let it preempt, or note why not."""
        if self.trial.keeps_promises:
            self.trial.release(request)
        placed = self._place(request)
        if placed is not None:
            self._start(request, placed, cursor)
            return
        found = self._find_victims(request)
        if found is not None and joins_running(self.trial, request, found):
            self._interleave(request, found.where[0][0], cursor)
            return
        if found is not None:
            self._preempt(request, found)
            cursor.next_of_class()
            return
        raised = steps(request, self.policy, self.trial.now_s) > 0
        if self.why is Reason.BUSY and self._impossible(request, raised):
            self.why = Reason.IMPOSSIBLE
        self._note(request, Reason.BEHIND if self.why is Reason.BUSY and self.trial.blocked else self.why)
        if self.why is Reason.BUSY or (self.why is Reason.RESERVED and self.trial.keeps_promises):
            self._block(request, cursor, raised)
        elif self.why is Reason.RESERVED and not self.policy.shortest_first:
            cursor.shorter_of_class(self.trial.cluster.waiting)
        else:
            cursor.drop_class()

    def _impossible(self, request: Request, raised: bool) -> bool:
        """Return whether the candidate can never start, and so blocks none. Not computed where no job blocks
        another."""
        asked = raised or self.trace is not None or self.policy.backfill not in ("always", "starving")
        return asked and not self.trial.capacity.ever_fits(request.demand)

    def _interleave(self, request: Request, node: str, cursor: Cursor) -> None:
        self.trial.interleave(request, node)
        self._note(request, Reason.STARTS_NOW)
        cursor.next_of_class()

    def _start(self, request: Request, placed: Placed, cursor: Cursor) -> None:
        if joins_free(self.trial, request, placed):
            self._interleave(request, placed.where[0][0], cursor)
            return
        self.trial.start(request, placed, backfilled=bool(self.trial.blocked))
        self._note(request, Reason.STARTS_NOW)
        cursor.next_of_class()

    def _block(self, request: Request, cursor: Cursor, raised: bool) -> None:
        """Record that the candidate is ahead of those that follow, and may be promised a start.
        ``raised``: by age or its deadline."""
        match self.policy.backfill:
            case "never":
                self.trial.promise(request)
                self.stopped = True
            case "conservative":
                self.trial.promise(request)
                self.trial.book()
                cursor.next_of_class()
                return
            case "easy":
                if len(self.trial.blocked) < self.policy.reservations:
                    self.trial.promise(request)
            case "starving":
                if raised and len(self.trial.blocked) < self.policy.reservations:
                    self.trial.promise(request)
            case "always":
                pass
        cursor.drop_class()

    def _find_victims(self, request: Request) -> Preemption | None:
        if self.trial.overruns:
            home = request.home if self.why is Reason.HOME else None
            found = preempting.reclaim(self.trial, request, home)
            if found is not None:
                return found
        claims = self.unmet is not None and self.unmet.claims_anywhere(request)
        if self.why is Reason.BUSY and (self.attempts.left > 0 or claims):
            return self.attempts.find(self.trial, request, claims, self._only_node(request, claims))
        return None

    def _only_node(self, request: Request, claims: bool) -> str | None:
        """Return the home of a candidate that preempts nowhere else, since waiting for its home costs less
        than the move would."""
        if request.home is None or claims:
            return None
        wait_s = self._home_wait_s(request, self._demand(request), self.trial.allowed(request))
        return None if wait_s is None else request.home

    def _preempt(self, request: Request, found: Preemption) -> None:
        """Plan the preemption; until the victims have stopped, no other job starts on those nodes."""
        trial = self.trial
        trial.preemptions.append(found)
        trial.victims.update(found.victims)
        if trial.guarantees is not None:
            for victim in found.victims:
                trial.guarantees.remove(trial.cluster.holdings[victim])
        trial.reserve(request, found.where, found.victims)
        members = members_in(found.where)
        trial.admit(request, members, estimate_s(request, self.policy))
        self._note(request, Reason.PREEMPTING)

    def _place(self, request: Request) -> Placed | None:
        """Return where the request could start now, with every promise kept; None: ``why`` says what keeps
        it waiting."""
        trial, demand = self.trial, self._demand(request)
        self.why = Reason.BUSY
        if demand.device_milli == WHOLE_DEVICE_MILLI and not trial.capacity.devices_free:
            return None
        allowed = trial.allowed(request)
        if request.home is not None and (wait_s := self._home_wait_s(request, demand, allowed)) is not None:
            left_s = self._home_patience_s(request, demand, allowed) - trial.now_s + request.waits_since_s
            unclaimed = self._unclaimed(allowed) if left_s <= 0 else frozenset()
            if not unclaimed or trial.capacity.place(demand, trial.scoring, None, unclaimed) is None:
                trial.wake_by(trial.now_s + (min(wait_s, left_s) if left_s > 0 else wait_s))
                self.why = Reason.HOME
                return None
            allowed = unclaimed
        placed = trial.capacity.place(demand, trial.scoring, request.home, allowed)
        if placed is None:
            if trial.cluster.calendar and trial.capacity.place(
                demand, trial.scoring, None, trial.unreserved_nodes
            ):
                self.why = Reason.CALENDAR
            return None
        if not trial.keeps_promises and (not trial.blocked or self.policy.backfill not in PROMISING_BACKFILL):
            return placed
        if allowed is not None:
            demand = replace(demand, nodes=allowed if demand.nodes is None else demand.nodes & allowed)
        where = trial.book().now(demand, request.promised_s, trial.scoring, request.home)
        if where is None or not fits_at(trial.capacity, demand, where):
            self.why = Reason.RESERVED
            return None
        return placed if where == placed.where else Placed(where, {})

    def _home_wait_s(self, request: Request, demand: Demand, allowed: frozenset[str] | None) -> float | None:
        """Return the seconds to wait for its home, where that is busy and will be free before moving would
        pay; else None."""
        trial, home = self.trial, request.home
        assert home is not None
        node = trial.cluster.nodes.get(home)
        if request.move_s <= 0 or node is None:
            return None
        if not node.ready or node.cordoned or (allowed is not None and home not in allowed):
            return None
        if (home, demand) not in self.full_homes:
            if trial.capacity.place(demand, trial.scoring, home, frozenset({home})) is not None:
                return None
            self.full_homes.add((home, demand))
        wait_s = trial.home_wait_s(home)
        patience_s = self._home_patience_s(request, demand, allowed)
        if wait_s is None or wait_s > patience_s:
            return None
        if trial.now_s - request.waits_since_s > HOME_WAITS_MAX * patience_s:
            return None
        return wait_s or patience_s

    def _unclaimed(self, allowed: frozenset[str] | None) -> frozenset[str]:
        """Return the nodes where no waiting request has its state: a candidate that has waited long takes
        none from those."""
        nodes = self.trial.cluster.nodes if allowed is None else allowed
        return frozenset(node for node in nodes if node not in self.trial.cluster.waiting_at_home)

    def _home_patience_s(self, request: Request, demand: Demand, allowed: frozenset[str] | None) -> float:
        """Return the patience for the cheapest move that is possible now: within the host where a device of
        it is free."""
        move_s, capacity = request.move_s, self.trial.capacity
        assert request.home is not None
        if request.other_host_s > 0 and not capacity.fits_on_host(demand, request.home, allowed):
            move_s += request.other_host_s
        return max(self.policy.home_patience_s_min, self.policy.home_patience * move_s)

    def _demand(self, request: Request) -> Demand:
        """Return the demand with as many members as its accounts' limits leave it."""
        members = members_allowed(self.trial.cluster, self.trial.shares, request, self.trial.more)
        demand = request.demand
        return demand if members == demand.members else replace(demand, members=members)

    def _note(self, request: Request, reason: Reason, hit: LimitHit | None = None) -> None:
        if self.trace is not None:
            self.trace.note(request, self.rank, reason, hit)
