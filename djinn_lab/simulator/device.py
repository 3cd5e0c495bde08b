"""A simulated worker's memory: obeys session memory's commands in simulated time, with true limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from djinn_lab.memory import (
    DemoteSession,
    DropParked,
    EvictSession,
    ExpediteTransfer,
    ForgetStored,
    FreeSession,
    MemoryReported,
    RestoreSession,
    StoreSession,
    TransferCommand,
    TransferDone,
    TransferFailed,
    TransferKind,
)
from djinn_lab.simulator.lanes import SimulatedClock, SimulatedCopy, SimulatedLane

PIECE_BYTES = 2**21
"""Hashes are over pieces of this size."""

DeviceCommand = TransferCommand | ExpediteTransfer | FreeSession | DropParked
DeviceEvent = MemoryReported | TransferDone | TransferFailed


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The size and speed of a device; ``memory_bytes``: for sessions, without weights. Copies take
    ``copy_latency_s`` and then ``link_bytes_per_s``, to and from the disk ``disk_bytes_per_s``.
    ``bookkeeping_s``: dropping a copy. ``slots``: cells that run at once."""

    memory_bytes: int
    host_bytes: int
    disk_bytes: int
    link_bytes_per_s: float
    disk_bytes_per_s: float
    copy_latency_s: float
    bookkeeping_s: float
    slots: int


@dataclass(slots=True)
class SessionBytes:
    """Bytes of one session on device, host and disk; those on host and disk are valid copies, no part of it
    in both. What came back from the disk stays there, too, until it changes."""

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def stored(self) -> int:
        return self.host + self.disk


@dataclass(slots=True)
class TransferUnderWay:
    """A transfer under way. ``nbytes``: reserved for it in ``tier``; ``foreign``: another process parked
    the state."""

    command: TransferCommand
    kind: TransferKind
    tier: str = ""
    nbytes: int = 0
    foreign: bool = False


class SimulatedDevice:
    """Simulate one device. ``send`` receives its events. ``others``: devices of the host, itself among them,
    by name."""

    def __init__(
        self,
        name: str,
        hardware: Hardware,
        clock: SimulatedClock,
        send: Callable[[DeviceEvent], None],
        others: Mapping[str, SimulatedDevice],
    ) -> None:
        self.name = name
        self.hardware = hardware
        self.held: dict[str, SessionBytes] = {}
        self.used = {"device": 0, "host": 0, "disk": 0}
        self.highest_bytes = 0
        self._clock = clock
        self._send = send
        self._others = others
        self._lanes = {kind: SimulatedLane(clock) for kind in ("store", "restore", "demote")}
        self._moving: dict[int, TransferUnderWay] = {}
        self._limits = {
            "device": hardware.memory_bytes,
            "host": hardware.host_bytes,
            "disk": hardware.disk_bytes,
        }

    # -- cells ---------------------------------------------------------------------------------------------

    def bytes_of(self, session: str) -> int:
        """Return the bytes that the session holds on the device."""
        held = self.held.get(session)
        return held.device if held is not None else 0

    def grow(self, session: str, nbytes: int) -> bool:
        """Add bytes to the session; return False, with nothing changed, when memory is short."""
        if self.used["device"] + nbytes > self.hardware.memory_bytes:
            return False
        held = self.held.setdefault(session, SessionBytes())
        self._set(held, "device", held.device + nbytes)
        return True

    def rewrite(self, session: str) -> None:
        """Drop the stored copy of a session's state, which is outdated."""
        held = self.held.setdefault(session, SessionBytes())
        self._set(held, "host", 0)
        self._set(held, "disk", 0)

    def report(self, job: str | None = None) -> None:
        here = {name: held for name, held in self.held.items() if held.device}
        self._send(
            MemoryReported(
                self._clock.now_s,
                self.name,
                self.used["device"],
                self.highest_bytes,
                {name: held.device for name, held in here.items()},
                kv_bytes={name: held.device for name, held in here.items()},
                unstored_bytes={
                    name: held.device - held.stored
                    for name, held in here.items()
                    if held.device > held.stored
                },
                host_bytes=self.used["host"],
                disk_bytes=self.used["disk"],
                on_disk_bytes={name: held.disk for name, held in self.held.items() if held.disk},
                job=job,
            )
        )

    def die(self) -> None:
        """End the worker process. What it parked outlives it."""
        for moving in self._moving.values():
            held = self.held[moving.command.session]
            if moving.tier in ("host", "disk"):
                self._set(held, moving.tier, max(0, getattr(held, moving.tier) - moving.nbytes))
        self._moving.clear()
        self._lanes = {kind: SimulatedLane(self._clock) for kind in self._lanes}
        for held in self.held.values():
            self._set(held, "device", 0)

    # -- moving --------------------------------------------------------------------------------------------

    def perform(self, command: DeviceCommand) -> None:
        match command:
            case StoreSession() | RestoreSession() | DemoteSession():
                self._copy(command)
            case EvictSession() | ForgetStored():
                kind: TransferKind = "evict" if isinstance(command, EvictSession) else "forget"
                self._moving[command.transfer] = TransferUnderWay(command, kind)
                self._clock.after(self.hardware.bookkeeping_s, lambda: self._drop(command))
            case ExpediteTransfer():
                for lane in self._lanes.values():
                    lane.expedite(command.transfer)
            case FreeSession():
                self._free(command.session)
            case DropParked():
                self.rewrite(command.session)

    def _free(self, session: str) -> None:
        for number in [number for number, one in self._moving.items() if one.command.session == session]:
            del self._moving[number]
            for lane in self._lanes.values():
                lane.remove(number)
        held = self.held.pop(session, None)
        if held is not None:
            for tier in self.used:
                self._set(held, tier, 0)
        self.report()

    def _copy(self, command: StoreSession | RestoreSession | DemoteSession) -> None:
        hardware, held = self.hardware, self.held.setdefault(command.session, SessionBytes())
        rate, foreign = hardware.link_bytes_per_s, False
        kind: TransferKind = "store"
        match command:
            case StoreSession():
                tier, nbytes = "host", max(0, held.device - held.stored)
            case DemoteSession():
                kind, tier, nbytes, rate = "demote", "disk", held.host, hardware.disk_bytes_per_s
            case RestoreSession():
                source = held if held.stored else self._parked_elsewhere(command.session)
                kind, tier, foreign = "restore", "device", source is not held
                nbytes = source.stored
                rate = min(rate, hardware.disk_bytes_per_s) if source.disk else rate
        moving = self._moving[command.transfer] = TransferUnderWay(command, kind, tier, nbytes, foreign)
        if self.used[tier] + nbytes > self._limits[tier]:
            moving.nbytes = 0
            self._clock.after(0.0, lambda: self._refuse(moving))
            return
        self._set(held, tier, getattr(held, tier) + nbytes)
        copy = SimulatedCopy(
            command.transfer,
            hardware.copy_latency_s + nbytes / rate,
            lambda took_s, queued_s: self._copied(moving, took_s, queued_s),
            self._clock.now_s,
            expedited=not isinstance(command, DemoteSession) and command.expedited,
        )
        self._lanes[kind].add(copy)

    def _parked_elsewhere(self, session: str) -> SessionBytes:
        """Return the state that the process of another device parked."""
        parked = (device.held[session] for device in self._others.values() if session in device.held)
        return next(held for held in parked if held.stored)

    def _over(self, command: TransferCommand) -> TransferUnderWay | None:
        """Forget a transfer and return it; None for a transfer that was given up meanwhile."""
        return self._moving.pop(command.transfer, None)

    def _refuse(self, moving: TransferUnderWay) -> None:
        command = moving.command
        if self._over(command) is None:
            return
        reason = f"the {moving.tier} is full"
        self._send(
            TransferFailed(
                self._clock.now_s,
                command.transfer,
                command.session,
                self.name,
                moving.kind,
                reason,
                full=moving.tier,
            )
        )

    def _copied(self, moving: TransferUnderWay, took_s: float, queued_s: float) -> None:
        command, kind, nbytes = moving.command, moving.kind, moving.nbytes
        if self._over(command) is None:
            return
        held = self.held[command.session]
        if kind == "demote":
            self._set(held, "host", 0)
        elif moving.foreign:  # the parked pieces belong to this process now
            self._set(held, "host", nbytes)
        checked = -(-nbytes // PIECE_BYTES) if kind == "restore" else 0
        self.report()
        self._send(
            TransferDone(
                self._clock.now_s,
                command.transfer,
                command.session,
                self.name,
                kind,
                nbytes,
                took_s,
                queued_s,
                checked,
                whole=held.stored >= held.device,
            )
        )

    def _drop(self, command: EvictSession | ForgetStored) -> None:
        moving = self._over(command)
        if moving is None:
            return
        held = self.held[command.session]
        if isinstance(command, EvictSession):
            assert command.discard or held.stored >= held.device, "an eviction of what is not stored"
            self._set(held, "device", 0)
        if isinstance(command, ForgetStored) or command.discard:
            self.rewrite(command.session)
        self.report()
        self._send(TransferDone(self._clock.now_s, command.transfer, command.session, self.name, moving.kind))

    def _set(self, held: SessionBytes, tier: str, nbytes: int) -> None:
        self.used[tier] += nbytes - getattr(held, tier)
        setattr(held, tier, nbytes)
        if tier == "device":
            self.highest_bytes = max(self.highest_bytes, self.used["device"])
