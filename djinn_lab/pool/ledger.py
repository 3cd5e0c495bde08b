"""The cores and their journal: stamp the time, handle, journal. Holds no policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

import msgspec

from djinn_lab import jobs, memory
from djinn_lab.journal import Handled
from djinn_lab.pool.clock import Clock

HANDLED_MAX = 2000


class DecisionTimes(msgspec.Struct, frozen=True):
    """Of the latest ``count`` events that the queue handled, seconds each."""

    count: int
    p50_s: float
    p99_s: float


class Ledger:
    """``write`` takes all that the cores handled, in order, without blocking."""

    def __init__(
        self,
        pool: str,
        clock: Clock,
        write: Callable[[Handled], None],
        last_seq: int = 0,
        policy: memory.MemoryPolicy = memory.POLICIES["ours"],
    ) -> None:
        self.pool = pool
        self.clock = clock
        self.queue = jobs.JobQueue()
        self.accounts = memory.MemoryAccounts(policy)
        self._write = write
        self._seq = last_seq
        self._handled_s: deque[float] = deque(maxlen=HANDLED_MAX)

    def jobs(self, event: jobs.Event) -> list[jobs.Command]:
        """Raises jobs.IllegalEvent, with nothing changed or journaled."""
        began_s = perf_counter()
        commands = self.queue.handle(event)
        self._handled_s.append(perf_counter() - began_s)
        self._seq += 1
        self._write(Handled(self._seq, self.pool, event, commands))
        return commands

    def decision_times(self) -> DecisionTimes | None:
        """What handling the latest events took, the decisions that followed included."""
        ordered = sorted(self._handled_s)
        if not ordered:
            return None
        last = len(ordered) - 1
        return DecisionTimes(len(ordered), ordered[last // 2], ordered[int(0.99 * last)])

    def memory(self, event: memory.Event) -> list[memory.Command]:
        """Raises memory.IllegalEvent, with nothing changed or journaled."""
        commands = self.accounts.handle(event)
        if isinstance(event, memory.ClockTicked) and not commands:
            return []  # nothing happened, several times a second
        self._seq += 1
        self._write(Handled(self._seq, self.pool, event, commands))
        return commands
