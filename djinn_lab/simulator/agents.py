"""Agents on a :class:`~djinn_lab.simulator.pool.SimulatedPool`: each computes for a moment, waits for its
tool, and continues."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random

import msgspec

from djinn_lab.jobs import Priority
from djinn_lab.simulator.pool import SimulatedPool

STEP_S = 0.05


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent behaves; ``state_mib``: what its session holds from the first turn on. ``cell_s``,
    ``tool_s``: uniform between both. ``estimate_sigma``: spread of the logarithm of what cells take over what
    they are expected to. ``priorities``: of sessions of other priority than NORMAL."""

    state_mib: int = 33
    cell_s: tuple[float, float] = (0.3, 0.3)
    tool_s: tuple[float, float] = (0.5, 3.0)
    estimate_sigma: float = 0.0
    priorities: Mapping[str, Priority] = {}


class Agents:
    """``turns``: begun, by session. No turn begins after ``last_s``."""

    def __init__(
        self, pool: SimulatedPool, count: int, habits: Habits, *, seed: int = 0, last_s: float = math.inf
    ) -> None:
        self.pool, self.habits = pool, habits
        self.turns = dict.fromkeys((f"agent{number}" for number in range(count)), 0)
        self._random = Random(seed)
        self._due_s = {session: self._random.uniform(0.0, 2.0) for session in self.turns}
        self._last_s = last_s
        self._came_s: dict[str, float] = {}
        for session in self.turns:
            pool.open(session)

    def run(self, until_s: float, look: Callable[[], None] | None = None, every_s: float = 1.0) -> None:
        """Simulate until all turns are over; ``look`` is called every so many seconds."""
        pool, looked_s = self.pool, self.pool.now_s
        while pool.now_s < until_s:
            pool.run(pool.now_s + STEP_S)
            for session in self.turns:
                self._wake(session)
            if look is not None and pool.now_s - looked_s >= every_s:
                looked_s = pool.now_s
                look()

    def _wake(self, session: str) -> None:
        pool, turn = self.pool, self.turns[session]
        ended_s = pool.ended_s.get(f"{session}-{turn - 1}")
        if session not in self._due_s and ended_s is not None:
            self._due_s[session] = ended_s + self._random.uniform(*self.habits.tool_s)
        if self._due_s.get(session, math.inf) <= min(pool.now_s, self._last_s):
            del self._due_s[session]
            self._take_turn(session, turn)

    def _take_turn(self, session: str, turn: int) -> None:
        habits, job = self.habits, f"{session}-{turn}"
        self.turns[session] += 1
        self._came_s[job] = self.pool.now_s
        seconds = self._random.uniform(*habits.cell_s)
        self.pool.submit(
            job,
            session,
            seconds=seconds,
            expected_s=seconds * math.exp(self._random.gauss(0.0, habits.estimate_sigma)),
            mib=1 if turn else habits.state_mib,
            priority=habits.priorities.get(session, Priority.NORMAL),
        )

    def waited_s(self, session: str) -> list[float]:
        """Return the wait of each turn that came, until its end or now."""
        return [
            self.pool.ended_s.get(job, self.pool.now_s) - came_s
            for job, came_s in self._came_s.items()
            if job.startswith(f"{session}-")
        ]
