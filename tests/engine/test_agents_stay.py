"""Agents that compute and wait in turns: a session moves to another device only where that pays."""

from __future__ import annotations

import random
from collections import Counter

from pool_around_engine import PoolAroundEngine

from djinn_lab import engine, memory

STATE_MIB, CELL_S = 33, 0.3


class CountedPool(PoolAroundEngine):
    """``kinds``: of copies, how many there were."""

    def __init__(self, memory_mib: int, link_mib_per_s: int) -> None:
        self.kinds: Counter[str] = Counter()
        super().__init__(2, memory_mib, host_mib=4000, link_mib_per_s=link_mib_per_s)

    def perform(self, command: engine.Command) -> None:
        if isinstance(command, memory.TransferCommand):
            self.kinds[type(command).__name__] += 1
        super().perform(command)


class Agents:
    """Each computes for a moment, waits for its tool, and goes on."""

    def __init__(self, count: int, memory_mib: int, link_mib_per_s: int) -> None:
        self.pool = CountedPool(memory_mib, link_mib_per_s)
        self.turns = dict.fromkeys((f"agent{number}" for number in range(count)), 0)
        for session in self.turns:
            self.pool.open(session)

    def run(self, seconds: float) -> None:
        pool, chance = self.pool, random.Random(0)
        due_s: dict[str, float] = {session: chance.uniform(0, 2) for session in self.turns}
        while pool.now_s < seconds:
            pool.run(pool.now_s + 0.05)
            for session, turn in self.turns.items():
                ended_s = pool.ended_s.get(f"{session}-{turn - 1}", 0.0)
                if turn and session not in due_s and ended_s:
                    due_s[session] = ended_s + chance.uniform(0.5, 3.0)
                if session in due_s and due_s[session] <= pool.now_s:
                    del due_s[session]
                    self.turns[session] += 1
                    mib = 1 if turn else STATE_MIB
                    pool.submit(f"{session}-{turn}", session, seconds=CELL_S, mib=mib)


def test_agents_that_all_fit_stay_where_they_are() -> None:
    """Their cells wait for each other, which takes less than to move."""
    agents = Agents(32, memory_mib=1000, link_mib_per_s=200)
    agents.run(60.0)
    assert len(agents.pool.ended_s) > 300
    assert agents.pool.kinds["EvictSession"] == agents.pool.kinds["RestoreSession"] == 0


def test_agents_that_do_not_fit_move_in_a_small_part_of_their_turns() -> None:
    agents = Agents(32, memory_mib=500, link_mib_per_s=200)
    agents.run(60.0)
    assert len(agents.pool.ended_s) > 300
    assert 0 < agents.pool.kinds["RestoreSession"] < len(agents.pool.ended_s) / 5


def test_a_session_moves_where_waiting_would_take_much_longer() -> None:
    pool = PoolAroundEngine(2, 100, link_mib_per_s=100)
    for session in ("ann", "bob", "carl"):
        pool.open(session)
    pool.submit("first", "ann", seconds=0.1, mib=20)
    pool.run(1.0)
    home = pool.engine.accounts.home_of("ann")
    pool.submit("long", "bob", seconds=60.0, target=home)
    pool.run(2.0)
    pool.submit("second", "ann", seconds=0.1)
    pool.run(5.0)
    assert pool.outcomes["second"] == "DONE"
    assert pool.engine.accounts.home_of("ann") != home
