"""Compare each claim in the reasons of pending jobs with what happened later.

A :class:`Witness` looks at a :class:`~djinn_lab.simulator.pool.SimulatedPool` now and then, as a user would
that asks why a job waits, and notes what is claimed. In the end it says of each kind of claim how often it
held."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from djinn_lab.jobs import Job
from djinn_lab.jobs.decision import Cluster, Explanation, Outlook, Reason, sentence_with_start
from djinn_lab.jobs.fairness import ShareTree
from djinn_lab.jobs.start_forecasts import StartForecasts, StartSkill
from djinn_lab.simulator.pool import SimulatedCell, SimulatedPool

SOON_S = 1.0
"""What is said to happen now has happened by then."""
MOMENT_S = 10.0
"""What is said to be under way has happened by then."""
LATER_S = 30.0
"""What is said not to happen has not happened by then."""
PART = 0.5
"""A forecast is true that is off by less than this part of the wait, or by less than a moment."""

Check = Callable[[], bool | None]


class Claim(NamedTuple):
    """A claim of one sentence; ``holds``: asked once the future is known, None where it stays unknown."""

    kind: str
    sentence: str
    holds: Check


class Truth(NamedTuple):
    """How often claims of one kind held; ``false``: some of the sentences that did not."""

    kind: str
    held: int
    looks: int
    false: tuple[str, ...]

    @property
    def rate(self) -> float:
        return self.held / self.looks


FALSE_MAX = 5
EXPECTED = "expected to start"
AS_COMPUTED = "(forecast as computed)"
"""Before it is corrected and judged; no client receives it."""
UNPREDICTED = "(start not predicted)"
"""It is said that the start cannot be predicted."""
NEVER_BY_ITSELF = "does not start by itself"


class Witness:
    def __init__(self, pool: SimulatedPool) -> None:
        self._pool = pool
        self._claims: list[Claim] = []
        self._starts = StartForecasts()
        self._checked: dict[str, float] = {}

    def look(self) -> None:
        """Note what is claimed of every job that waits now."""
        pool = self._pool
        snapshot = pool.queue.decision(pool.now_s)
        cluster = Cluster.restored(snapshot.cluster, snapshot.now_s)
        cluster.decided_s = pool.queue.decided_s
        outlook = Outlook(cluster, ShareTree(snapshot.shares), snapshot.policy, snapshot.now_s)
        self._compare()
        ranks = {request.job: request.rank for request in snapshot.cluster.waiting}
        starts = {job: (ranks[job], at_s) for job, (at_s, _) in outlook.forecast.starts.items()}
        self._starts.estimated(starts, pool.now_s)
        for job, _, _ in list(pool.queue.waiting()):
            moment = _Moment(pool, job)
            if job.memory_reason:
                self._claims += moment.of_memory(job.memory_reason)
            if job.job in cluster.waiting:
                found = outlook.explain(job.job, advise=False)
                self._claims += moment.of_queue(found, self._starts.skill)

    def _compare(self) -> None:
        """Compare the starts since the last look with their forecasts."""
        for job, runs in self._pool.history.items():
            started_s = runs[-1].from_s if runs else None
            if started_s is not None and self._checked.get(job) != started_s:
                self._checked[job] = started_s
                self._starts.started(job, started_s)

    def truths(self) -> list[Truth]:
        """Return the results by kind of claim, once the run is over."""
        held: Counter[str] = Counter()
        count: Counter[str] = Counter()
        false: defaultdict[str, list[str]] = defaultdict(list)
        for claim in self._claims:
            holds = claim.holds()
            if holds is None:
                continue
            count[claim.kind] += 1
            held[claim.kind] += holds
            if not holds:
                false[claim.kind].append(claim.sentence)
        return [
            Truth(kind, held[kind], count[kind], tuple(false[kind][:FALSE_MAX])) for kind in sorted(count)
        ]


class _Moment:
    """One job at one moment, and what happened to it afterwards."""

    def __init__(self, pool: SimulatedPool, job: Job) -> None:
        self._pool, self._job, self._now_s = pool, job.job, pool.now_s
        self._device = job.assigned_device
        self._others = frozenset(other.job for other, _, _ in pool.queue.waiting() if other.job != job.job)

    # -- what came -----------------------------------------------------------------------------------------

    def _start(self, job: str | None = None) -> SimulatedCell | None:
        """Return the next run of the job; None when there was none."""
        runs = self._pool.history[job or self._job]
        return next((run for run in runs if run.from_s >= self._now_s), None)

    def _starts_within(self, seconds: float) -> bool | None:
        start = self._start()
        if start is not None:
            return start.from_s - self._now_s <= seconds
        if self._gone or self._pool.now_s - self._now_s < seconds:
            return None
        return False

    @property
    def _gone(self) -> bool:
        """Return whether the job ended without another start."""
        return self._job in self._pool.ended_s

    def _before(self) -> int | None:
        """Count the jobs pending beside this one that started before it did."""
        mine = self._start()
        if mine is None:
            return None
        starts = (self._start(other) for other in self._others)
        return sum(start is not None and start.from_s < mine.from_s for start in starts)

    def _closed_before_start(self) -> bool | None:
        """Return whether, before the job started, a session was closed or placed on another device: its own
        session, or one that left its device. Or it did not start for long."""
        start = self._start()
        if start is not None and start.device != self._device:
            return True
        until_s = self._pool.now_s if start is None else start.from_s
        left_s = self._pool.left_s[self._device or ""]
        if any(self._now_s <= at_s <= until_s for at_s in (*self._pool.closed_s, *left_s)):
            return True
        return (until_s - self._now_s > LATER_S) if start is not None else self._unless_short()

    def _unless_short(self) -> bool | None:
        return None if self._gone or self._pool.now_s - self._now_s < LATER_S else True

    def _freed(self) -> bool | None:
        """Return whether a cell stopped or a session was closed before the job started."""
        found = self._closed_before_start(), self._stopped(frozenset(self._pool.history))
        return True if True in found else None if None in found else False

    def _stopped(self, jobs: frozenset[str]) -> bool | None:
        """Return whether one of these jobs stopped before this job started."""
        start = self._start()
        until_s = self._pool.now_s if start is None else start.from_s
        for other in jobs:
            ends = (run.until_s for run in self._pool.history[other] if run.until_s is not None)
            if any(self._now_s <= end_s <= until_s for end_s in ends):
                return True
        return False if start is not None else None

    # -- what is claimed -----------------------------------------------------------------------------------

    def of_memory(self, reason: str) -> Iterator[Claim]:
        running = frozenset(self._pool.runs)
        claims: list[tuple[str, str, Check]] = [
            ("waits for a session to close", "one to close(?!.*, as job)", self._closed_before_start),
            ("waits for a close or freed values", "one to close.*, as job", self._freed),
            ("waits for named cells", "waits for jobs? .* to end(?! or)", lambda: self._stopped(running)),
            (
                "waits for any cell or close",
                "to end or a session to close|a session to close or to free",
                self._freed,
            ),
            ("its state is on its way", "are being restored", lambda: self._starts_within(MOMENT_S)),
            ("others are evicted", "are being evicted", lambda: self._starts_within(MOMENT_S)),
            ("others wait before it", "waits for memory before it", lambda: self._others_first()),
        ]
        for kind, words, holds in claims:
            if re.search(words, reason):
                yield Claim(kind, f"{self._now_s:.2f} {self._job}: {reason}", holds)

    def _others_first(self) -> bool | None:
        before = self._before()
        return None if before is None else before > 0

    def of_queue(self, found: Explanation, skill: StartSkill) -> Iterator[Claim]:
        sentence = sentence_with_start(found, skill)
        text = f"{self._now_s:.2f} {self._job}: {sentence}"
        yield from (Claim(kind, text, holds) for kind, holds in self._of_reason(found))
        wait_s = None if found.expected_s is None else found.expected_s - self._now_s
        start = None if wait_s is None else skill.forecast(self._job, found.rank, wait_s, self._now_s)
        if wait_s is not None:
            yield Claim(
                "(forecast as computed)", f"{text} ({wait_s:.2f} s)", lambda: self._starts_about(wait_s)
            )
        if start is not None and not start.reliable:
            yield Claim(UNPREDICTED, text, lambda: True)
        elif start is not None and EXPECTED in sentence:
            yield Claim(EXPECTED, text, lambda: self._starts_about(start.wait_s))
        elif NEVER_BY_ITSELF in sentence:
            yield Claim("does not start by itself", text, self._does_not_start)

    def _of_reason(self, found: Explanation) -> Iterator[tuple[str, Check]]:
        match found.reason:
            case Reason.IMPOSSIBLE | Reason.ABOVE_LIMIT:
                yield "can never start", lambda: self._start() is None
            case Reason.STARTS_NOW:
                yield "starts now", lambda: self._starts_within(SOON_S)
            case Reason.HOME:
                yield "waits where its state lies", lambda: self._starts_at(self._device)
            case Reason.PREEMPTING:
                yield "others are preempted for it", lambda: self._starts_within(MOMENT_S)
            case Reason.BEHIND if found.ahead:
                count = sum(one.jobs for one in found.ahead)
                yield "others are ahead", lambda: self._about_so_many(count)
            case Reason.BUSY:
                yield "it is next", lambda: self._is_next(found.expected_where)
            case _:
                pass

    def _starts_at(self, device: str | None) -> bool | None:
        start = self._start()
        return None if start is None else start.device == device

    def _starts_about(self, wait_s: float) -> bool | None:
        start = self._start()
        if start is None:
            return None if self._gone or self._pool.now_s - self._now_s < 2 * wait_s + SOON_S else False
        return abs(start.from_s - self._now_s - wait_s) <= max(SOON_S, PART * wait_s)

    def _does_not_start(self) -> bool | None:
        start = self._start()
        if start is None:
            return self._unless_short()
        closed = any(self._now_s <= at_s <= start.from_s for at_s in self._pool.closed_s)
        return closed or start.from_s - self._now_s > LATER_S

    def _about_so_many(self, count: int) -> bool | None:
        before = self._before()
        return None if before is None else count * PART <= before <= count / PART

    def _is_next(self, where: tuple[str, ...]) -> bool | None:
        """Return whether no job that waited with this one started before it on its device."""
        mine = self._start()
        if mine is None:
            return None
        starts = (self._start(other) for other in self._others)
        return not any(
            start is not None and start.device == mine.device and start.from_s < mine.from_s
            for start in starts
        )
