"""Notices when cells wait, devices that could run one of them idle, and nothing runs or is copied that would
change that: a defect of the scheduler or of session memory, to be told to people, never hidden."""

from __future__ import annotations

import msgspec

from djinn_lab import memory
from djinn_lab.engine.commands import Command, WorkStalled
from djinn_lab.jobs.queue import JobQueue

STALLED_AFTER_S = 5.0


class Stall(msgspec.Struct, frozen=True):
    """``since_s``: when something last happened. ``job``: one of those that could run on ``device``;
    ``reason``: for which it waits."""

    since_s: float
    job: str
    device: str
    reason: str


class Watch:
    """``stall``: the present one."""

    def __init__(self) -> None:
        self.stall: Stall | None = None
        self._since_s = 0.0
        self._copies: dict[int, tuple[str, str]] = {}

    def happened(self, now_s: float, commands: list[Command]) -> None:
        """An event that was no tick, or a tick that led to something."""
        self._since_s, self.stall = now_s, None
        for command in commands:
            match command:
                case _ if isinstance(command, memory.TransferCommand):
                    self._copies[command.transfer] = command.device, command.session
                case memory.FreeSession():
                    self._forget(session=command.session)
                case _:
                    pass

    def copied(self, transfer: int) -> None:
        """Or not."""
        self._copies.pop(transfer, None)

    def died(self, device: str) -> None:
        self._forget(device=device)

    def look(self, now_s: float, queue: JobQueue) -> WorkStalled | None:
        """Once for each stall."""
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
        gone = [name for name, (where, whose) in self._copies.items() if device == where or session == whose]
        for name in gone:
            del self._copies[name]
