"""Simulate a pool around the live queue, random by seed: session memory that defers segments and refuses some
moves, workers that are slow to obey a preemption or end first, clients with several segments a cell."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from itertools import count

from djinn_lab.events import MemoryRelease
from djinn_lab.jobs import (
    CancelSegment,
    ChargeAccount,
    ClockTicked,
    Command,
    DeviceAdded,
    DeviceQueueOrdered,
    EndSegment,
    Event,
    IllegalEvent,
    Job,
    JobFinished,
    JobState,
    MemoryDeferred,
    MemoryGranted,
    MoveRefused,
    Notify,
    PlaceSegment,
    PreemptSegment,
    Priority,
    SegmentFinished,
    SegmentPreempted,
    SegmentProgressed,
    SegmentSubmitted,
    StartSegment,
    Terms,
)
from djinn_lab.jobs.machine.queue import JobQueue

OPS = 8
TICKS_MAX = 50
"""Ticks of the clock at one moment, by job."""


class SimulatedPool:
    """A pool with random delays around a live queue. ``state_at``: the device of each session's values.
    ``runs``: by device, (job, segment, start, duration). ``ran_s`` and ``charged_s``: by account. ``moves``:
    by session since it last ran."""

    def __init__(self, seed: int, devices: int, sessions: int, *, asks: bool = True) -> None:
        self.random = random.Random(seed)
        self.queue = JobQueue()
        self.asks = asks
        self.now_s = 0.0
        self.devices = [f"cpu:{number}" for number in range(devices)]
        self.users = {f"s{number}": f"user{number % 3}" for number in range(sessions)}
        self.immovable = {session for session in self.users if self.random.random() < 0.25}
        self.state_at: dict[str, str] = {}
        self.bound_at: dict[str, str] = {}
        self.asked: dict[str, int] = {}
        self.runs: dict[str, tuple[str, int, float, float]] = {}
        self.ran_s: Counter[str] = Counter()
        self.charged_s: Counter[str] = Counter()
        self.moves: Counter[str] = Counter()
        self.moves_most = 0
        self.left: dict[str, int] = {}
        self.jobs: list[str] = []
        self.watch: Callable[[], None] = lambda: None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._commands: deque[Command] = deque()
        self._performing = False
        for device in self.devices:
            self.handle(DeviceAdded(0.0, device, 1 << 30, link_bytes_per_s=1e9))

    # -- time ----------------------------------------------------------------------------------------------

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), act))

    def run(self, until_s: float = math.inf) -> None:
        """Run until ``until_s``, or until no event is left."""
        ticks = 0
        while True:
            next_s = self._events[0][0] if self._events else math.inf
            due_s = self.queue.due_s()
            due_s = math.inf if due_s is None else max(due_s, self.now_s)
            if min(next_s, due_s) > until_s or min(next_s, due_s) == math.inf:
                self.now_s = until_s if until_s < math.inf else self.now_s
                return
            ticks = 0 if min(next_s, due_s) > self.now_s else ticks + 1
            assert ticks < TICKS_MAX * (1 + len(self.jobs)), "the clock ticks without progress"
            self.now_s = min(next_s, due_s)
            if due_s < next_s:
                self.handle(ClockTicked(self.now_s))
            else:
                heapq.heappop(self._events)[2]()
            self.watch()

    def handle(self, event: Event) -> bool:
        """Give the queue an event and perform its commands. False when the event was illegal."""
        try:
            commands = self.queue.handle(event)
        except IllegalEvent:
            return False
        self._commands.extend(c for c in commands if isinstance(c, DeviceQueueOrdered))
        self._commands.extend(c for c in commands if not isinstance(c, DeviceQueueOrdered))
        if self._performing:
            return True
        self._performing = True
        while self._commands:
            self._perform(self._commands.popleft())
        self._performing = False
        return True

    def _perform(self, command: Command) -> None:
        match command:
            case PlaceSegment():
                self._place(command)
            case StartSegment():
                self._start(command)
            case PreemptSegment():
                run = self.runs.get(command.device)
                if self.random.random() < 0.8:
                    self.at(self.random.choice((0.0, 0.2, 2.0)), lambda: self._preempt(command.device, run))
            case CancelSegment():
                run = self.runs.get(command.device)
                outcome = self.random.choice(("cancelled", "cancelled", "done"))
                self.at(0.1, lambda: self._finish(command.device, run, outcome))
            case ChargeAccount():
                self.charged_s[command.account] += command.ended_at_s - command.started_at_s
            case EndSegment():
                self.asked.pop(command.job, None)
                if command.device is not None and self.runs.get(command.device, ("",))[0] == command.job:
                    self._ran(command.device)
                self._answered(command.job)
            case DeviceQueueOrdered() | Notify():
                pass

    # -- session memory ------------------------------------------------------------------------------------

    def _place(self, command: PlaceSegment) -> None:
        job, session = self.queue.job(command.job), command.session
        if job is None or not _asks(job):
            return
        assert job.assigned_device == command.device or self.queue.device_of(session) == job.assigned_device
        device = job.assigned_device
        assert device is not None
        if self.bound_at.get(session) != device:
            for mate in self.queue.jobs_of(session):
                self.asked.pop(mate, None)
            self.bound_at[session] = device
            self.moves[session] += 1
            self.moves_most = max(self.moves_most, self.moves[session])
        number = self.asked[job.job] = next(self._numbers)
        if session in self.immovable and self.state_at.get(session, device) != device:
            stays = self.state_at[session]
            self.bound_at[session] = stays
            assert self.handle(MoveRefused(self.now_s, job.job, stays, "the host is full"))
        self._answer(job.job, number)

    def forget(self, sessions: set[str]) -> None:
        """Drop what session memory knows about these sessions."""
        for session in sessions:
            self.bound_at.pop(session, None)
            for job in self.queue.jobs_of(session):
                self.asked.pop(job, None)

    def _answer(self, job: str, number: int) -> None:
        def grant() -> None:
            if self.asked.get(job) == number:
                del self.asked[job]
                assert self.handle(MemoryGranted(self.now_s, job))

        kind = self.random.choice(("at once", "at once", "copy", "memory", "queued"))
        if kind == "at once":
            grant()
            return
        known = self.queue.job(job)
        if known is not None and _asks(known) and self.asked.get(job) == number:
            release = MemoryRelease.PREEMPTION if kind == "memory" else MemoryRelease.COPIES
            deferred = MemoryDeferred(self.now_s, job, "Wait.", 1.0, kind == "queued", release)
            assert self.handle(deferred)
            self.at(self.random.choice((0.1, 1.0, 5.0)), grant)

    # -- workers -------------------------------------------------------------------------------------------

    def _start(self, command: StartSegment) -> None:
        job = self.queue.job(command.job)
        assert job is not None
        assert command.device not in self.runs
        assert not job.waits_for
        self.moves[job.session] = 0
        self.state_at[job.session] = command.device
        assert self.bound_at.get(job.session, command.device) == command.device or job.memory == "free"
        takes_s = (job.predicted_s or 3.0) * (1 - job.ops_done / OPS) * self.random.choice((0.5, 1.0, 3.0))
        run = (job.job, job.segment, self.now_s, takes_s)
        self.runs[command.device] = run
        self.at(takes_s / 2, lambda: self._progress(command.device, run))
        self.at(takes_s, lambda: self._finish(command.device, run, "done"))

    def _ops_now(self, run: tuple[str, int, float, float]) -> int:
        job = self.queue.job(run[0])
        assert job is not None
        part = 1.0 if not run[3] else (self.now_s - run[2]) / run[3]
        return max(job.ops_done, min(OPS, math.floor(part * OPS)))

    def _progress(self, device: str, run: tuple[str, int, float, float]) -> None:
        if self.runs.get(device) == run:
            assert self.handle(SegmentProgressed(self.now_s, run[0], run[1], self._ops_now(run)))

    def _preempt(self, device: str, run: tuple[str, int, float, float] | None) -> None:
        if run is None or self.runs.get(device) != run:
            return
        ops, job = self._ops_now(run), self.queue.job(run[0])
        assert job is not None
        self._ran(device)
        move_s = None if job.session in self.immovable else self.random.choice((0.0, 0.5, 5.0))
        assert self.handle(SegmentPreempted(self.now_s, run[0], run[1], ops, move_s))
        self._answered(run[0])

    def _finish(self, device: str, run: tuple[str, int, float, float] | None, outcome: str) -> None:
        if run is None or self.runs.get(device) != run:
            return
        self._ran(device)
        ops = self._ops_now(run)
        assert self.handle(SegmentFinished(self.now_s, run[0], run[1], outcome, ops))
        self._answered(run[0])

    def _ran(self, device: str) -> None:
        name, _, started_s, _ = self.runs.pop(device)
        job = self.queue.job(name)
        assert job is not None
        self.ran_s[job.account] += self.now_s - started_s

    # -- clients -------------------------------------------------------------------------------------------

    def submit(self, session: str, *, target: bool = False) -> None:
        """Submit the first segment of a new cell with random terms."""
        chance = self.random
        job = f"job{len(self.jobs)}"
        self.jobs.append(job)
        self.left[job] = chance.randrange(3)
        after = (
            tuple(chance.sample(self.jobs[:-1], 1)) if len(self.jobs) > 1 and chance.random() < 0.2 else ()
        )
        terms = Terms(
            after=after,
            after_any=chance.random() < 0.7,
            timeout_s=2.0 if chance.random() < 0.1 else None,
            deadline_s=20.0 if chance.random() < 0.1 else None,
        )
        self._send(job, session, 0, terms, chance.choice(self.devices) if target else None)

    def _send(self, job: str, session: str, segment: int, terms: Terms, target: str | None) -> None:
        chance = self.random
        move_s = None if chance.random() < 0.1 else chance.choice((0.0, 0.0, 0.5, 5.0))
        submit = SegmentSubmitted(
            self.now_s,
            job,
            segment,
            session,
            self.users[session],
            chance.choice(list(Priority)),
            OPS,
            self.left[job] == 0,
            target,
            chance.choice((None, 0.0, 0.3, 2.0, 10.0)),
            memory="ask" if self.asks else "free",
            terms=terms,
            move_s=move_s,
        )
        if not self.handle(submit) and segment:
            assert self.handle(JobFinished(self.now_s, job, "failed", "it was not admitted"))

    def _answered(self, name: str) -> None:
        """Schedule the next segment of a cell that has more, after a random pause."""
        job = self.queue.job(name)
        if job is not None and job.state is JobState.WAITING:
            self.at(self.random.choice((0.0, 0.5, 3.0)), lambda: self._send_next(name, job.segment))

    def _send_next(self, name: str, segment: int) -> None:
        job = self.queue.job(name)
        if job is None or job.state is not JobState.WAITING or job.segment != segment:
            return
        self.left[name] -= 1
        if self.left[name] < 0:
            assert self.handle(JobFinished(self.now_s, name, "done"))
        else:
            self._send(name, job.session, segment + 1, Terms(), None)


def _asks(job: Job) -> bool:
    waits = job.state is JobState.RESTORING
    return waits or (job.state in (JobState.PREEMPTED, JobState.QUEUED) and job.memory in ("ask", "queued"))
