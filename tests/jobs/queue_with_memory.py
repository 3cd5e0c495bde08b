"""The live queue over the real session memory, in simulated time: both cores as the pool joins them, around
workers that take their time, and copies that do not."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

from msgspec.structs import replace

from djinn_lab import jobs, memory
from djinn_lab.pool.in_turn import InTurn, about, of_queue

MIB = 1 << 20
OPS = 10
TICK_S = 0.25


class QueueWithMemory:
    """``started_s``, ``ended_s``: by job. ``runs``: by device, which job, and until when it would."""

    def __init__(self, devices: int, memory_mib: int) -> None:
        self.queue = jobs.JobQueue()
        self.accounts = memory.MemoryAccounts()
        self.now_s = 0.0
        self.devices = [f"cpu:{number}" for number in range(devices)]
        self.started_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.runs: dict[str, tuple[str, float]] = {}
        self._asked: dict[str, memory.SegmentPlaced] = {}
        self._seconds: dict[str, float] = {}
        self._held: dict[str, dict[str, int]] = {device: {} for device in self.devices}
        self._parked: dict[str, dict[str, int]] = {device: {} for device in self.devices}
        self._commands = InTurn(self._perform)
        self._answers = InTurn(self._obey)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._size = memory_mib * MIB
        self._gone: set[str] = set()
        self._lives = dict.fromkeys(self.devices, 0)
        self._aside_lost: set[str] = set()
        for device in self.devices:
            self._add(device)

    # -- people --------------------------------------------------------------------------------------------

    def open(self, session: str) -> None:
        self.remember(memory.SessionOpened(self.now_s, session, session))

    def submit(
        self,
        job: str,
        session: str,
        *,
        account: str = "",
        priority: jobs.Priority = jobs.Priority.NORMAL,
        seconds: float = 1.0,
        mib: int = 1,
        target: str | None = None,
    ) -> None:
        """A cell that leaves behind what it needs at most."""
        self._seconds[job] = seconds
        self._asked[job] = memory.SegmentPlaced(
            self.now_s, job, 0, session, mib * MIB, jobs.RANKS[priority], kept_bytes=mib * MIB
        )
        self.tell(
            jobs.SegmentSubmitted(
                self.now_s,
                job,
                0,
                session,
                session,
                priority,
                OPS,
                True,
                target,
                seconds,
                memory="ask",
                account=account or session,
                move_s=self.accounts.move_s(session),
            )
        )

    # -- time ----------------------------------------------------------------------------------------------

    def run(self, until_s: float) -> None:
        while True:
            clock_s = self.queue.due_s()
            clock_s = math.inf if clock_s is None else max(clock_s, self.now_s)
            tick_s = math.floor(self.now_s / TICK_S + 1) * TICK_S
            next_s = min(clock_s, tick_s, self._due[0][0] if self._due else math.inf)
            if next_s > until_s:
                self.now_s = until_s
                return
            self.now_s = next_s
            if self._due and self._due[0][0] <= next_s:
                heapq.heappop(self._due)[2]()
            elif clock_s <= next_s:
                self.tell(jobs.ClockTicked(self.now_s))
            else:
                self.remember(memory.ClockTicked(self.now_s))

    @property
    def idle_in_vain(self) -> list[str]:
        """Who would start on an idle device now if only memory were granted."""
        snapshot = self.queue.decision(self.now_s)
        ready = tuple(replace(request, startable=True) for request in snapshot.cluster.waiting)
        found = replace(snapshot, cluster=replace(snapshot.cluster, waiting=ready))
        return [start.job for start in found.decide().starts]

    # -- the queue's commands ------------------------------------------------------------------------------

    def tell(self, event: jobs.Event) -> None:
        commands = self.queue.handle(event)
        self._commands.put(of_queue(commands, self._rank))
        self._commands.run()

    def _rank(self, command: jobs.PlaceSegment) -> int:
        job = self.queue.job(command.job)
        assert job is not None
        return jobs.RANKS[job.priority]

    def _perform(self, command: jobs.Command) -> None:
        match command:
            case jobs.LineOrdered() if self.accounts.device(command.device) is not None:
                self.remember(memory.LineOrdered(self.now_s, command.device, command.jobs))
            case jobs.PlaceSegment():
                self._place(command)
            case jobs.StartSegment():
                self._start(command)
            case jobs.PreemptSegment():
                self._after(0.0, lambda: self._move_aside(command.job, command.device))
            case jobs.CancelSegment():
                self._after(0.0, lambda: self._cancelled(command.job, command.device))
            case jobs.EndSegment():
                self.remember(memory.SegmentWithdrawn(self.now_s, command.job))
                self._over(command.job)
            case _:
                pass

    def _place(self, command: jobs.PlaceSegment) -> None:
        job = self.queue.job(command.job)
        assert job is not None
        waits = job.state in (jobs.JobState.PREEMPTED, jobs.JobState.QUEUED) and job.memory in ("ask", "line")
        if job.held_on is None or not (waits or job.state is jobs.JobState.RESTORING):
            return
        if self.accounts.device(job.held_on) is None:
            return
        if job.job in self._aside_lost:
            self.tell(jobs.MemoryRefused(self.now_s, job.job, "what it had made is lost"))
            return
        self.remember(memory.SegmentWithdrawn(self.now_s, job.job))
        account = self.accounts.session(job.session)
        if account is not None and (account.target or account.device) != job.held_on:
            for mate in self.queue.jobs_of(job.session):
                self.remember(memory.SegmentWithdrawn(self.now_s, mate))
            self.remember(memory.SessionBound(self.now_s, job.session, job.held_on))
        self.remember(replace(self._asked[job.job], at_s=self.now_s))

    def _start(self, command: jobs.StartSegment) -> None:
        job = self.queue.job(command.job)
        assert job is not None
        self.started_s.setdefault(command.job, self.now_s)
        ends_s = self.now_s + self._seconds[command.job] * (1 - job.ops_done / OPS)
        self.runs[command.device] = (command.job, ends_s)
        self._after(ends_s - self.now_s, lambda: self._finish(command.job, command.device, ends_s))

    # -- workers -------------------------------------------------------------------------------------------

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_s + delay_s, next(self._numbers), act))

    def _finish(self, job: str, device: str, ends_s: float) -> None:
        if self.runs.get(device) == (job, ends_s):
            self._stop(job, device)
            self.tell(jobs.SegmentFinished(self.now_s, job, 0, "done", OPS))
            self._over(job)

    def _cancelled(self, job: str, device: str) -> None:
        if self.runs.get(device, ("",))[0] == job:
            self._stop(job, device)
            self.tell(jobs.SegmentFinished(self.now_s, job, 0, "cancelled", 0))
            self._over(job)

    def _over(self, job: str) -> None:
        self.ended_s[job] = self.now_s
        session = self._asked[job].session
        if not self.queue.has_unfinished(session):
            self.remember(memory.CellEnded(self.now_s, session))

    def lose(self, device: str, back_after_s: float) -> None:
        """Its process dies; another one takes its place. What was parked outlives it."""
        if device in self._gone:
            return
        self._gone.add(device)
        self.runs.pop(device, None)
        self._held[device].clear()
        self._lives[device] += 1
        self.remember(memory.DeviceLost(self.now_s, device))
        self.tell(jobs.DeviceLost(self.now_s, device, "it was killed"))
        self._after(back_after_s, lambda: self._add(device))

    def _add(self, device: str) -> None:
        self._gone.discard(device)
        size = self._size
        self.remember(memory.DeviceAdded(self.now_s, device, size, 100 * size, 0, 1e9))
        self.tell(jobs.DeviceAdded(self.now_s, device, size, 1e9))

    def _move_aside(self, job: str, device: str) -> None:
        running, ends_s = self.runs.get(device, ("", 0.0))
        if running == job:
            self._stop(job, device)
            ops = OPS - math.ceil(OPS * (ends_s - self.now_s) / self._seconds[job])
            known = self.queue.job(job)
            assert known is not None
            move_s = self.accounts.move_s(known.session)
            ops = min(OPS, max(ops, known.ops_done))
            self.tell(jobs.SegmentPreempted(self.now_s, job, 0, ops, move_s))

    def _stop(self, job: str, device: str) -> None:
        del self.runs[device]
        asked = self._asked[job]
        self._held[device][asked.session] = asked.peak_bytes
        self._report(device, job)

    def _report(self, device: str, job: str | None = None) -> None:
        here = self._held[device]
        parked = self._parked[device]
        unstored = {session: nbytes for session, nbytes in here.items() if session not in parked}
        used = sum(here.values())
        self.remember(
            memory.MemoryReported(
                self.now_s,
                device,
                used,
                used,
                dict(here),
                unstored_bytes=unstored,
                host_bytes=sum(parked.values()),
                job=job,
            )
        )

    # -- session memory ------------------------------------------------------------------------------------

    def remember(self, event: memory.Event) -> None:
        if isinstance(event, memory.SegmentWithdrawn):
            withdrawn = event.job
            self._answers.drop(lambda command: about(command, withdrawn))
        self._answers.put(self.accounts.handle(event))
        self._answers.run()

    def _obey(self, command: memory.Command) -> None:
        match command:
            case memory.GrantSegment() if command.job in self._aside_lost:
                self.tell(jobs.MemoryRefused(self.now_s, command.job, "what it had made is lost"))
            case memory.GrantSegment():
                self.tell(jobs.MemoryGranted(self.now_s, command.job, self._target(command.job)))
            case memory.HoldSegment():
                device = self._target(command.job)
                held = jobs.MemoryHeld(
                    self.now_s,
                    command.job,
                    command.reason,
                    command.estimate_s,
                    command.in_line,
                    command.room,
                    device,
                )
                self.tell(held)
            case memory.RefuseSegment():
                self.tell(jobs.MemoryRefused(self.now_s, command.job, command.message))
            case memory.MoveRefused():
                self.tell(jobs.MoveRefused(self.now_s, command.job, command.device, command.reason))
            case memory.DropParked():
                self._parked[command.device].pop(command.session, None)
            case (
                memory.StoreSession()
                | memory.EvictSession()
                | memory.RestoreSession()
                | memory.DemoteSession()
                | memory.ForgetStored()
            ):
                life = self._lives[command.device]
                self._after(0.01, lambda: self._copied(command, life))
            case memory.ValuesLost():
                mates = (self.queue.job(name) for name in self.queue.jobs_of(command.session))
                aside = [job.job for job in mates if job and job.state is jobs.JobState.PREEMPTED]
                self._aside_lost.update(aside)
            case _:
                pass

    def _target(self, job: str) -> str | None:
        account = self.accounts.session(self._asked[job].session)
        return None if account is None else account.target or account.device

    def _copied(
        self,
        command: memory.StoreSession
        | memory.EvictSession
        | memory.RestoreSession
        | memory.DemoteSession
        | memory.ForgetStored,
        life: int,
    ) -> None:
        device, session = command.device, command.session
        if life != self._lives[device]:
            return
        here, parked = self._held[device], self._parked[device]
        kind: memory.TransferKind
        match command:
            case memory.StoreSession():
                kind = "store"
                parked[session] = here[session]
            case memory.EvictSession():
                kind = "evict"
                here.pop(session, None)
            case memory.RestoreSession():
                kind = "restore"
                source = next(there for there in self._parked.values() if session in there)
                here[session] = source[session]
                if source is not parked:
                    parked[session] = source[session]
            case memory.ForgetStored():
                kind = "forget"
                parked.pop(session, None)
            case memory.DemoteSession():
                raise AssertionError("there is no disk")
        self._report(device)
        done = memory.TransferDone(self.now_s, command.transfer, session, device, kind)
        self.remember(done)
