"""A session whose worker dies again before its values were made again needs as much memory as before."""

from __future__ import annotations

from djinn_lab.events import Rebuild
from djinn_lab.memory import (
    DeviceAdded,
    GrantSegment,
    MemoryReported,
    SegmentPlaced,
    SessionBound,
    SessionOpened,
    WorkerDied,
)
from djinn_lab.memory.machine.accounts import MemoryAccounts

DEVICE = "cpu:0"


def test_values_that_are_lost_twice_are_reserved_memory_for_both_times() -> None:
    accounts = MemoryAccounts()
    accounts.handle(DeviceAdded(0.0, DEVICE, 100, 100))
    accounts.handle(SessionOpened(0.0, "ann", "ann"))
    accounts.handle(SessionBound(0.0, "ann", DEVICE))
    accounts.handle(SegmentPlaced(1.0, "first", 0, "ann", 20, 0, kept_bytes=20))
    accounts.handle(MemoryReported(2.0, DEVICE, 20, 20, {"ann": 20}, job="first"))
    for at_s in (3.0, 5.0):
        accounts.handle(WorkerDied(at_s, DEVICE, {"ann": Rebuild(0, 10)}))
        accounts.handle(DeviceAdded(at_s, DEVICE, 100, 100))
        accounts.handle(SessionBound(at_s, "ann", DEVICE))
        placed = SegmentPlaced(at_s, f"job at {at_s}", 0, "ann", 10, 0, kept_bytes=0)
        assert isinstance(accounts.handle(placed)[0], GrantSegment)
        device = accounts.device(DEVICE)
        assert device is not None
        assert device.reserved_bytes == 30
