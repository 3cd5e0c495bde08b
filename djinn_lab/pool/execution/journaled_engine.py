"""The engine and its journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from djinn_lab.engine import Command, Engine, Event
from djinn_lab.journal import Handled
from djinn_lab.pool.execution.clock import PoolClock
from djinn_lab.protocol.rest.queue import DecisionTimes

if TYPE_CHECKING:
    from djinn_lab.jobs.machine.queue import JobQueue
    from djinn_lab.memory.machine.accounts import MemoryAccounts

HANDLED_MAX = 2000


class JournaledEngine:
    """``write`` takes all that the engine handled, in order, without blocking. ``queue``, ``accounts``: to be
    looked at."""

    def __init__(
        self,
        pool: str,
        clock: PoolClock,
        write: Callable[[Handled], None],
        last_seq: int = 0,
    ) -> None:
        self.pool = pool
        self.clock = clock
        self.engine = Engine()
        self._write = write
        self._seq = last_seq
        self._handled_s: deque[float] = deque(maxlen=HANDLED_MAX)

    @property
    def queue(self) -> JobQueue:
        return self.engine.queue

    @property
    def accounts(self) -> MemoryAccounts:
        return self.engine.accounts

    def handle(self, event: Event) -> list[Command]:
        """Raises the IllegalEvent of :mod:`djinn_lab.jobs` or :mod:`djinn_lab.memory`, with nothing changed
        or journaled."""
        began_s = perf_counter()
        commands = self.engine.handle(event)
        if self.engine.idle:
            return []  # several times a second
        self._handled_s.append(perf_counter() - began_s)
        self._seq += 1
        self._write(Handled(self._seq, self.pool, event, commands))
        return commands

    def decision_times(self) -> DecisionTimes | None:
        """Return how long the latest events took to handle, decisions included."""
        ordered = sorted(self._handled_s)
        if not ordered:
            return None
        last = len(ordered) - 1
        return DecisionTimes(len(ordered), ordered[last // 2], ordered[int(0.99 * last)])
