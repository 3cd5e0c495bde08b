"""What ``/v1/memory`` answers: the snapshot of session memory, with the pool's clock and sessions' names."""

from __future__ import annotations

import msgspec

from djinn_lab.memory.snapshot import (
    Counters,
    DeviceAccount,
    HeldSegment,
    MemoryChange,
    MemorySnapshot,
    SessionAccount,
    WakeUps,
)
from djinn_lab.pool.driver import Driver


class NamedSession(SessionAccount, frozen=True):
    """A session in the API. ``name``: what its user called it; ``jobs``: how many cells it sent."""

    name: str = ""
    jobs: int = 0


class MemoryReport(msgspec.Struct, frozen=True):
    """Session memory in the API. ``now`` and every ``at_s``: seconds since the epoch by the pool's clock."""

    now: float
    policy: str
    devices: tuple[DeviceAccount, ...]
    sessions: tuple[NamedSession, ...]
    held: tuple[HeldSegment, ...]
    wake_ups: WakeUps
    counters: Counters
    happenings: tuple[MemoryChange, ...]


def memory_report(driver: Driver) -> MemoryReport:
    """What the accounts say now."""
    snapshot = driver.ledger.accounts.snapshot()
    known = {session.session: (session.name, session.jobs) for session in driver.registry}
    return name_sessions(snapshot, known, driver.ledger.clock.now_s())


def name_sessions(snapshot: MemorySnapshot, known: dict[str, tuple[str, int]], now_s: float) -> MemoryReport:
    """``known``: name and number of cells by session."""
    sessions = []
    for account in snapshot.sessions:
        name, jobs = known.get(account.session, ("", 0))
        sessions.append(NamedSession(**msgspec.structs.asdict(account), name=name, jobs=jobs))
    return MemoryReport(
        now=now_s,
        policy=snapshot.policy,
        devices=snapshot.devices,
        sessions=tuple(sessions),
        held=snapshot.held,
        wake_ups=snapshot.wake_ups,
        counters=snapshot.counters,
        happenings=snapshot.happenings,
    )
