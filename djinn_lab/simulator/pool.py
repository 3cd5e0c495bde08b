"""A pool of the engine, with users who submit cells that take so many seconds and MiB."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from djinn_lab import engine, jobs, memory
from djinn_lab.simulator.device import Hardware, SimulatedDevice
from djinn_lab.simulator.driver import OPS, SimulatedDriver

MIB = 1 << 20
COPY_S = 0.01
"""The latency of a copy."""
QUICK_MIB_PER_S = 1_000_000


class SimulatedCell(NamedTuple):
    """One run of a job: on ``device``, until it stopped; ``until_s`` None: it still runs."""

    device: str
    from_s: float
    until_s: float | None = None


class SimulatedPool(SimulatedDriver):
    """A simulated pool whose cells take given seconds and MiB; ``started_s``, ``ended_s``: by job.
    ``history``: every run of every job. ``closed_s``: when sessions were closed; ``left_s``: by device, when
    sessions had gone to another. ``copies``: since a cell ended or came. ``devices_per_host``:
    None for all on one machine."""

    def __init__(
        self,
        devices: int,
        memory_mib: int,
        host_mib: int | None = None,
        disk_mib: int = 0,
        link_mib_per_s: int | None = None,
        devices_per_host: int | None = None,
    ) -> None:
        self.started_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.outcomes: dict[str, str] = {}
        self.stalls: list[engine.WorkStalled] = []
        self.history: defaultdict[str, list[SimulatedCell]] = defaultdict(list)
        self.closed_s: list[float] = []
        self.left_s: defaultdict[str, list[float]] = defaultdict(list)
        self.copies = 0
        self.copies_most = 0
        self._takes_s: dict[str, float] = {}
        self._keeps_bytes: dict[str, int] = {}
        self._homes: dict[str, str] = {}
        link_bytes_per_s = float((link_mib_per_s or QUICK_MIB_PER_S) * MIB)
        hardware = Hardware(
            memory_bytes=memory_mib * MIB,
            host_bytes=(100 * memory_mib if host_mib is None else host_mib) * MIB,
            disk_bytes=disk_mib * MIB,
            link_bytes_per_s=link_bytes_per_s,
            disk_bytes_per_s=link_bytes_per_s,
            copy_latency_s=COPY_S,
            bookkeeping_s=COPY_S,
            slots=1,
        )
        names = [f"cpu:{number}" for number in range(devices)]
        hosts = {
            name: f"host{number // devices_per_host}" for number, name in enumerate(names) if devices_per_host
        }
        super().__init__(dict.fromkeys(names, hardware), hosts)
        self.start()

    # -- people --------------------------------------------------------------------------------------------

    def open(self, session: str) -> None:
        self.send(memory.SessionOpened(self.now_s, session, session))

    def close(self, session: str) -> None:
        self.copies = 0
        self.closed_s.append(self.now_s)
        self.send(engine.SessionClosed(self.now_s, session))

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
        """Submit a cell whose session keeps ``mib`` afterwards, or what it held before if that is more.
        ``seconds``: that it takes; ``expected_s``: that it is expected to take, None for just that."""
        self._takes_s[job], self._keeps_bytes[job] = seconds, mib * MIB
        segment = jobs.SegmentSubmitted(
            at_s=self.now_s,
            job=job,
            segment=0,
            session=session,
            user=session,
            priority=priority,
            ops_total=OPS,
            final=True,
            target=target,
            predicted_s=seconds if expected_s is None else expected_s,
            account=account or session,
        )
        self.copies = 0
        self.send(engine.SegmentArrived(self.now_s, segment, mib * MIB, kept_bytes=mib * MIB))

    @property
    def held_from_idle_devices(self) -> list[str]:
        """Return the cells that would start on an idle device now if only memory were granted."""
        return [job for job, _ in self.queue.would_start(self.now_s)]

    # -- the engine ----------------------------------------------------------------------------------------

    def perform(self, command: engine.Command) -> None:
        match command:
            case engine.WorkStalled():
                self.stalls.append(command)
            case jobs.Notify(device=str(device)):
                self._follow(self._job(command.job).session, device)
            case jobs.Notify() if command.state in jobs.FINISHED:
                self.ended_s[command.job] = self.now_s
                self.outcomes[command.job] = str(command.state)
                self.copies = 0
            case _ if isinstance(command, memory.TransferCommand):
                self.copies += 1
                self.copies_most = max(self.copies_most, self.copies)
            case _:
                pass
        super().perform(command)

    def _follow(self, session: str, device: str) -> None:
        before = self._homes.get(session, device)
        if before != device:
            self.left_s[before].append(self.now_s)
        self._homes[session] = device

    # -- cells ---------------------------------------------------------------------------------------------

    def begin(self, job: jobs.Job, device: SimulatedDevice) -> float | None:
        missing = max(0, self._keeps_bytes[job.job] - device.bytes_of(job.session))
        if not device.grow(job.session, missing):
            return None
        device.rewrite(job.session)
        self.started_s.setdefault(job.job, self.now_s)
        self.history[job.job].append(SimulatedCell(device.name, self.now_s))
        return self._takes_s[job.job]

    def stopped(self, job: jobs.Job, device: SimulatedDevice) -> None:
        device.rewrite(job.session)
        runs = self.history[job.job]
        runs[-1] = runs[-1]._replace(until_s=self.now_s)
