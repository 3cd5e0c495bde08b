"""The decision: a pure function of cluster, shares, policy and time.

Candidates come in the order of the policy (:mod:`.waiting`, :mod:`.keys`): by effective rank; where the
policy is fair, by the Fair Tree order of their accounts, looked at again after every start, since a start
is charged at once; then by the policy's key. One look at the first of an equivalence class answers for all
of it.

A candidate that fits starts, unless that would delay somebody ahead who was promised room (EASY: the first k
who could not start; conservative: all of them). One that does not fit may preempt (:mod:`.preempting`); if it
cannot, it is promised room, and the policy says whether others may pass. All of it happens in transactions on
room and shares that are rolled back at the end: :func:`decide` changes nothing, :mod:`.enact` does."""

from __future__ import annotations

import math

from msgspec.structs import replace

from djinn_lab.jobs.decision import preempting
from djinn_lab.jobs.decision.attempts import Attempts
from djinn_lab.jobs.decision.cluster import Cluster
from djinn_lab.jobs.decision.guarantees import Standing
from djinn_lab.jobs.decision.keys import estimate_s, steps
from djinn_lab.jobs.decision.limiting import members_allowed, soft_limit, start_limit
from djinn_lab.jobs.decision.lone import start_of_lone
from djinn_lab.jobs.decision.narrowing import Narrowing
from djinn_lab.jobs.decision.plan import Plan, Preemption
from djinn_lab.jobs.decision.policy import PROMISING, QueuePolicy
from djinn_lab.jobs.decision.reasons import Reason
from djinn_lab.jobs.decision.trace import Trace
from djinn_lab.jobs.decision.trial import Trial, fits_at
from djinn_lab.jobs.decision.waiting import Bucket, Cursor, WaitingIndex
from djinn_lab.jobs.fairness import LimitHit, ShareTree
from djinn_lab.jobs.placement import Placed
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, Demand, Request, members_in


def decide(
    cluster: Cluster, shares: ShareTree, policy: QueuePolicy, now_s: float, trace: Trace | None = None
) -> Plan:
    """What is to be done now. ``trace`` is told the verdict on every class that was looked at."""
    shares.advance(now_s)
    if trace is None and _nobody_asks(cluster, policy, now_s):
        return Plan(now_s, promised=policy.passing == "conservative")
    if trace is None and (lone := start_of_lone(cluster, shares, policy, now_s)) is not None:
        return lone
    index = cluster.index(policy, now_s)
    counts = shares.guarantees and policy.preempts and cluster.waiting
    standing = Standing.kept(cluster, shares) if counts else None
    room_mark, shares_mark = cluster.room.checkpoint(), shares.checkpoint()
    standing_mark = 0 if standing is None else standing.checkpoint()
    try:
        return _Decision(Trial(cluster, shares, policy, now_s, standing), trace, index).run(index)
    finally:
        if standing is not None:
            standing.rollback(standing_mark)
        shares.rollback(shares_mark)
        cluster.room.rollback(room_mark)


def _nobody_asks(cluster: Cluster, policy: QueuePolicy, now_s: float) -> bool:
    """Nobody waits, no running one owes anything, and nobody has devices reserved: nothing is to be done."""
    if cluster.waiting or cluster.calendar:
        return False
    return not (policy.by_fairness and cluster.holdings and cluster.charge_due(now_s)[0])


class _Decision:
    """``why``: what kept the last candidate from being placed. ``owing``: where somebody who waits is owed
    guaranteed devices, who holds what. ``spent``: nobody starts or is tried any more, but for a guarantee."""

    def __init__(self, trial: Trial, trace: Trace | None, index: WaitingIndex) -> None:
        self.trial = trial
        self.trace = trace
        self.policy = trial.policy
        self.attempts = Attempts(self.policy)
        standing = trial.standing
        self.owing = standing if standing is not None and standing.owes else None
        self.narrowing = None if self.owing is None else Narrowing(trial, self.owing, index)
        self.spent = False
        self.rank = 0
        self.stopped = False
        self.why = Reason.BUSY
        self.deferred: list[Cursor] = []

    def run(self, index: WaitingIndex) -> Plan:
        trial = self.trial
        trial.top_up()
        self._pins()
        for rank in sorted(index.ranks):
            self.rank = rank
            self._walk(index.ranks[rank])
        self._above_soft_limits()
        if trial.blocked and self.trace is not None:
            trial.book()
        if len(trial.cluster.waiting) > len(trial.starts):
            trial.wake_by(index.next_change_s())
        return Plan(
            trial.now_s,
            tuple(trial.starts),
            tuple(trial.preemptions),
            tuple(trial.reservations),
            tuple(trial.top_ups),
            None if trial.wake_s == math.inf else trial.wake_s,
            trial.keeps,
            tuple(trial.given_up),
        )

    def _pins(self) -> None:
        """Places that were kept: taken where everybody has left, else closed to others. Given up where its
        account may not have it any more, others have it reserved, or memory has no room for it."""
        trial, cluster = self.trial, self.trial.cluster
        for pin in cluster.pins.values():
            request, members = cluster.waiting[pin.job], members_in(pin.where)
            left = not any(cluster.leaving.get(victim) == pin.job for victim in pin.victims)
            hit = start_limit(cluster, trial.shares, request, trial.now_s, trial.more, members)
            if left and hit is not None:
                trial.wake_by(hit.until_s or 0.0)
                trial.give_up(pin)
                self._note(request, Reason.ACCOUNT_LIMIT, hit)
            elif left and not trial.kept_from(request).isdisjoint(node for node, _ in pin.where):
                trial.give_up(pin)
                self._note(request, Reason.CALENDAR)
            elif left and request.stuck:
                trial.give_up(pin)
                self._note(request, Reason.NOT_READY)
            elif left and request.startable and fits_at(trial.room, request.demand, pin.where):
                trial.start(request, Placed(pin.where, {}), pinned=True)
                self._note(request, Reason.STARTS_NOW)
            else:
                trial.keep(request, pin.where, pin.victims)
                trial.count(request, members)
                self._note(request, Reason.MAKING_ROOM)

    # -- in order --------------------------------------------------------------------------------------------

    def _walk(self, buckets: dict[str, Bucket]) -> None:
        """One rank, its candidates in order. Whose turn it is, is asked again after every charge."""
        if self._over:
            return
        if not self.policy.by_fairness:
            self._take_turns([Cursor(buckets[""])])
            return
        cursors: dict[str, Cursor | None] = dict.fromkeys(buckets)
        self.trial.shares.know(buckets.keys())
        while cursors and not self._over and not self._round(buckets, cursors):
            pass

    def _round(self, buckets: dict[str, Bucket], cursors: dict[str, Cursor | None]) -> bool:
        """Group by group of accounts of equal rank. True when all have been asked and nobody was charged."""
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
            if self._over:
                return True
            for leaf in group:
                cursors.pop(leaf.account, None)
            if not cursors:
                return True
        return True

    def _alone(self, buckets: dict[str, Bucket], cursors: dict[str, Cursor | None]) -> bool:
        """One account is left: it is its turn, whatever the shares are."""
        [(account, cursor)] = cursors.items()
        due = self._due
        if due is not None and account not in due:
            return True
        cursor = cursors[account] = cursor or Cursor(buckets[account])
        return not self._take_turns([cursor])

    def _take_turns(self, cursors: list[Cursor]) -> bool:
        """Accounts of equal rank, their candidates by key. True when an account was charged."""
        before = len(self.trial.admitted)
        while not self._over:
            heads = [(head, cursor) for cursor in cursors if (head := cursor.head) is not None]
            if not heads:
                return False
            cursor = heads[0][1] if len(heads) == 1 else min(heads)[1]
            self._look(cursor)
            if self.policy.by_fairness and len(self.trial.admitted) != before:
                return True
        return False

    @property
    def _over(self) -> bool:
        """Nobody else can start or preempt, so there is nobody to look at."""
        if self.stopped:
            return True
        if not self.spent:
            self.spent = (
                self.attempts.left <= 0
                and not self.trial.overstaying
                and self.trace is None
                and not self.trial.keeps
                and not self.trial.cluster.sharing
                and not self.trial.room.devices_free
            )
        return self.spent and (self.narrowing is None or self._due == set())

    @property
    def _due(self) -> set[str] | None:
        """Accounts whose candidates are worth a look; None: all."""
        return self.narrowing.due() if self.spent and self.narrowing is not None else None

    def _look(self, cursor: Cursor) -> None:
        """Decide on the candidate that the cursor stands at, and move the cursor on."""
        trial = self.trial
        request = trial.cluster.waiting[cursor.job]
        if request.job in trial.cluster.pins:
            cursor.next_of_class()
            return
        due = self._due
        if due is not None and (request.account not in due or self.attempts.hopeless(request)):
            self._drop_hopeless(cursor)
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

    def _drop_hopeless(self, cursor: Cursor) -> None:
        """The class that the cursor stands at, and those after it that cannot be had either."""
        cluster, attempts = self.trial.cluster, self.attempts
        cursor.drop_class()
        while cursor.head is not None:
            request = cluster.waiting[cursor.job]
            if request.job in cluster.pins or not attempts.hopeless(request):
                return
            cursor.drop_class()

    def _above_soft_limits(self) -> None:
        """Those may have what is left when everybody else has been asked."""
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
        """Start it, let it preempt, or note why not."""
        if self.trial.keeps:
            self.trial.release(request)
        placed = self._place(request)
        if placed is not None:
            self._start(request, placed, cursor)
            return
        found = self._find_victims(request)
        if found is not None:
            self._preempt(request, found)
            cursor.next_of_class()
            return
        raised = steps(request, self.policy, self.trial.now_s) > 0
        if self.why is Reason.BUSY and self._impossible(request, raised):
            self.why = Reason.IMPOSSIBLE
        self._note(request, Reason.BEHIND if self.why is Reason.BUSY and self.trial.blocked else self.why)
        if self.why is Reason.BUSY or (self.why is Reason.RESERVED and self.trial.keeps):
            self._block(request, cursor, raised)
        elif self.why is Reason.RESERVED and self.policy.within in ("arrival", "attained"):
            cursor.shorter_of_class(self.trial.cluster.waiting)
        else:
            cursor.drop_class()

    def _impossible(self, request: Request, raised: bool) -> bool:
        """Who can never start is in nobody's way; not asked where nobody is in anybody's."""
        asked = raised or self.trace is not None or self.policy.passing not in ("always", "starving")
        return asked and not self.trial.room.ever_fits(request.demand)

    def _start(self, request: Request, placed: Placed, cursor: Cursor) -> None:
        self.trial.start(request, placed, passed=bool(self.trial.blocked))
        self._note(request, Reason.STARTS_NOW)
        cursor.next_of_class()

    def _block(self, request: Request, cursor: Cursor, raised: bool) -> None:
        """It is ahead of those that follow. May they pass? ``raised``: by age or its deadline."""
        match self.policy.passing:
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
        if self.trial.overstaying:
            home = request.home if self.why is Reason.HOME else None
            found = preempting.reclaim(self.trial, request, home)
            if found is not None:
                return found
        claims = self.owing is not None and self.owing.claims_anywhere(request)
        if self.why is Reason.BUSY and (self.attempts.left > 0 or claims):
            return self.attempts.find(self.trial, request, claims)
        return None

    def _preempt(self, request: Request, found: Preemption) -> None:
        """Until they have left, nobody else is put on those nodes."""
        trial = self.trial
        trial.preemptions.append(found)
        trial.victims.update(found.victims)
        if trial.standing is not None:
            for victim in found.victims:
                trial.standing.remove(trial.cluster.holdings[victim])
        trial.keep(request, found.where, found.victims)
        members = members_in(found.where)
        trial.admit(request, members, estimate_s(request, self.policy))
        self._note(request, Reason.MAKING_ROOM)

    def _place(self, request: Request) -> Placed | None:
        """Where it could start now, with every promise kept; None: ``why`` says what is in the way."""
        trial, demand = self.trial, self._demand(request)
        self.why = Reason.BUSY
        if demand.device_milli == WHOLE_DEVICE_MILLI and not trial.room.devices_free:
            return None
        allowed = trial.allowed(request)
        if request.home is not None and self._waits_for_home(request, demand, allowed):
            self.why = Reason.HOME
            return None
        placed = trial.room.place(demand, trial.scoring, request.home, allowed)
        if placed is None:
            if trial.cluster.calendar and trial.room.place(demand, trial.scoring, None, trial.opened):
                self.why = Reason.CALENDAR
            return None
        if not trial.keeps and (not trial.blocked or self.policy.passing not in PROMISING):
            return placed
        if allowed is not None:
            demand = replace(demand, nodes=allowed if demand.nodes is None else demand.nodes & allowed)
        where = trial.book().now(demand, request.estimate_s, trial.scoring, request.home)
        if where is None or not fits_at(trial.room, demand, where):
            self.why = Reason.RESERVED
            return None
        return placed if where == placed.where else Placed(where, {})

    def _waits_for_home(self, request: Request, demand: Demand, allowed: frozenset[str] | None) -> bool:
        """Its home is busy, and will be free before moving would pay."""
        trial, home = self.trial, request.home
        assert home is not None
        node = trial.cluster.nodes.get(home)
        if request.move_s <= 0 or node is None:
            return False
        if not node.ready or node.cordoned or (allowed is not None and home not in allowed):
            return False
        if trial.room.place(demand, trial.scoring, home, frozenset({home})) is not None:
            return False
        wait_s = trial.home_wait_s(home)
        patience_s = max(self.policy.home_patience_s_min, self.policy.home_patience * request.move_s)
        if wait_s is None or wait_s > patience_s:
            return False
        trial.wake_by(trial.now_s + (wait_s or patience_s))
        return True

    def _demand(self, request: Request) -> Demand:
        """With as many members as its accounts' limits leave it."""
        members = members_allowed(self.trial.cluster, self.trial.shares, request, self.trial.more)
        demand = request.demand
        return demand if members == demand.members else replace(demand, members=members)

    def _note(self, request: Request, reason: Reason, hit: LimitHit | None = None) -> None:
        if self.trace is not None:
            self.trace.note(request, self.rank, reason, hit)
