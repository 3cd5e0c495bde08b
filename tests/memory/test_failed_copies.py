"""Only restores that failed in a row refuse a cell: copies to the host that found no room do not."""

from __future__ import annotations

from djinn_lab.events import Rebuild
from djinn_lab.memory import (
    CellEnded,
    ClockTicked,
    Command,
    DeviceAdded,
    MemoryReported,
    RejectSegment,
    RestoreSession,
    SegmentPlaced,
    SessionBound,
    SessionOpened,
    StoreSession,
    TransferFailed,
    WorkerDied,
)
from djinn_lab.memory.machine.accounts import MemoryAccounts

DEVICE = "cpu:0"


def session_whose_stores_failed(times: int) -> MemoryAccounts:
    """A session of 600 bytes on the device whose copies to the host failed in a row."""
    accounts = MemoryAccounts()
    accounts.handle(DeviceAdded(0.0, DEVICE, 1000, 2000, link_bytes_per_s=1000))
    accounts.handle(SessionOpened(0.0, "ann", "ann"))
    accounts.handle(SessionBound(0.0, "ann", DEVICE))
    for number in range(times):
        at_s, job = 10.0 * number, f"job {number}"
        accounts.handle(SegmentPlaced(at_s + 1.0, job, 0, "ann", 600))
        accounts.handle(MemoryReported(at_s + 2.0, DEVICE, 600, 600, {"ann": 600}, job=job))
        accounts.handle(CellEnded(at_s + 2.0, "ann"))
        (store,) = [one for one in accounts.handle(ClockTicked(at_s + 5.0)) if isinstance(one, StoreSession)]
        full = "the host tier is full"
        accounts.handle(TransferFailed(at_s + 6.0, store.transfer, "ann", DEVICE, "store", full))
    return accounts


def placed_on_a_new_worker(accounts: MemoryAccounts, at_s: float) -> list[Command]:
    accounts.handle(DeviceAdded(at_s, DEVICE, 1000, 2000, link_bytes_per_s=1000))
    accounts.handle(SessionBound(at_s, "ann", DEVICE))
    return list(accounts.handle(SegmentPlaced(at_s, "second", 0, "ann", 10)))


def test_a_session_whose_stores_failed_is_restored_after_its_worker_died() -> None:
    accounts = session_whose_stores_failed(times=4)
    accounts.handle(WorkerDied(1000.0, DEVICE, {"ann": Rebuild(600, 10)}))
    answers = placed_on_a_new_worker(accounts, 1001.0)
    assert any(isinstance(one, RestoreSession) for one in answers), answers
    assert not any(isinstance(one, RejectSegment) for one in answers)


def test_restores_that_failed_on_a_dead_worker_do_not_count_on_the_next() -> None:
    accounts = session_whose_stores_failed(times=1)
    for life in range(3):
        at_s = 1000.0 * (life + 1)
        accounts.handle(WorkerDied(at_s, DEVICE, {"ann": Rebuild(600, 10)}))
        answers = placed_on_a_new_worker(accounts, at_s + 1.0)
        restore = next(one for one in answers if isinstance(one, RestoreSession))
        broken = TransferFailed(at_s + 2.0, restore.transfer, "ann", DEVICE, "restore", "the link is broken")
        answers += accounts.handle(broken)
        assert not any(isinstance(one, RejectSegment) for one in answers)


def test_a_cell_is_refused_once_three_restores_failed_in_a_row() -> None:
    accounts = session_whose_stores_failed(times=1)
    accounts.handle(WorkerDied(1000.0, DEVICE, {"ann": Rebuild(600, 10)}))
    answers, at_s = placed_on_a_new_worker(accounts, 1001.0), 1001.0
    for _ in range(3):
        restore = next(one for one in answers if isinstance(one, RestoreSession))
        broken = TransferFailed(at_s, restore.transfer, "ann", DEVICE, "restore", "the link is broken")
        answers, at_s = list(accounts.handle(broken)), at_s + 10.0
        answers += accounts.handle(ClockTicked(at_s))
    (refused,) = [one for one in answers if isinstance(one, RejectSegment)]
    assert "3 times in a row" in refused.message
