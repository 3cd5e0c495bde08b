"""A queue with one device, what it was told and what it ordered."""

from __future__ import annotations

from collections import Counter

from djinn_lab.jobs import ChargeAccount, Command, DeviceAdded, Event
from djinn_lab.jobs.machine.queue import JobQueue


class DrivenQueue:
    """Checks its own invariants after every event."""

    def __init__(self) -> None:
        self.queue = JobQueue()
        self.commands: list[Command] = []
        self.handle(DeviceAdded(0.0, "cpu:0"))

    def handle(self, event: Event) -> list[Command]:
        found = self.queue.handle(event)
        self.queue.validate()
        self.commands += found
        return found

    def charged_s(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for one in self.commands:
            if isinstance(one, ChargeAccount):
                found[one.job] += one.ended_at_s - one.started_at_s  # type: ignore[assignment]
        return found

    def running(self) -> set[str]:
        return {job.job for job in self.queue.running_jobs()}
