"""Segments that need more than their device has: granted where the rest can be offloaded, else rejected with
numbers."""

from __future__ import annotations

import pytest

from djinn_lab.memory import (
    Command,
    DeferSegment,
    DeviceAdded,
    Event,
    EvictSession,
    GrantSegment,
    MemoryReported,
    RejectSegment,
    SegmentPlaced,
    SessionBound,
    SessionOpened,
    StoreSession,
)
from djinn_lab.memory.machine.accounts import MemoryAccounts
from djinn_lab.memory.policy import POLICIES

MIB = 2**20


class Pool:
    """One device of 100 MiB, with 300 MiB below it."""

    def __init__(self, host_mib: int = 200, disk_mib: int = 100, policy: str = "default") -> None:
        self.accounts = MemoryAccounts(POLICIES[policy])
        self.feed(DeviceAdded(0.0, "cpu:0", 100 * MIB, host_mib * MIB, disk_mib * MIB, 1e9))

    def feed(self, event: Event) -> list[Command]:
        commands = self.accounts.handle(event)
        self.accounts.validate()
        return commands

    def open(self, *names: str) -> None:
        for name in names:
            self.feed(SessionOpened(0.0, name, name))
            self.feed(SessionBound(0.0, name, "cpu:0"))

    def place(self, name: str, peak_mib: int, floor_mib: int | None) -> list[Command]:
        floor = None if floor_mib is None else floor_mib * MIB
        placed = SegmentPlaced(
            1.0, name, 0, name, peak_mib * MIB, 0, 4, "aten.mm", None, floor, 7, "aten.add"
        )
        return self.feed(placed)

    def holds(
        self, job: str | None, offloaded_mib: dict[str, int] | None = None, **mib: int
    ) -> list[Command]:
        """Report what each session has on the device."""
        used = sum(mib.values()) * MIB
        sessions = {name: count * MIB for name, count in mib.items()}
        offloaded = {name: count * MIB for name, count in (offloaded_mib or {}).items()}
        reported = MemoryReported(
            *(1.0, "cpu:0", used, used, sessions), unstored_bytes=sessions, offloaded_bytes=offloaded, job=job
        )
        return self.feed(reported)


def rejection(commands: list[Command]) -> str:
    [refused] = [command for command in commands if isinstance(command, RejectSegment)]
    return refused.message


def test_a_cell_of_thrice_the_device_is_granted() -> None:
    pool = Pool()
    pool.open("ann")
    assert any(isinstance(command, GrantSegment) for command in pool.place("ann", 300, 40))


def test_one_op_that_does_not_fit_is_named() -> None:
    pool = Pool()
    pool.open("ann")
    message = rejection(pool.place("ann", 300, 120))
    assert message == "one op of the cell (aten.add) needs 120.0 MiB at once, and cpu:0 has 100.0 MiB"


def test_a_difference_that_rounding_hides_is_named() -> None:
    pool = Pool()
    pool.open("ann")
    placed = SegmentPlaced(1.0, "ann", 0, "ann", 100 * MIB + 1, floor_bytes=100 * MIB + 1, floor_node=3)
    [refused] = pool.feed(placed)
    assert isinstance(refused, RejectSegment)
    assert "needs 100.0 MiB (1 B too many) at once" in refused.message
    assert refused.node == 3


def test_a_cell_larger_than_all_tiers_is_refused() -> None:
    pool = Pool()
    pool.open("ann")
    message = rejection(pool.place("ann", 500, 40))
    assert message.startswith("the cell needs 500.0 MiB at once at aten.mm, and cpu:0 has 100.0 MiB")
    assert message.endswith("and 300.0 MiB in the tiers below it")


@pytest.mark.parametrize("pool", [Pool(host_mib=0, disk_mib=0), Pool(policy="keep_all")])
def test_without_a_tier_or_a_policy_that_moves_it_is_refused(pool: Pool) -> None:
    pool.open("ann")
    assert "needs 150.0 MiB at once" in rejection(pool.place("ann", 150, 40))


def test_others_leave_the_device_first() -> None:
    """The cell takes the whole device, so the idle session is stored and evicted before it is granted."""
    pool = Pool()
    pool.open("bob", "ann")
    pool.place("bob", 30, 30)
    pool.holds("bob", bob=30)
    commands = pool.place("ann", 150, 40)
    assert not any(isinstance(command, GrantSegment) for command in commands)
    assert any(isinstance(command, StoreSession | EvictSession | DeferSegment) for command in commands)


def test_its_next_cell_reserves_what_may_come_back() -> None:
    """Of 130 MiB there are 60 on the device; while a small cell runs, all of the device may be used again."""
    pool = Pool()
    pool.open("ann", "bob")
    pool.place("ann", 160, 40)
    pool.holds("ann", {"ann": 70}, ann=60)
    assert any(isinstance(command, GrantSegment) for command in pool.place("ann", 5, 5))
    commands = pool.place("bob", 20, 20)
    assert not any(isinstance(command, GrantSegment) for command in commands)


def test_people_see_how_much_is_offloaded() -> None:
    pool = Pool()
    pool.open("ann")
    pool.place("ann", 160, 40)
    pool.holds("ann", {"ann": 70}, ann=90)
    account = pool.accounts.session("ann")
    assert account is not None
    assert (account.total_bytes, account.offloaded_bytes) == (160 * MIB, 70 * MIB)
    assert account.stored_bytes == 70 * MIB
