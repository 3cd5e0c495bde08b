"""The engine as the live pool's driver has it, in simulated time: commands go to simulated devices, and what
these say comes back as events."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from djinn_lab import engine, jobs, memory
from djinn_lab.simulator.device import Hardware, SimulatedDevice
from djinn_lab.simulator.lanes import SimulatedClock

OPS = 10
TICK_S = 0.25
"""As often as the pool ticks."""


@dataclass(slots=True)
class SimulatedRun:
    """A segment that runs; ``takes_s``: the whole segment, which began so long before ``ends_s``."""

    device: str
    takes_s: float
    ends_s: float


class SimulatedDriver(ABC):
    """Drive the engine of a simulated pool; a subclass says how much memory and time each cell takes.
    ``runs``: by job. ``hosts``: by device, where there are several."""

    def __init__(self, devices: Mapping[str, Hardware], hosts: Mapping[str, str] | None = None) -> None:
        self._hosts = hosts or {}
        self.engine = engine.Engine()
        self.queue = self.engine.queue
        self.clock = SimulatedClock()
        self.devices: dict[str, SimulatedDevice] = {}
        for name, hardware in devices.items():
            self.devices[name] = SimulatedDevice(name, hardware, self.clock, self.send, self.devices)
        self.runs: dict[str, SimulatedRun] = {}
        self._dead: set[str] = set()
        self._commands: engine.CommandQueue[engine.Command] = engine.CommandQueue(self.perform)

    def start(self) -> None:
        """Bring up all devices."""
        for name in self.devices:
            self._come_up(name)

    # -- what a subclass says ------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, job: jobs.Job, device: SimulatedDevice) -> float | None:
        """Take the memory of a segment that starts or resumes. The seconds that all of it takes; None: the
        device lacks the memory."""

    @abstractmethod
    def stopped(self, job: jobs.Job, device: SimulatedDevice) -> None:
        """Note that the job's segment does not run any more, for whatever reason."""

    # -- time ----------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.clock.now_s

    def run(self, until_s: float) -> None:
        while self.step(until_s):
            pass

    def step(self, until_s: float = math.inf) -> bool:
        """Simulate the next event; return False, with the clock at ``until_s``, when none is due before."""
        clock, due_s = self.clock, self.engine.due_s()
        tick_s = math.floor(clock.now_s / TICK_S + 1) * TICK_S
        if due_s is not None:
            tick_s = min(tick_s, max(due_s, clock.now_s))
        if min(tick_s, clock.next_s) > until_s:
            clock.now_s = until_s
            return False
        if clock.next_s <= tick_s:
            clock.step()
        else:
            clock.now_s = tick_s
            self.send(engine.ClockTicked(tick_s))
        return True

    # -- the engine ----------------------------------------------------------------------------------------

    def send(self, event: engine.Event) -> None:
        """Handle an event; events that its commands cause are handled at once, and their commands after
        those."""
        self._commands.put(self.handle(event))
        self._commands.run()

    def handle(self, event: engine.Event) -> list[engine.Command]:
        """Ask the engine what follows from an event."""
        return self.engine.handle(event)

    def perform(self, command: engine.Command) -> None:
        match command:
            case jobs.StartSegment():
                self._start(command)
            case jobs.PreemptSegment():
                self.clock.after(0.0, lambda: self._preempt(command.job, command.device))
            case jobs.CancelSegment():
                self.clock.after(0.0, lambda: self._end(command.job, command.device, "cancelled", 0))
            case memory.ExpediteTransfer() | memory.FreeSession() | memory.DropParked():
                self.devices[command.device].perform(command)
            case _ if isinstance(command, memory.TransferCommand):
                self.devices[command.device].perform(command)
            case _:
                pass

    # -- workers -------------------------------------------------------------------------------------------

    def _start(self, command: jobs.StartSegment) -> None:
        job, name = self._job(command.job), command.device
        takes_s = self.begin(job, self.devices[name])
        if takes_s is None:
            self.runs[job.job] = SimulatedRun(name, 0.0, self.now_s)
            self.clock.after(0.0, lambda: self._end(job.job, name, "failed", job.ops_done, "out of memory"))
            return
        ends_s = self.now_s + takes_s * (1 - job.ops_done / OPS)
        running = self.runs[job.job] = SimulatedRun(name, takes_s, ends_s)
        self.clock.at(ends_s, lambda: self._finish(job.job, running))

    def _finish(self, job: str, running: SimulatedRun) -> None:
        if self.runs.get(job) is running:
            self._end(job, running.device, "done", OPS)

    def _end(self, job: str, device: str, outcome: str, ops_done: int, message: str = "") -> None:
        if self._stop(job, device) is not None:
            segment = self._job(job).segment
            self.send(jobs.SegmentFinished(self.now_s, job, segment, outcome, ops_done, message))

    def _preempt(self, job: str, device: str) -> None:
        running = self._stop(job, device)
        if running is not None:
            known = self._job(job)
            left = OPS * (running.ends_s - self.now_s) / running.takes_s if running.takes_s else 0.0
            ops_done = min(OPS, max(OPS - math.ceil(left), known.ops_done))
            self.send(engine.SegmentStopped(self.now_s, job, known.segment, ops_done))

    def _stop(self, job: str, device: str) -> SimulatedRun | None:
        """Stop the job's segment on the device and return its run; None when it does not run there."""
        running = self.runs.get(job)
        if running is None or running.device != device:
            return None
        del self.runs[job]
        self.stopped(self._job(job), self.devices[device])
        self.devices[device].report(job)
        return running

    def _job(self, job: str) -> jobs.Job:
        known = self.queue.job(job)
        assert known is not None
        return known

    def lose(self, device: str, back_after_s: float) -> None:
        """Let a device's process die and another start. Parked state outlives the process."""
        if device in self._dead:
            return
        self._dead.add(device)
        for job in [job for job, running in self.runs.items() if running.device == device]:
            del self.runs[job]
            self.stopped(self._job(job), self.devices[device])
        self.devices[device].die()
        self.send(engine.WorkerDied(self.now_s, device))
        self.send(jobs.DeviceLost(self.now_s, device, "it was killed"))
        self.clock.after(back_after_s, lambda: self._come_up(device))

    def _come_up(self, device: str) -> None:
        self._dead.discard(device)
        hardware = self.devices[device].hardware
        self.send(
            engine.DeviceAdded(
                at_s=self.now_s,
                device=device,
                memory_bytes=hardware.memory_bytes,
                host_bytes=hardware.host_bytes,
                disk_bytes=hardware.disk_bytes,
                link_bytes_per_s=hardware.link_bytes_per_s,
                slots=hardware.slots,
                host=self._hosts.get(device, ""),
            )
        )
