"""Every counter moves when what it counts happens, and the wake-ups say how long it took."""

from __future__ import annotations

import msgspec
import pytest
from fake_engine import FakeEngine, Held

from djinn_lab.events import MemoryRelease
from djinn_lab.memory import (
    POLICIES,
    CellEnded,
    ClockTicked,
    Counters,
    DeviceAdded,
    Event,
    PhaseSignalled,
    QueueOrdered,
    RestoreSession,
    SegmentPlaced,
    SessionBound,
    SessionClosed,
    SessionOpened,
    StoreSession,
    WorkerDied,
)
from djinn_lab.memory.machine.accounts import MemoryAccounts

RATE = 1000.0
"""Bytes per second over the link, so that a session of 480 bytes takes about half a second."""


class Pool:
    def __init__(self, policy: str = "default", host: int = 2000, disk: int = 0) -> None:
        self.accounts = MemoryAccounts(POLICIES[policy])
        self.engine = FakeEngine("cpu:0", 1000, host, disk)
        self.now_s = 0.0
        self.say(DeviceAdded(0.0, "cpu:0", 1000, host, disk, RATE))

    def say(self, event: Event) -> None:
        for command in self.accounts.handle(event):
            if hasattr(command, "answer"):
                continue
            self.engine.obey(command)
        self.accounts.validate()

    def open(self, name: str, nbytes: int = 480) -> None:
        self.engine.sessions[name] = Held()
        self.say(SessionOpened(self.now_s, name, name))
        self.say(SessionBound(self.now_s, name, "cpu:0"))
        self.place(name, nbytes)
        self.settle()
        if name in self.engine.granted:
            self.finish(name, nbytes)

    def place(self, name: str, peak: int = 0) -> None:
        self.say(SegmentPlaced(self.now_s, name, 0, name, peak))

    def finish(self, name: str, kept: int) -> None:
        self.engine.granted.remove(name)
        held = self.engine.sessions[name]
        held.device += kept
        self.say(self.engine.report(self.now_s, name))
        self.say(CellEnded(self.now_s, name))

    def settle(self) -> None:
        while self.engine.under_way:
            self.end(min(self.engine.under_way))

    def end(self, number: int) -> None:
        result = self.engine.finish(number, self.now_s)
        self.say(self.engine.report(self.now_s))
        self.say(result)

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.say(ClockTicked(self.now_s))

    @property
    def counters(self) -> Counters:
        return self.accounts.snapshot().counters

    def tier(self, name: str) -> str:
        account = self.accounts.session(name)
        assert account is not None
        return account.tier


def swapped() -> Pool:
    """Two sessions of 480 bytes and a third: ``a`` went to the host for ``c``."""
    pool = Pool()
    for name in ("a", "b", "c"):
        pool.tick(10.0)
        pool.open(name)
        pool.settle()
    return pool


def test_swap_is_useful_once_its_memory_is_used_unless_its_owner_closes() -> None:
    pool = swapped()
    away = [name for name in "abc" if pool.tier(name) == "host"]
    assert len(away) == 1
    assert (pool.counters.evictions, pool.counters.useful_swaps) == (1, 1)
    assert pool.counters.stores >= 1
    assert pool.counters.bytes_out >= 480
    pool.say(SessionClosed(pool.now_s, away[0]))
    assert pool.counters.useful_swaps == 0, "its owner never came back"


def test_a_wake_up_is_timed_and_compared_with_its_floor() -> None:
    pool = swapped()
    (away,) = [name for name in "abc" if pool.tier(name) == "host"]
    pool.tick(10.0)
    before = pool.accounts.snapshot().wake_ups
    pool.place(away)
    for number in sorted(pool.engine.under_way):
        pool.end(number)
    (number,) = [n for n, c in pool.engine.under_way.items() if isinstance(c, RestoreSession)]
    pool.now_s += 0.75
    pool.end(number)
    wake_ups = pool.accounts.snapshot().wake_ups
    assert wake_ups.count == before.count + 1
    assert wake_ups.hits == before.hits
    assert wake_ups.recent_s[-1] == pytest.approx(0.75)
    assert wake_ups.recent_ratios[-1] == pytest.approx(0.75 / 0.48)
    assert wake_ups.max_s == pytest.approx(0.75)
    assert (pool.counters.restores, pool.counters.bytes_in) == (1, 480)
    assert pool.counters.hash_checks == 480 // 64
    account = pool.accounts.session(away)
    assert account is not None
    assert (account.last_wake_s, account.last_floor_s) == (pytest.approx(0.75), pytest.approx(0.48))


def test_a_session_that_is_there_wakes_at_once() -> None:
    pool = Pool()
    pool.open("a")
    pool.tick(5.0)
    pool.place("a")
    wake_ups = pool.accounts.snapshot().wake_ups
    assert (wake_ups.count, wake_ups.hits, wake_ups.p99_s, wake_ups.p99_ratio) == (1, 1, 0.0, None)


def test_prefetches_on_time_late_and_wasted() -> None:
    pool = swapped()
    (away,) = [name for name in "abc" if pool.tier(name) == "host"]
    other = next(name for name in "abc" if name != away)
    pool.say(SessionClosed(pool.now_s, other))
    pool.say(pool.engine.report(pool.now_s))
    pool.tick(1.0)
    assert pool.counters.prefetches == 1, "there is free capacity"
    pool.place(away)
    assert pool.counters.prefetches_late == 1
    pool.settle()
    assert pool.counters.prefetches_on_time == 0

    pool = swapped()
    (away,) = [name for name in "abc" if pool.tier(name) == "host"]
    pool.say(PhaseSignalled(pool.now_s, away, "SOON"))
    pool.settle()
    pool.tick(0.1)
    pool.settle()
    assert pool.tier(away) == "device"
    pool.place(away)
    assert pool.counters.prefetches_on_time == 1

    pool = swapped()
    (away,) = [name for name in "abc" if pool.tier(name) == "host"]
    pool.say(PhaseSignalled(pool.now_s, away, "SOON"))
    pool.settle()
    pool.say(SessionClosed(pool.now_s, away))
    assert pool.counters.prefetches_wasted == 1


def test_nothing_is_prefetched_while_cells_wait_for_the_device() -> None:
    pool = swapped()
    (away,) = [name for name in "abc" if pool.tier(name) == "host"]
    pool.say(SessionClosed(pool.now_s, next(name for name in "abc" if name != away)))
    pool.say(pool.engine.report(pool.now_s))
    for name in "pqr":
        pool.engine.sessions[name] = Held()
        pool.say(SessionOpened(pool.now_s, name, name))
        pool.say(SessionBound(pool.now_s, name, "cpu:0"))
    pool.say(QueueOrdered(pool.now_s, "cpu:0", ("p", "q", "r")))
    for name in "pqr":
        pool.place(name, 1)
    assert "r" not in pool.engine.granted
    pool.tick(1.0)
    assert pool.counters.prefetches == 0
    for name in "pqr":
        pool.finish(name, 0)
        pool.tick(1.0)
    assert pool.counters.prefetches == 1


def test_demotions() -> None:
    pool = Pool(host=1000, disk=5000)
    for name in "abcdef":
        pool.tick(10.0)
        pool.open(name)
        pool.settle()
    assert pool.counters.demotions > 0
    assert {pool.tier(name) for name in "abcdef"} == {"device", "host", "disk"}


def test_failures_mismatches_and_losses() -> None:
    pool = swapped()
    (away,) = [name for name in "abc" if pool.tier(name) == "host"]
    pool.tick(10.0)
    pool.place(away)
    for number, command in sorted(pool.engine.under_way.items()):
        if not isinstance(command, RestoreSession):
            pool.end(number)
    (restore,) = [c for c in pool.engine.under_way.values() if isinstance(c, RestoreSession)]
    pool.say(pool.engine.failed(restore, pool.now_s, "the copy broke", None))
    assert pool.counters.failed_transfers == 1
    pool.tick(1.0)
    (again,) = [c for c in pool.engine.under_way.values() if isinstance(c, RestoreSession)]
    assert again.transfer != restore.transfer
    pool.say(pool.engine.failed(again, pool.now_s, "a piece differs", None, mismatch=True))
    assert (pool.counters.mismatches, pool.counters.values_lost) == (1, 1)
    assert pool.engine.lost == [away]


def test_admission_waits() -> None:
    pool = Pool(host=1300)
    pool.open("a", 600)
    pool.settle()
    pool.tick(10.0)
    pool.settle()
    pool.open("b", 600)
    pool.tick(10.0)
    pool.settle()
    pool.open("c", 1000)
    (held,) = pool.accounts.snapshot().deferred
    assert held.release is MemoryRelease.CLOSE
    assert "memory is full" in held.reason
    assert pool.counters.admission_waits == 1
    pool.say(SessionClosed(pool.now_s, "a"))
    pool.say(pool.engine.report(pool.now_s))
    pool.tick(1.0)
    pool.settle()
    assert pool.accounts.snapshot().deferred == ()


def test_every_memory_counter_is_covered_once() -> None:
    """Whatever is counted can be moved by the tests above."""
    moved = {
        *("stores", "evictions", "restores", "demotions", "useful_swaps", "bytes_out", "bytes_in"),
        *("prefetches", "prefetches_on_time", "prefetches_late", "prefetches_wasted"),
        *("hash_checks", "mismatches", "failed_transfers", "admission_waits", "values_lost"),
    }
    assert moved == set(msgspec.structs.asdict(Counters()))


def test_rates_are_of_the_last_ten_seconds() -> None:
    pool = Pool()
    pool.open("a")
    pool.tick(1.0)
    pool.settle()
    device = pool.accounts.device("cpu:0")
    assert device is not None
    assert device.out_bytes_per_s == pytest.approx(48.0)
    pool.tick(60.0)
    device = pool.accounts.device("cpu:0")
    assert device is not None
    assert device.out_bytes_per_s == 0.0


def test_happenings_say_what_and_why() -> None:
    happenings = swapped().accounts.snapshot().happenings
    assert {"store", "evict", "defer", "grant"} <= {happening.what for happening in happenings}
    (eviction, _) = [happening for happening in happenings if happening.what == "evict"]
    assert "for session " in eviction.reason


def test_fully_stored_session_survives_its_device() -> None:
    pool = Pool()
    pool.open("a")
    pool.tick(1.0)
    pool.settle()
    pool.open("b", 100)
    assert any(isinstance(command, StoreSession) for command in pool.engine.under_way.values())
    pool.engine.die()
    pool.say(WorkerDied(pool.now_s, "cpu:0"))
    assert pool.engine.lost == ["b"]
    assert (pool.tier("a"), pool.tier("b")) == ("host", "none")
    pool.say(DeviceAdded(pool.now_s, "cpu:0", 1000, 2000, 0, RATE))
    pool.say(SessionBound(pool.now_s, "a", "cpu:0"))
    pool.place("a")
    pool.settle()
    assert pool.engine.sessions["a"].device == 480
    assert "a" in pool.engine.granted
