"""A simulated pool whose workers run cells before their session is fully restored."""

from __future__ import annotations

from functools import partial
from typing import Any

from djinn_lab import engine, jobs, memory
from djinn_lab.simulator.device import SimulatedDevice, TransferUnderWay
from djinn_lab.simulator.driver import OPS, SimulatedRun
from djinn_lab.simulator.pool import SimulatedCell, SimulatedPool

FIRST_SHARE = 0.2
"""Share of a restore after which the values that the first op reads are there."""
LOOK_S = 0.005


class EarlyPool(SimulatedPool):
    """``early``: cells that started before the end of a restore. ``failing``: sessions whose next restore
    fails at its end. A segment is answered after the end of its session's restore, as by a real worker."""

    def __init__(self, *arguments: Any) -> None:
        self.early: list[str] = []
        self.failing: set[str] = set()
        super().__init__(*arguments)
        for device in self.devices.values():
            copied = device._copied
            device._copied = partial(self._copied, device, copied)  # type: ignore[method-assign]

    def perform(self, command: engine.Command) -> None:
        super().perform(command)
        match command:
            case memory.RestoreSession():
                nbytes = self.engine.accounts.session_bytes(command.session)
                copy_s = nbytes / self.devices[command.device].hardware.link_bytes_per_s
                self._open_after(FIRST_SHARE * copy_s, command)
            case memory.ExpediteTransfer():
                self._open_after(0.0, command)
            case _:
                pass

    def _open_after(self, delay_s: float, command: memory.RestoreSession | memory.ExpediteTransfer) -> None:
        if command.job:
            self.clock.after(delay_s, lambda: self._open(command))

    def _open(self, command: memory.RestoreSession | memory.ExpediteTransfer) -> None:
        device, session = self.devices[command.device], command.session
        moving = device._moving.get(command.transfer)
        if moving is not None and moving.kind == "restore" and moving.nbytes:
            device.report()
            self.send(
                memory.FirstValuesRestored(self.now_s, command.transfer, session, device.name, command.job)
            )

    def _restoring(self, job: jobs.Job, device: SimulatedDevice) -> bool:
        moving = device._moving.values()
        return any(one.kind == "restore" and one.command.session == job.session for one in moving)

    def _copied(self, device: SimulatedDevice, copied: Any, moving: TransferUnderWay, *times: float) -> None:
        session = moving.command.session
        if (
            moving.kind != "restore"
            or session not in self.failing
            or moving.command.transfer not in (device._moving)
        ):
            copied(moving, *times)
            return
        self.failing.discard(session)
        device._over(moving.command)
        device._set(device.held[session], "device", 0)
        device.report()
        number = moving.command.transfer
        self.send(memory.TransferFailed(self.now_s, number, session, device.name, "restore", "it is broken"))
        for job in [name for name, run in self.runs.items() if run.device == device.name]:
            known = self._job(job)
            if known.session == session:
                del self.runs[job]
                self._ran(known)
                device.report(job)
                self.send(engine.SegmentStopped(self.now_s, job, known.segment, 0, undone=True))

    # -- cells: what they change, and their answers, wait for the end of the restore

    def begin(self, job: jobs.Job, device: SimulatedDevice) -> float | None:
        if not self._restoring(job, device):
            return super().begin(job, device)
        self.early.append(job.job)
        self.started_s.setdefault(job.job, self.now_s)
        self.history[job.job].append(SimulatedCell(device.name, self.now_s))
        return self._takes_s[job.job]

    def stopped(self, job: jobs.Job, device: SimulatedDevice) -> None:
        if self._restoring(job, device):
            self._ran(job)
            return
        device.grow(job.session, max(0, self._keeps_bytes[job.job] - device.bytes_of(job.session)))
        super().stopped(job, device)

    def _ran(self, job: jobs.Job) -> None:
        runs = self.history[job.job]
        runs[-1] = runs[-1]._replace(until_s=self.now_s)

    def _waits(self, job: str, device: str) -> bool:
        run = self.runs.get(job)
        return (
            run is not None and run.device == device and self._restoring(self._job(job), self.devices[device])
        )

    def _finish(self, job: str, running: SimulatedRun) -> None:
        if self.runs.get(job) is running and self._waits(job, running.device):
            self.clock.after(LOOK_S, lambda: self._finish(job, running))
        else:
            super()._finish(job, running)

    def _end(self, job: str, device: str, outcome: str, ops_done: int, message: str = "") -> None:
        if self._waits(job, device):
            self.clock.after(LOOK_S, lambda: self._end(job, device, outcome, ops_done, message))
        else:
            super()._end(job, device, outcome, ops_done, message)

    def _preempt(self, job: str, device: str) -> None:
        run = self.runs.get(job)
        if self._waits(job, device):
            self.clock.after(LOOK_S, lambda: self._preempt(job, device))
        elif run is None or run.ends_s > self.now_s:  # else it ends by itself now
            super()._preempt(job, device)


def progressed(pool: EarlyPool, job: str, ops_done: int) -> None:
    assert ops_done <= OPS
    pool.send(jobs.SegmentProgressed(pool.now_s, job, 0, ops_done))
