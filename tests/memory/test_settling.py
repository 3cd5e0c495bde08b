"""Without new events session memory comes to rest: no session is evicted and restored for ever."""

from __future__ import annotations

from random import Random

import pytest
from fake_engine import FakeEngine, Held

from djinn_lab.memory import (
    POLICIES,
    CellEnded,
    ClockTicked,
    DeviceAdded,
    Event,
    ExpediteTransfer,
    SegmentPlaced,
    SessionBound,
    SessionClosed,
    SessionOpened,
)
from djinn_lab.memory.machine.accounts import MemoryAccounts

WALKS = 60
SESSIONS = 7
CELLS = 14
TICKS_S = (0.3, 1.0, 3.0, 10.0, 100.0)
COPY_S = 0.01
MOVES_EACH = 6
"""Copies of a session, at most, until all rest: stored, evicted, demoted, forgotten, restored, and once more
copied in advance."""


class Pool:
    """A device whose sessions together hold about as much as all tiers have."""

    def __init__(self, random: Random, policy: str) -> None:
        self.random = random
        self.accounts = MemoryAccounts(POLICIES[policy])
        host, disk = random.choice([(60, 60), (60, 30), (100, 0), (40, 100)])
        self.engine = FakeEngine("cpu:0", 100, host, disk)
        self.engine.peers["cpu:0"] = self.engine
        self.now_s = 0.0
        self.cells: dict[str, int] = {}
        self.feed(DeviceAdded(0.0, "cpu:0", 100, host, disk, 1000.0))
        for number in range(SESSIONS):
            name = f"s{number}"
            self.feed(SessionOpened(0.0, name, f"user{number % 2}"))
            self.engine.sessions[name] = Held()
            self.feed(SessionBound(0.0, name, "cpu:0"))

    def feed(self, event: Event) -> None:
        for command in self.accounts.handle(event):
            if not isinstance(command, ExpediteTransfer):  # all are carried out in the order of their numbers
                self.engine.obey(command)
        self.accounts.validate()

    def call(self, name: str) -> None:
        """Run a cell in a session; it may have to wait."""
        if name in self.cells:
            return
        self.cells[name] = self.random.choice([0, 10, 20, 40])
        self.feed(SegmentPlaced(self.now_s, name, 0, name, self.cells[name], 0))

    def run_granted(self) -> bool:
        """Run one granted cell, whose session keeps as many new bytes as fit. False if no cell is granted."""
        name = next(iter(sorted(self.engine.granted)), None)
        if name is None:
            return False
        self.engine.granted.discard(name)
        peak = self.cells.pop(name)
        held = self.engine.sessions[name]
        free_bytes = self.engine.memory_bytes - self.engine.used_bytes
        held.device = min(40, held.device + min(peak, free_bytes))
        held.host = 0
        self.feed(self.engine.report(self.now_s, job=name))
        self.feed(CellEnded(self.now_s, name))
        return True

    def settle(self) -> None:
        """Run cells, end copies and let time pass until nothing changes, without new cells of users."""
        moves, quiet = 0, 0
        while quiet < len(TICKS_S):
            for refused in self.engine.refused:
                self.cells.pop(refused.job, None)
            self.engine.refused.clear()
            if self.run_granted():
                moves = 0
                continue
            number = next(iter(sorted(self.engine.under_way)), None)
            if number is None:
                self.now_s += TICKS_S[quiet]
                quiet += 1
                self.feed(ClockTicked(self.now_s))
                continue
            quiet, moves = 0, moves + 1
            assert moves <= MOVES_EACH * SESSIONS, "sessions are moved and moved, and no cell runs"
            self.now_s += COPY_S
            result = self.engine.finish(number, self.now_s)
            self.feed(self.engine.report(self.now_s))
            self.feed(result)


@pytest.mark.parametrize(
    "policy", ["default", "lru_write_back", "lru_write_through", "recompute", "eager_jit"]
)
def test_memory_comes_to_rest_without_events(policy: str) -> None:
    for seed in range(WALKS):
        pool = Pool(Random(seed), policy)
        for _ in range(CELLS):
            for _ in range(pool.random.choice([1, 1, 2, 3])):
                pool.call(f"s{pool.random.randrange(SESSIONS)}")
            pool.settle()


@pytest.mark.parametrize("policy", ["default", "lru_write_through"])
def test_waiting_session_resumes_when_all_others_close(policy: str) -> None:
    for seed in range(WALKS):
        pool = Pool(Random(seed), policy)
        for number in range(SESSIONS):
            pool.call(f"s{number}")
            pool.settle()
        pool.call("s0")
        pool.settle()
        for number in range(1, SESSIONS):
            name = f"s{number}"
            pool.cells.pop(name, None)
            pool.engine.held.pop(name, None)
            pool.feed(SessionClosed(pool.now_s, name))
            pool.engine.sessions.pop(name, None)
            pool.feed(pool.engine.report(pool.now_s))
            pool.settle()
        assert not pool.cells, "it still waits, alone on the device"
