"""The engine as the live pool drives it, in simulated time: workers that take their time over cells, copies
that take a hundredth of a second."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from djinn_lab import engine, jobs, memory

MIB = 1 << 20
OPS = 10
TICK_S = 0.25
COPY_S = 0.01


class Run(NamedTuple):
    """A job had ``device`` from then until it stopped, however that came; None: it runs."""

    device: str
    from_s: float
    until_s: float | None = None


class SimulatedPool:
    """``started_s``, ``ended_s``: by job. ``runs``: by device, which job, and until when it would.
    ``history``: every run of every job. ``closed_s``: when sessions were closed. ``copies``: since a cell
    ended or came."""

    def __init__(
        self,
        devices: int,
        memory_mib: int,
        host_mib: int | None = None,
        disk_mib: int = 0,
        link_mib_per_s: int | None = None,
    ) -> None:
        self.engine = engine.Engine()
        self.queue = self.engine.queue
        self.now_s = 0.0
        self.devices = [f"cpu:{number}" for number in range(devices)]
        self.started_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.outcomes: dict[str, str] = {}
        self.runs: dict[str, tuple[str, float]] = {}
        self.stalls: list[engine.WorkStalled] = []
        self.history: defaultdict[str, list[Run]] = defaultdict(list)
        self.closed_s: list[float] = []
        self.copies = 0
        self.copies_most = 0
        self._takes_s: dict[str, float] = {}
        self._under_way: dict[int, tuple[str, str]] = {}
        self._arrived: dict[str, engine.SegmentArrived] = {}
        self._held: dict[str, dict[str, int]] = {device: {} for device in self.devices}
        self._parked: dict[str, dict[str, int]] = {device: {} for device in self.devices}
        self._on_disk: dict[str, dict[str, int]] = {device: {} for device in self.devices}
        self._commands: engine.InTurn[engine.Command] = engine.InTurn(self.perform)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._size = memory_mib * MIB
        self._host_bytes = 100 * self._size if host_mib is None else host_mib * MIB
        self._disk_bytes = disk_mib * MIB
        self._link_mib_per_s = link_mib_per_s
        self._gone: set[str] = set()
        self._lives = dict.fromkeys(self.devices, 0)
        for device in self.devices:
            self._add(device)

    # -- people --------------------------------------------------------------------------------------------

    def open(self, session: str) -> None:
        self.tell(memory.SessionOpened(self.now_s, session, session))

    def close(self, session: str) -> None:
        self.copies = 0
        self.closed_s.append(self.now_s)
        self.tell(engine.SessionClosed(self.now_s, session))

    def submit(
        self,
        job: str,
        session: str,
        *,
        account: str = "",
        priority: jobs.Priority = jobs.Priority.NORMAL,
        seconds: float = 1.0,
        expected_s: float | None = None,
        mib: int = 1,
        target: str | None = None,
    ) -> None:
        """A cell that leaves behind what it needs at most, or what was there before if that is more.
        ``seconds``: that it takes; ``expected_s``: that it is expected to take, None for just that."""
        self._takes_s[job] = seconds
        segment = jobs.SegmentSubmitted(
            at_s=self.now_s,
            job=job,
            segment=0,
            session=session,
            user=session,
            priority=priority,
            ops_total=OPS,
            final=True,
            wish=target,
            predicted_s=seconds if expected_s is None else expected_s,
            account=account or session,
        )
        self._arrived[job] = engine.SegmentArrived(self.now_s, segment, mib * MIB, kept_bytes=mib * MIB)
        self.copies = 0
        self.tell(self._arrived[job])

    # -- time ----------------------------------------------------------------------------------------------

    def run(self, until_s: float) -> None:
        while True:
            due_s = self.engine.due_s()
            due_s = math.inf if due_s is None else max(due_s, self.now_s)
            tick_s = math.floor(self.now_s / TICK_S + 1) * TICK_S
            next_s = min(due_s, tick_s, self._due[0][0] if self._due else math.inf)
            if next_s > until_s:
                self.now_s = until_s
                return
            self.now_s = next_s
            if self._due and self._due[0][0] <= next_s:
                heapq.heappop(self._due)[2]()
            else:
                self.tell(engine.ClockTicked(self.now_s))

    @property
    def held_from_idle_devices(self) -> list[str]:
        """Cells that would start on an idle device now if only memory were granted."""
        return [job for job, _ in self.queue.would_start(self.now_s)]

    # -- the engine ----------------------------------------------------------------------------------------

    def tell(self, event: engine.Event) -> None:
        self._commands.put(self.engine.handle(event))
        self._commands.run()

    def perform(self, command: engine.Command) -> None:
        match command:
            case jobs.StartSegment():
                self._start(command)
            case jobs.PreemptSegment():
                self._after(0.0, lambda: self._preempt(command.job, command.device))
            case jobs.CancelSegment():
                self._after(0.0, lambda: self._cancelled(command.job, command.device))
            case engine.WorkStalled():
                self.stalls.append(command)
            case jobs.Notify() if command.state in jobs.FINISHED:
                self.ended_s[command.job] = self.now_s
                self.outcomes[command.job] = str(command.state)
                self.copies = 0
            case memory.DropParked():
                self._parked[command.device].pop(command.session, None)
                self._on_disk[command.device].pop(command.session, None)
            case memory.FreeSession():
                self._end_transfers(command)
                for tier in (self._held, self._parked, self._on_disk):
                    tier[command.device].pop(command.session, None)
                self._report(command.device)
            case _ if isinstance(command, memory.TransferCommand):
                self.copies += 1
                self.copies_most = max(self.copies_most, self.copies)
                self._under_way[command.transfer] = command.session, command.device
                life = self._lives[command.device]
                self._after(self._copy_s(command), lambda: self._copied(command, life))
            case _:
                pass

    def _end_transfers(self, freed: memory.FreeSession) -> None:
        ended = [n for n, of in self._under_way.items() if of == (freed.session, freed.device)]
        for number in ended:
            del self._under_way[number]

    def _start(self, command: jobs.StartSegment) -> None:
        job = self.queue.job(command.job)
        assert job is not None
        self.started_s.setdefault(command.job, self.now_s)
        ends_s = self.now_s + self._seconds(command.job) * (1 - job.ops_done / OPS)
        self.runs[command.device] = (command.job, ends_s)
        self.history[command.job].append(Run(command.device, self.now_s))
        self._after(ends_s - self.now_s, lambda: self._finish(command.job, command.device, ends_s))

    def _seconds(self, job: str) -> float:
        return self._takes_s[job]

    # -- workers -------------------------------------------------------------------------------------------

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_s + delay_s, next(self._numbers), act))

    def _finish(self, job: str, device: str, ends_s: float) -> None:
        if self.runs.get(device) == (job, ends_s):
            self._stop(job, device)
            self.tell(jobs.SegmentFinished(self.now_s, job, 0, "done", OPS))

    def _cancelled(self, job: str, device: str) -> None:
        if self.runs.get(device, ("",))[0] == job:
            self._stop(job, device)
            self.tell(jobs.SegmentFinished(self.now_s, job, 0, "cancelled", 0))

    def lose(self, device: str, back_after_s: float) -> None:
        """Its process dies; another one takes its place. What was parked outlives it."""
        if device in self._gone:
            return
        self._gone.add(device)
        running = self.runs.pop(device, None)
        if running is not None:
            self._ran(running[0])
        self._held[device].clear()
        self._lives[device] += 1
        self.tell(engine.WorkerDied(self.now_s, device))
        self.tell(jobs.DeviceLost(self.now_s, device, "it was killed"))
        self._after(back_after_s, lambda: self._add(device))

    def _add(self, device: str) -> None:
        self._gone.discard(device)
        link = 1e9 if self._link_mib_per_s is None else float(self._link_mib_per_s * MIB)
        tiers = (self._host_bytes, self._disk_bytes)
        self.tell(engine.DeviceAdded(self.now_s, device, self._size, *tiers, link))

    def _preempt(self, job: str, device: str) -> None:
        running, ends_s = self.runs.get(device, ("", 0.0))
        if running == job:
            self._stop(job, device)
            known = self.queue.job(job)
            assert known is not None
            ops = OPS - math.ceil(OPS * (ends_s - self.now_s) / self._seconds(job))
            self.tell(engine.SegmentStopped(self.now_s, job, 0, min(OPS, max(ops, known.ops_done))))

    def _stop(self, job: str, device: str) -> None:
        del self.runs[device]
        self._ran(job)
        arrived = self._arrived[job]
        session, held = arrived.segment.session, self._held[device]
        held[session] = max(arrived.peak_bytes, held.get(session, 0))
        self._parked[device].pop(session, None)  # it holds what is not stored
        self._on_disk[device].pop(session, None)
        self._report(device, job)

    def _ran(self, job: str) -> None:
        self.history[job][-1] = self.history[job][-1]._replace(until_s=self.now_s)

    def _report(self, device: str, job: str | None = None) -> None:
        here, parked = self._held[device], self._parked[device]
        used = sum(here.values())
        self.tell(
            memory.MemoryReported(
                at_s=self.now_s,
                device=device,
                used_bytes=used,
                peak_bytes=used,
                session_bytes=dict(here),
                unstored_bytes={name: nbytes for name, nbytes in here.items() if name not in parked},
                host_bytes=sum(parked.values()),
                disk_bytes=sum(self._on_disk[device].values()),
                job=job,
            )
        )

    # -- copies --------------------------------------------------------------------------------------------

    def _copy_s(self, command: memory.TransferCommand) -> float:
        if self._link_mib_per_s is None or isinstance(command, memory.EvictSession | memory.ForgetStored):
            return COPY_S
        nbytes = self.engine.accounts.session_bytes(command.session)
        return COPY_S + nbytes / MIB / self._link_mib_per_s

    def _copied(self, command: memory.TransferCommand, life: int) -> None:
        device, session = command.device, command.session
        if life != self._lives[device] or self._under_way.pop(command.transfer, None) is None:
            return
        here, parked, disk = self._held[device], self._parked[device], self._on_disk[device]
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
                tiers = [parked, disk, *self._parked.values(), *self._on_disk.values()]
                nbytes = next(tier[session] for tier in tiers if session in tier)
                here[session] = nbytes
                if session not in disk:
                    parked[session] = nbytes
            case memory.ForgetStored():
                kind = "forget"
                parked.pop(session, None)
                disk.pop(session, None)
            case memory.DemoteSession():
                kind = "demote"
                disk[session] = parked.pop(session)
        self._report(device)
        self.tell(memory.TransferDone(self.now_s, command.transfer, session, device, kind))
