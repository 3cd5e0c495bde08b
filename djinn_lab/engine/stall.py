"""Detects a stall: cells are pending, a device that could run one is idle, and no cell or copy is under
way that would change that. A stall is a defect of the queue or of session memory, to be reported, never
hidden."""

from __future__ import annotations

from typing import get_args

import msgspec

from djinn_lab import memory
from djinn_lab.engine.commands import Command, WorkStalled
from djinn_lab.jobs.machine.queue import JobQueue

STALLED_AFTER_S = 5.0
_TRANSFERS = get_args(memory.TransferCommand)


class Stall(msgspec.Struct, frozen=True):
    """Pending work that nothing will let run. ``since_s``: when something last happened. ``job``: a pending
    job that could run on ``device``; ``reason``: why it is pending."""

    since_s: float
    job: str
    device: str
    reason: str


class Watch:
    """Looks for stalls. ``stall``: the present stall, or None."""

    def __init__(self) -> None:
        self.stall: Stall | None = None
        self._since_s = 0.0
        self._copies: dict[int, tuple[str, str]] = {}

    def happened(self, now_s: float, commands: list[Command]) -> None:
        """Note an event that was no tick, or a tick that led to commands."""
        self._since_s, self.stall = now_s, None
        for command in commands:
            match command:
                case _ if isinstance(command, _TRANSFERS):
                    self._copies[command.transfer] = command.device, command.session
                case memory.FreeSession():
                    self._forget(session=command.session)
                case _:
                    pass

    def copied(self, transfer: int) -> None:
        """Note the end of a transfer, with or without success."""
        self._copies.pop(transfer, None)

    def died(self, device: str, sessions: tuple[str, ...] | None = None) -> None:
        """Note the death of a worker, with the copies of its sessions; None: of all on the device."""
        if sessions is None:
            self._forget(device=device)
        for session in sessions or ():
            self._forget(session=session)

    def look(self, now_s: float, queue: JobQueue) -> WorkStalled | None:
        """Return a stall, once for each."""
        quiet = now_s - self._since_s >= STALLED_AFTER_S
        if self.stall is not None or self._copies or not quiet or not queue.contending or queue.running:
            return None
        starts = queue.would_start(now_s)
        if not starts:
            self._since_s = now_s  # a decision costs something: look again later
            return None
        job, device = starts[0]
        self.stall = Stall(self._since_s, job, device, queue.explain(job))
        return WorkStalled(job, device, self.stall.reason)

    def _forget(self, device: str | None = None, session: str | None = None) -> None:
        gone = [name for name, (at, of) in self._copies.items() if device == at or session == of]
        for name in gone:
            del self._copies[name]
