"""A simulated worker: obeys session memory's commands in simulated time, with true limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from djinn_lab.memory import (
    Command,
    DemoteSession,
    Event,
    EvictSession,
    ExpediteTransfer,
    ForgetStored,
    FreeSession,
    MemoryReported,
    RestoreSession,
    StoreSession,
    TransferDone,
    TransferFailed,
    TransferKind,
)
from djinn_lab.simulator.events import Clock
from djinn_lab.simulator.memory.lanes import Copy, Lane
from djinn_lab.simulator.memory.parameters import DeviceParameters

NAME = "sim:0"
PIECE_BYTES = 2**21
"""Hashes are over pieces of this size."""

Moving = StoreSession | EvictSession | RestoreSession | DemoteSession | ForgetStored


@dataclass(slots=True)
class Held:
    """Bytes of one session in each place; those on the host and the disk are valid copies."""

    device: int = 0
    host: int = 0
    disk: int = 0


class SimulatedDevice:
    """``say`` takes its events."""

    def __init__(self, parameters: DeviceParameters, clock: Clock, say: Callable[[Event], None]) -> None:
        self.parameters = parameters
        self.held: dict[str, Held] = {}
        self.used = {"device": 0, "host": 0, "disk": 0}
        self.highest_bytes = 0
        self._clock = clock
        self._say = say
        self._lanes = {"store": Lane(clock), "restore": Lane(clock), "demote": Lane(clock)}
        self._moving: dict[int, Moving] = {}
        self._free_slots = parameters.slots
        self._queue: deque[Callable[[], None]] = deque()

    # -- computing -----------------------------------------------------------------------------------------

    def compute(self, start: Callable[[], float], finish: Callable[[], None]) -> None:
        """``start`` is called when a slot is free, and says how many seconds it takes."""

        def run() -> None:
            self._clock.after(start(), end)

        def end() -> None:
            self._free_slots += 1
            finish()
            if self._queue and self._free_slots:
                self._free_slots -= 1
                self._queue.popleft()()

        if self._free_slots:
            self._free_slots -= 1
            run()
        else:
            self._queue.append(run)

    def grow(self, session: str, nbytes: int) -> bool:
        """False, and nothing is changed: there is no room."""
        held = self.held.setdefault(session, Held())
        if self.used["device"] + nbytes > self.parameters.memory_bytes:
            return False
        self._set(held, "device", held.device + nbytes)
        return True

    def report(self, job: str | None = None) -> None:
        here = {name: held for name, held in self.held.items() if held.device}
        self._say(
            MemoryReported(
                self._clock.now_s,
                NAME,
                self.used["device"],
                self.highest_bytes,
                {name: held.device for name, held in here.items()},
                kv_bytes={name: held.device for name, held in here.items()},
                unstored_bytes={
                    name: held.device - held.host for name, held in here.items() if held.device > held.host
                },
                host_bytes=self.used["host"],
                disk_bytes=self.used["disk"],
                job=job,
            )
        )

    # -- moving --------------------------------------------------------------------------------------------

    def obey(self, command: Command) -> None:
        match command:
            case StoreSession() | RestoreSession() | DemoteSession():
                self._copy(command)
            case EvictSession() | ForgetStored():
                self._moving[command.transfer] = command
                self._clock.after(self.parameters.bookkeeping_s, lambda: self._drop(command))
            case ExpediteTransfer():
                for lane in self._lanes.values():
                    lane.expedite(command.transfer)
            case FreeSession():
                self._free(command.session)
            case _:
                raise AssertionError(command)

    def _free(self, session: str) -> None:
        for number in [number for number, moving in self._moving.items() if moving.session == session]:
            del self._moving[number]
            for lane in self._lanes.values():
                lane.remove(number)
        held = self.held.pop(session, None)
        if held is not None:
            for tier in self.used:
                self._set(held, tier, 0)
        self.report()

    def _copy(self, command: StoreSession | RestoreSession | DemoteSession) -> None:
        parameters = self.parameters
        held = self.held[command.session]
        kind: TransferKind = "demote"
        rate = parameters.disk_bytes_per_s
        nbytes = held.host
        tier = "disk"
        expedited = False
        if isinstance(command, StoreSession):
            kind, tier, rate = "store", "host", parameters.link_bytes_per_s
            nbytes, expedited = held.device - held.host, command.expedited
        elif isinstance(command, RestoreSession):
            kind, tier, expedited = "restore", "device", command.expedited
            nbytes = held.host or held.disk
            rate = parameters.link_bytes_per_s if held.host else min(rate, parameters.link_bytes_per_s)
        limits = {
            "device": parameters.memory_bytes,
            "host": parameters.host_bytes,
            "disk": parameters.disk_bytes,
        }
        self._moving[command.transfer] = command
        if self.used[tier] + nbytes > limits[tier]:
            self._clock.after(0.0, lambda: self._refuse(command, kind, tier))
            return
        self._set(held, tier, getattr(held, tier) + nbytes)
        copy = Copy(
            command.transfer,
            parameters.copy_latency_s + nbytes / rate,
            lambda took_s, queued_s: self._copied(command, kind, nbytes, took_s, queued_s),
            self._clock.now_s,
            expedited=expedited,
        )
        self._lanes[kind].add(copy)

    def _refuse(self, command: Moving, kind: TransferKind, tier: str) -> None:
        if self._moving.pop(command.transfer, None) is None:
            return
        reason = f"the {tier} has no room"
        self._say(
            TransferFailed(
                self._clock.now_s, command.transfer, command.session, NAME, kind, reason, full=tier
            )
        )

    def _copied(
        self, command: Moving, kind: TransferKind, nbytes: int, took_s: float, queued_s: float
    ) -> None:
        if self._moving.pop(command.transfer, None) is None:
            return
        held = self.held[command.session]
        if kind == "demote":
            self._set(held, "host", 0)
        elif kind == "restore" and held.disk:
            self._set(held, "disk", 0)
        checked = -(-nbytes // PIECE_BYTES) if kind == "restore" else 0
        self.report()
        self._say(
            TransferDone(
                self._clock.now_s,
                command.transfer,
                command.session,
                NAME,
                kind,
                nbytes,
                took_s,
                queued_s,
                checked,
                whole=held.host >= held.device,
            )
        )

    def _drop(self, command: EvictSession | ForgetStored) -> None:
        if self._moving.pop(command.transfer, None) is None:
            return
        held = self.held[command.session]
        kind: TransferKind = "forget"
        if isinstance(command, EvictSession):
            kind = "evict"
            assert command.discard or held.host >= held.device, "an eviction of what is not stored"
            self._set(held, "device", 0)
            if command.discard:
                self._set(held, "host", 0)
        else:
            self._set(held, "host", 0)
        self.report()
        self._say(TransferDone(self._clock.now_s, command.transfer, command.session, NAME, kind))

    def _set(self, held: Held, tier: str, nbytes: int) -> None:
        self.used[tier] += nbytes - getattr(held, tier)
        setattr(held, tier, nbytes)
        if tier == "device":
            self.highest_bytes = max(self.highest_bytes, self.used["device"])
