"""The cost of an event does not depend on how many sessions are open, and wait, on its device."""

from __future__ import annotations

from lines_run import lines_run

from djinn_lab.memory import (
    CellEnded,
    ClockTicked,
    DeviceAdded,
    Event,
    MemoryReported,
    PhaseSignalled,
    QueueOrdered,
    SegmentPlaced,
    SegmentWithdrawn,
    SessionBound,
    SessionOpened,
)
from djinn_lab.memory.machine.accounts import MemoryAccounts

FEW, MANY = 100, 1_000
DEVICE = "cpu:0"


def accounts_of(sessions: int) -> MemoryAccounts:
    """Small sessions on a large device: half of them are idle, the others wait for their turn."""
    accounts = MemoryAccounts()
    accounts.handle(DeviceAdded(0.0, DEVICE, 10**9, 10**9))
    names = [f"s{number}" for number in range(sessions)]
    for name in names:
        accounts.handle(SessionOpened(0.0, name, "ann"))
        accounts.handle(SessionBound(0.0, name, DEVICE))
        accounts.handle(SegmentPlaced(0.0, f"{name}-0", 0, name, 100, 1))
        accounts.handle(reported(0.0, accounts, name, f"{name}-0"))
        accounts.handle(CellEnded(0.0, name))
    for name in names[: sessions // 2]:
        accounts.handle(SegmentPlaced(1.0, f"{name}-1", 0, name, 100, 1))
    accounts.handle(QueueOrdered(2.0, DEVICE, tuple(f"s{number}-1" for number in range(16))))
    accounts.handle(ClockTicked(2.5))  # the leases are over
    return accounts


def reported(at_s: float, accounts: MemoryAccounts, session: str, job: str | None) -> MemoryReported:
    known = accounts.device(DEVICE)
    assert known is not None
    return MemoryReported(at_s, DEVICE, known.used_bytes + 100, 0, {session: 100}, job=job, partial=True)


def costs(sessions: int) -> dict[str, int]:
    """Return the cost of each event of a cell, for the first waiting and the last idle session."""
    accounts, idle = accounts_of(sessions), f"s{sessions - 1}"
    report = reported(3.0, accounts, "s0", "s0-1")
    line = QueueOrdered(3.0, DEVICE, tuple(f"s{number}-1" for number in range(1, 17)))
    events: list[Event] = [
        report,
        CellEnded(3.0, "s0"),
        line,
        SegmentPlaced(3.0, f"{idle}-1", 0, idle, 100, 1),
        SegmentWithdrawn(3.0, f"{idle}-1"),
        PhaseSignalled(3.0, "s0", "SOON"),
    ]
    taken = {}
    for event in events:
        taken[type(event).__name__] = lines_run(lambda event=event: accounts.handle(event))
        taken[f"due after {type(event).__name__}"] = lines_run(accounts.next_timeout_s)
    return taken


def test_an_event_costs_no_more_where_ten_times_as_many_sessions_are_open() -> None:
    few, many = costs(FEW), costs(MANY)
    assert {name: count for name, count in many.items() if count > 1.5 * few[name] + 100} == {}
