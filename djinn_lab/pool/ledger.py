"""The cores and their journal: stamp the time, handle, journal. Holds no policy."""

from __future__ import annotations

from collections.abc import Callable

from djinn_lab import jobs, memory
from djinn_lab.journal import Record, record
from djinn_lab.pool.clock import Clock


class Ledger:
    """``write`` takes every journal record in order, without blocking."""

    def __init__(
        self,
        pool: str,
        clock: Clock,
        write: Callable[[Record], None],
        last_seq: int = 0,
        policy: memory.MemoryPolicy = memory.POLICIES["ours"],
    ) -> None:
        self.pool = pool
        self.clock = clock
        self.queue = jobs.JobQueue()
        self.accounts = memory.MemoryAccounts(policy)
        self._write = write
        self._seq = last_seq

    def jobs(self, event: jobs.Event) -> list[jobs.Command]:
        """Raises jobs.IllegalEvent, with nothing changed or journaled."""
        commands = self.queue.handle(event)
        self._seq += 1
        self._write(record(self._seq, self.pool, event, commands))
        return commands

    def memory(self, event: memory.Event) -> list[memory.Command]:
        """Raises memory.IllegalEvent, with nothing changed or journaled."""
        commands = self.accounts.handle(event)
        if isinstance(event, memory.ClockTicked) and not commands:
            return []  # nothing happened, several times a second
        self._seq += 1
        self._write(record(self._seq, self.pool, event, commands))
        return commands
