"""New sessions wait for as much free capacity as similar sessions came to need, and no more."""

from __future__ import annotations

import pytest

from djinn_lab.events import ClockTicked, MemoryRelease, SessionDetached
from djinn_lab.memory import (
    CellEnded,
    Command,
    DeferSegment,
    DeviceAdded,
    Event,
    GrantSegment,
    MemoryReported,
    Phase,
    PhaseSignalled,
    SegmentPlaced,
    SessionBound,
    SessionClosed,
    SessionOpened,
    StoreSession,
    TransferDone,
    WorkerDied,
)
from djinn_lab.memory.machine.accounts import MemoryAccounts
from djinn_lab.memory.machine.admission import STANDS_STILL_S

KIB, MIB, GIB = 2**10, 2**20, 2**30


class Teachers:
    """A device of one GiB, and sessions that become larger on it and close."""

    def __init__(self, host_bytes: int = 0) -> None:
        self.accounts = MemoryAccounts()
        self.held: dict[str, int] = {}
        self.feed(DeviceAdded(0.0, "cpu:0", GIB, host_bytes, 0, 1e9))

    def feed(self, event: Event) -> list[Command]:
        return self.accounts.handle(event)

    def open(self, name: str, user: str = "ann") -> None:
        self.feed(SessionOpened(0.0, name, user))
        self.feed(SessionBound(0.0, name, "cpu:0"))

    def place(self, name: str, peak_bytes: int, kept_bytes: int) -> Command:
        """Place a segment and return the first command that answers it."""
        placed = SegmentPlaced(1.0, name, 0, name, peak_bytes, 0, kept_bytes=kept_bytes)
        return self.feed(placed)[0]

    def cell(self, name: str, keeps_bytes: int) -> None:
        assert isinstance(self.place(name, keeps_bytes, keeps_bytes), GrantSegment)
        self.held[name] = keeps_bytes
        self.report(name)
        self.feed(CellEnded(1.0, name))

    def report(self, job: str | None = None) -> None:
        used = sum(self.held.values())
        self.feed(MemoryReported(1.0, "cpu:0", used, used, dict(self.held), job=job))

    def teach(self, count: int, first_bytes: int, last_bytes: int, user: str = "ann") -> None:
        for number in range(count):
            name = f"{user}{number}"
            self.open(name, user)
            for nbytes in (first_bytes, first_bytes, last_bytes):
                self.cell(name, nbytes)
            self.feed(SessionClosed(1.0, name))
            self.held.pop(name)
            self.report()


def test_session_that_begins_with_weights_ignores_those_that_began_with_a_scalar() -> None:
    pool = Teachers()
    pool.teach(5, 4, 4 * MIB)
    pool.open("other", "bob")
    pool.cell("other", 100 * MIB)
    pool.open("new", "cy")
    assert isinstance(pool.place("new", 50 * MIB, 50 * MIB), GrantSegment)


def test_a_session_that_begins_with_a_scalar_is_not_taken_for_one_that_becomes_huge() -> None:
    pool = Teachers()
    pool.teach(5, 4, 4 * MIB)
    pool.open("other", "bob")
    pool.cell("other", 800 * MIB)
    pool.open("new", "cy")
    assert isinstance(pool.place("new", 256 * KIB, 256 * KIB), GrantSegment)


@pytest.mark.parametrize(("user", "expected"), [("ann", DeferSegment), ("bob", GrantSegment)])
def test_a_user_is_expected_to_do_as_before(user: str, expected: type[Command]) -> None:
    """Ann's sessions become sixteen times as large, bob's stay."""
    pool = Teachers()
    pool.teach(5, 20 * MIB, 320 * MIB, "ann")
    pool.teach(5, 20 * MIB, 20 * MIB, "bob")
    pool.open("other", "cy")
    pool.cell("other", 700 * MIB)
    pool.open("new", user)
    assert isinstance(pool.place("new", 20 * MIB, 20 * MIB), expected)


def test_only_session_is_admitted_whatever_was_learnt() -> None:
    pool = Teachers()
    pool.teach(5, 20 * MIB, 800 * MIB)
    pool.open("new")
    assert isinstance(pool.place("new", 100 * MIB, 100 * MIB), GrantSegment)


def deferred(pool: Teachers, name: str, nbytes: int) -> DeferSegment:
    pool.open(name, "cy")
    answer = pool.place(name, nbytes, nbytes)
    assert isinstance(answer, DeferSegment)
    return answer


def test_new_session_beside_running_cells_waits_for_their_end_not_for_a_close() -> None:
    pool = Teachers()
    pool.open("other", "bob")
    pool.cell("other", 300 * MIB)
    assert isinstance(pool.place("other", 500 * MIB, 0), GrantSegment)
    answer = deferred(pool, "new", 200 * MIB)
    assert answer.release is MemoryRelease.ADMISSION
    assert answer.reason == (
        "memory is full: 1 session holds 300.0 MiB, and running cells 500.0 MiB more, of 921.6 MiB"
        " (90% of cpu:0), and this one is expected to need 200.0 MiB; it waits for job other to end"
    )
    pool.report("other")
    after = pool.feed(CellEnded(1.0, "other"))
    assert any(isinstance(command, GrantSegment) and command.job == "new" for command in after)


def beside_growing_ones() -> Teachers:
    """Return a pool with two small sessions, of whose kind all became large."""
    pool = Teachers()
    pool.teach(5, 20 * MIB, 320 * MIB, "ann")
    for name in ("one", "two"):
        pool.open(name, "ann")
        pool.cell(name, 20 * MIB)
    return pool


def test_new_session_beside_growing_ones_waits_until_they_close_or_stay_smaller() -> None:
    pool = beside_growing_ones()
    answer = deferred(pool, "new", 300 * MIB)
    assert answer.release is MemoryRelease.ADMISSION
    assert "2 sessions are expected to grow to 640.0 MiB of" in answer.reason
    assert answer.reason.endswith("it waits for one to close or to stay smaller")


def test_a_new_session_waits_half_a_minute_for_sessions_that_stand_still_to_grow() -> None:
    pool = beside_growing_ones()
    deferred(pool, "new", 300 * MIB)
    pool.feed(ClockTicked(STANDS_STILL_S))
    assert pool.accounts.snapshot().deferred
    commands = pool.feed(ClockTicked(STANDS_STILL_S + 2))
    assert any(isinstance(command, GrantSegment) and command.job == "new" for command in commands)


def test_sessions_that_became_smaller_again_are_not_taken_to_grow_on() -> None:
    pool = Teachers()
    for number in range(5):
        name = f"ann{number}"
        pool.open(name)
        for mebibytes in (20, 20, 100, 20):
            pool.cell(name, mebibytes * MIB)
    pool.open("new", "bob")
    assert isinstance(pool.place("new", 300 * MIB, 300 * MIB), GrantSegment)


def test_sessions_without_a_client_are_not_expected_to_grow() -> None:
    pool = beside_growing_ones()
    deferred(pool, "new", 300 * MIB)
    commands = pool.feed(SessionDetached(1.0, "one"))
    assert any(isinstance(command, GrantSegment) and command.job == "new" for command in commands)


def test_new_session_beside_full_ones_waits_for_a_close() -> None:
    pool = Teachers()
    pool.open("other", "bob")
    pool.cell("other", 800 * MIB)
    answer = deferred(pool, "new", 200 * MIB)
    assert answer.release is MemoryRelease.CLOSE
    assert answer.reason.endswith("it waits for one to close or to free values")
    pool.feed(SessionDetached(1.0, "other"))
    pool.feed(ClockTicked(2.0))
    (behind,) = pool.accounts.snapshot().deferred
    advice = "one session has no client: `djinn-lab close other` frees enough, and drops its values"
    assert behind.reason.endswith(advice)


def test_no_session_is_to_be_closed_for_a_cell_that_it_would_not_help() -> None:
    pool = Teachers()
    for name, mebibytes in (("abandoned", 100), ("other", 700)):
        pool.open(name, "bob")
        pool.cell(name, mebibytes * MIB)
    pool.feed(SessionDetached(1.0, "abandoned"))
    answer = deferred(pool, "new", 300 * MIB)
    assert answer.reason.endswith("it waits for one to close or to free values")


def test_sessions_that_only_help_together_are_named_together() -> None:
    pool = Teachers()
    for name, mebibytes in (("first", 100), ("second", 150), ("other", 600)):
        pool.open(name, "bob")
        pool.cell(name, mebibytes * MIB)
    for name in ("first", "second"):
        pool.feed(SessionDetached(1.0, name))
    answer = deferred(pool, "new", 300 * MIB)
    commands = "`djinn-lab close second` and `djinn-lab close first`"
    assert answer.reason.endswith(f"2 sessions have no client: {commands} free enough, and drop their values")
    for name in ("first", "second"):
        pool.feed(SessionClosed(2.0, name))
        pool.held.pop(name)
    pool.report()
    assert not pool.accounts.snapshot().deferred


def test_while_a_cell_runs_that_may_free_values_no_session_is_to_be_closed() -> None:
    """The session of the running cell holds 500 MiB, and its cell frees 400 of them."""
    pool = Teachers()
    for name, mebibytes in (("abandoned", 300), ("other", 500)):
        pool.open(name, "bob")
        pool.cell(name, mebibytes * MIB)
    pool.feed(SessionDetached(1.0, "abandoned"))
    assert isinstance(pool.place("other", MIB, 0), GrantSegment)
    answer = deferred(pool, "new", 200 * MIB)
    assert answer.reason.endswith("it waits for one to close or to free values, as job other may at the end")
    pool.held["other"] = 100 * MIB
    pool.report("other")
    after = pool.feed(CellEnded(1.0, "other"))
    assert any(isinstance(command, GrantSegment) and command.job == "new" for command in after)


def test_cell_behind_a_deferred_one_names_it() -> None:
    pool = Teachers()
    pool.open("other", "bob")
    pool.cell("other", 800 * MIB)
    deferred(pool, "first", 200 * MIB)
    behind = deferred(pool, "second", 200 * MIB)
    assert behind.reason == "memory of cpu:0 is full, and 1 new session waits before it (job first)"
    behind = deferred(pool, "third", 200 * MIB)
    assert behind.reason == "memory of cpu:0 is full, and 2 new sessions wait before it (job first first)"


@pytest.mark.parametrize(
    ("others", "needs"),
    [
        ((800,), "300.0 MiB in one piece, where cpu:0 has 224.0 MiB and the host 200.0 MiB free"),
        ((640, 170), "250.0 MiB and 170.0 MiB in one piece to exchange sessions"),
        (
            (300, 300, 300),
            "150.0 MiB and 150.0 MiB in one piece to exchange sessions, where cpu:0 has 124.0 MiB"
            " and the host 200.0 MiB free",
        ),
    ],
)
def test_new_session_that_fits_only_in_pieces_waits_for_a_close(others: tuple[int, ...], needs: str) -> None:
    pool = Teachers(host_bytes=200 * MIB)
    for number, mebibytes in enumerate(others):
        pool.open(f"other{number}", "bob")
        pool.cell(f"other{number}", mebibytes * MIB)
    answer = deferred(pool, "new", int(float(needs.split()[0])) * MIB)
    assert answer.release is MemoryRelease.CLOSE
    waits = "it waits for one to close or to free values"
    assert answer.reason.endswith(f"and this one is expected to need {needs}; {waits}")


def test_what_a_dead_process_left_on_the_host_is_counted_until_its_session_closes() -> None:
    accounts = MemoryAccounts()

    def feed(*events: Event) -> list[Command]:
        return [command for event in events for command in accounts.handle(event)]

    def opened(name: str) -> list[Command]:
        placed = SegmentPlaced(1.0, name, 0, name, 30 * MIB, 0, kept_bytes=30 * MIB)
        return feed(SessionOpened(0.0, name, "ann"), SessionBound(0.0, name, "cpu:0"), placed)

    feed(DeviceAdded(0.0, "cpu:0", 64 * MIB, 40 * MIB, 0, 1e9))
    assert isinstance(opened("first")[0], GrantSegment)
    held = {"first": 30 * MIB}
    ran = MemoryReported(
        1.0, "cpu:0", 30 * MIB, 30 * MIB, held, job="first", unstored_bytes=held, ready_bytes=held
    )
    idle = feed(ran, CellEnded(1.0, "first"), PhaseSignalled(1.0, "first", Phase.IO_WAIT), ClockTicked(2.0))
    [store] = [one for one in idle if isinstance(one, StoreSession)]
    feed(MemoryReported(1.0, "cpu:0", 30 * MIB, 30 * MIB, held, host_bytes=30 * MIB))
    feed(TransferDone(1.0, store.transfer, "first", "cpu:0", "store", 30 * MIB, 0.1, 0.0))
    feed(WorkerDied(3.0, "cpu:0"), DeviceAdded(3.0, "cpu:0", 64 * MIB, 40 * MIB, 0, 1e9))
    device = accounts.device("cpu:0")
    assert device is not None
    assert (device.host_used_bytes, device.used_bytes) == (30 * MIB, 0)
    assert isinstance(opened("second")[0], GrantSegment)
    [deferred] = [one for one in opened("third") if isinstance(one, DeferSegment)]
    assert "2 sessions" in deferred.reason
    feed(SessionClosed(4.0, "first"))
    device = accounts.device("cpu:0")
    assert device is not None
    assert device.host_used_bytes == 0
    accounts.validate()


def test_a_session_that_stopped_growing_is_as_large_as_it_is() -> None:
    """Ann's former sessions became sixteen times as large; this one ran on at 50 MiB."""
    pool = Teachers()
    pool.teach(5, 20 * MIB, 320 * MIB)
    pool.open("steady")
    pool.cell("steady", 50 * MIB)
    assert isinstance(deferred(pool, "early", 300 * MIB), DeferSegment)
    pool.feed(SessionClosed(1.0, "early"))
    for _ in range(5):
        pool.cell("steady", 50 * MIB)
    pool.open("late", "cy")
    assert isinstance(pool.place("late", 300 * MIB, 300 * MIB), GrantSegment)


def test_a_session_that_grew_again_is_expected_to_grow() -> None:
    pool = Teachers()
    pool.teach(5, 20 * MIB, 320 * MIB)
    pool.open("steady")
    for nbytes in (*[50 * MIB] * 6, 60 * MIB):
        pool.cell("steady", nbytes)
    assert isinstance(deferred(pool, "late", 300 * MIB), DeferSegment)


def test_small_new_sessions_pass_a_large_deferred_one_up_to_a_bound() -> None:
    pool = Teachers()
    pool.open("other", "bob")
    pool.cell("other", 700 * MIB)
    large = deferred(pool, "large", 300 * MIB)
    assert large.release is MemoryRelease.CLOSE
    admitted = 0
    while isinstance(answer := answered(pool, f"small{admitted}", 4 * MIB), GrantSegment):
        admitted += 1
        pool.report(f"small{admitted - 1}")
    assert 0 < admitted * 4 * MIB <= GIB // 50
    assert isinstance(answer, DeferSegment)
    assert "1 new session waits before it (job large)" in answer.reason


def answered(pool: Teachers, name: str, nbytes: int) -> Command:
    pool.open(name, "cy")
    return pool.place(name, nbytes, nbytes)
