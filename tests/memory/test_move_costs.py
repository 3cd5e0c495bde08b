"""What it is predicted to take to bring a session's state to another device."""

from __future__ import annotations

import pytest

from djinn_lab.memory import (
    CellEnded,
    DeviceAdded,
    MemoryReported,
    SegmentPlaced,
    SessionBound,
    SessionOpened,
)
from djinn_lab.memory.machine.accounts import MemoryAccounts

DEVICE = "cpu:0"


def move_s(held_bytes: int, link_bytes_per_s: float | None, host_bytes: int = 10**9) -> float | None:
    accounts = MemoryAccounts()
    accounts.handle(DeviceAdded(0.0, DEVICE, 10**9, host_bytes, 0, link_bytes_per_s))
    accounts.handle(SessionOpened(0.0, "ann", "ann"))
    accounts.handle(SessionBound(0.0, "ann", DEVICE))
    accounts.handle(SegmentPlaced(1.0, "first", 0, "ann", held_bytes, 0))
    held = {"ann": held_bytes}
    reported = MemoryReported(2.0, DEVICE, held_bytes, held_bytes, held, unstored_bytes=held, job="first")
    accounts.handle(reported)
    accounts.handle(CellEnded(2.0, "ann"))
    return accounts.move_s("ann")


def test_a_move_takes_all_bytes_out_and_in_again() -> None:
    assert move_s(10**6, 1e6) == pytest.approx(2.0)


def test_a_link_of_unknown_rate_moves_nothing_for_free() -> None:
    few, many = move_s(10**6, None), move_s(10**8, None)
    assert few is not None
    assert many is not None
    assert 0 < few < many < 1


def test_a_session_without_state_moves_for_free() -> None:
    assert move_s(0, None) == 0


def test_what_does_not_fit_on_the_way_cannot_move() -> None:
    assert move_s(10**6, 1e6, host_bytes=10**5) is None
