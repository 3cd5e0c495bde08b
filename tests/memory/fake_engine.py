"""A worker without a device: obey the commands of session memory in any order, and refuse those that break a
limit. The accounts of session memory are tested against the bytes that it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from djinn_lab.memory import (
    Command,
    DeferSegment,
    DemoteSession,
    DropParked,
    EvictSession,
    ExpediteTransfer,
    FirstValuesRestored,
    ForgetStored,
    FreeSession,
    GrantSegment,
    MemoryReported,
    RejectSegment,
    RestoreSession,
    StoreSession,
    TransferDone,
    TransferFailed,
    ValuesLost,
)

KINDS = {
    StoreSession: "store",
    EvictSession: "evict",
    RestoreSession: "restore",
    DemoteSession: "demote",
    ForgetStored: "forget",
}
Copying = StoreSession | EvictSession | RestoreSession | DemoteSession | ForgetStored


@dataclass
class Held:
    """Bytes of one session: on the device, valid on the host, on the disk."""

    device: int = 0
    host: int = 0
    disk: int = 0


@dataclass
class FakeEngine:
    """One device with its tiers. ``peers``: engines whose files it can read, itself among them. ``orphans``:
    sessions that a dead process of it had parked; their files go once no session needs them. ``jobs``: by
    restore, the job whose segment may start before the restore's end. ``opened``: restores whose first values
    are there, with all of their bytes taken."""

    device: str
    memory_bytes: int
    host_bytes: int
    disk_bytes: int
    sessions: dict[str, Held] = field(default_factory=dict)
    under_way: dict[int, Copying] = field(default_factory=dict)
    granted: set[str] = field(default_factory=set)
    held: dict[str, DeferSegment] = field(default_factory=dict)
    refused: list[RejectSegment] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    jobs: dict[int, str] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    peers: dict[str, FakeEngine] = field(default_factory=dict)
    orphans: set[str] = field(default_factory=set)

    @property
    def used_bytes(self) -> int:
        return sum(held.device for held in self.sessions.values())

    def used_below(self, tier: str) -> int:
        return sum(getattr(held, tier) for held in self.sessions.values())

    def own_below(self, tier: str) -> int:
        """What this process knows of: no other one may count what a dead one left."""
        return sum(getattr(held, tier) for name, held in self.sessions.items() if name not in self.orphans)

    def obey(self, command: Command) -> None:
        match command:
            case StoreSession() | EvictSession() | RestoreSession() | DemoteSession() | ForgetStored():
                assert command.transfer not in self.numbers, "a transfer's number twice"
                assert all(other.session != command.session for other in self.under_way.values())
                self.numbers.add(command.transfer)
                if isinstance(command, RestoreSession) and command.job:
                    self.jobs[command.transfer] = command.job
                self.under_way[command.transfer] = command
            case ExpediteTransfer():
                assert command.transfer in self.under_way
                if command.job:
                    self.jobs[command.transfer] = command.job
            case FreeSession():
                self.sessions.pop(command.session, None)
                self.orphans.discard(command.session)
                self.under_way = {n: c for n, c in self.under_way.items() if c.session != command.session}
            case DropParked():
                held = self.sessions.pop(command.session)
                assert not held.device, "dropped while it was on the device"
            case GrantSegment():
                self.held.pop(command.job, None)
                self.granted.add(command.job)
            case DeferSegment():
                self.held[command.job] = command
            case RejectSegment():
                self.held.pop(command.job, None)
                self.refused.append(command)
            case ValuesLost():
                self.lost.append(command.session)

    def report(self, at_s: float, job: str | None = None) -> MemoryReported:
        here = {name: held for name, held in self.sessions.items() if held.device}
        return MemoryReported(
            at_s,
            self.device,
            self.used_bytes,
            self.used_bytes,
            {name: held.device for name, held in here.items()},
            unstored_bytes={name: held.device - held.host for name, held in here.items()},
            host_bytes=self.own_below("host"),
            disk_bytes=self.own_below("disk"),
            job=job,
        )

    def is_open(self, session: str) -> bool:
        """Whether a cell may use the session while it is being restored."""
        return any(
            self.under_way[number].session == session for number in self.opened & self.under_way.keys()
        )

    def open(self, number: int, at_s: float) -> FirstValuesRestored | None:
        """Report the first values of a restore. None if the session does not fit or no job waits for them."""
        command = self.under_way[number]
        job = self.jobs.get(number)
        copied = self.parked(command.session)[1]
        nbytes = copied.host or copied.disk
        free_bytes = self.memory_bytes - self.used_bytes
        if job is None or (number not in self.opened and nbytes > free_bytes):
            return None
        self.opened.add(number)
        self.sessions.setdefault(command.session, Held()).device = nbytes
        return FirstValuesRestored(at_s, number, command.session, self.device, job)

    def end(self, command: Copying) -> None:
        """End a transfer, done or failed. An open session has no bytes on the device until its restore is
        done."""
        self.under_way.pop(command.transfer, None)
        if command.transfer in self.opened:
            self.opened.discard(command.transfer)
            self.sessions[command.session].device = 0

    def finish(self, number: int, at_s: float) -> TransferDone | TransferFailed:
        """Carry the transfer out, or refuse it for want of capacity."""
        command = self.under_way[number]
        held = self.sessions.setdefault(command.session, Held())
        self.end(command)
        kind = KINDS[type(command)]
        copied = 0
        match command:
            case StoreSession():
                copied = held.device - held.host
                if self.own_below("host") + copied > self.host_bytes:
                    return self.failed(command, at_s, "the host is full", "host")
                held.host = held.device
            case EvictSession():
                if held.host < held.device and not command.discard:
                    return self.failed(command, at_s, "not stored whole", None)
                held.device = 0
                self.orphans.discard(command.session)
                if command.discard:
                    held.host = held.disk = 0
            case RestoreSession():
                at, parked = self.parked(command.session)
                copied = parked.host or parked.disk
                assert copied, "there is nothing to restore"
                if self.used_bytes + copied > self.memory_bytes:
                    return self.failed(command, at_s, "the device is full", "device")
                own = at is self
                held.device, held.host, held.disk = copied, copied if own and held.host else 0, 0
                if not own and command.session in at.orphans:
                    del at.sessions[command.session]
                at.orphans.discard(command.session)
            case DemoteSession():
                copied = held.host
                if self.own_below("disk") + copied > self.disk_bytes:
                    return self.failed(command, at_s, "the disk is full", "disk")
                held.host, held.disk = 0, copied
            case ForgetStored():
                held.host = 0
        checked = copied // 64 if kind == "restore" else 0
        return TransferDone(at_s, number, command.session, self.device, kind, copied, 0.01, 0.0, checked)

    def parked(self, session: str) -> tuple[FakeEngine, Held]:
        """Return the engine that has the session's bytes on its host or disk, and those bytes."""
        for engine in (self, *self.peers.values()):
            held = engine.sessions.get(session, Held())
            if (not held.device or engine.is_open(session)) and (held.host or held.disk):
                return engine, held
        raise AssertionError(f"{session} is parked nowhere")

    def failed(
        self, command: Copying, at_s: float, reason: str, full: str | None, mismatch: bool = False
    ) -> TransferFailed:
        self.end(command)
        if mismatch:
            at = self.parked(command.session)[0]
            self.sessions[command.session] = Held()
            if command.session in at.orphans:
                at.orphans.discard(command.session)
                at.sessions.pop(command.session)
        kind = KINDS[type(command)]
        return TransferFailed(
            at_s, command.transfer, command.session, self.device, kind, reason, full, mismatch
        )

    def die(self) -> set[str]:
        """Lose the device and return the sessions that lost bytes. Bytes on the host or the disk stay."""
        lost = {name for name, held in self.sessions.items() if held.device > held.host and not held.disk}
        for name, held in self.sessions.items():
            held.device = 0
            if held.host or held.disk:
                self.orphans.add(name)
        self.under_way.clear()
        self.granted.clear()
        self.held.clear()
        return lost
