"""Every order of up to four events of a session, while its state is on the device, on the host, or being
copied."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from fake_engine import FakeEngine, Held
from sampled import sampled

from djinn_lab.memory import (
    AnswerPhase,
    CellEnded,
    ClockTicked,
    Command,
    Connection,
    DeviceAdded,
    Event,
    IllegalEvent,
    Phase,
    PhaseSignalled,
    SegmentPlaced,
    SessionBound,
    SessionClosed,
    SessionDetached,
    SessionOpened,
    SessionResumed,
)
from djinn_lab.memory.machine.accounts import MemoryAccounts

STATE_BYTES = 400
PEAK_BYTES = 100


class World:
    """One session of interest, ``s``, and a second one that would take the rest of the device."""

    def __init__(self) -> None:
        self.accounts = MemoryAccounts()
        self.engine = FakeEngine("cpu:0", 1000, 2000, 0)
        self.now_s = 0.0
        self.placed = False
        self.closed = False
        self.answers: list[str] = []
        self.say(DeviceAdded(0.0, "cpu:0", 1000, 2000, 0, 1e6))
        for name in ("s", "other"):
            self.say(SessionOpened(0.0, name, name))
            self.say(SessionBound(0.0, name, "cpu:0"))
            self.engine.sessions[name] = Held()
            self.run(name, STATE_BYTES)

    def run(self, name: str, kept: int) -> None:
        self.say(SegmentPlaced(self.now_s, f"first-{name}", 0, name, kept))
        self.engine.granted.discard(f"first-{name}")
        self.engine.sessions[name].device = kept
        self.say(self.engine.report(self.now_s, f"first-{name}"))
        self.say(CellEnded(self.now_s, name))

    def say(self, event: Event) -> list[Command]:
        commands = self.accounts.handle(event)
        for command in commands:
            if isinstance(command, AnswerPhase):
                self.answers.append(command.answer)
            else:
                self.engine.obey(command)
        self.accounts.validate()
        return commands

    def settle(self) -> None:
        while self.engine.under_way:
            self.result(min(self.engine.under_way))

    def result(self, number: int) -> None:
        result = self.engine.finish(number, self.now_s)
        self.say(self.engine.report(self.now_s))
        self.say(result)

    # -- what may happen -----------------------------------------------------------------------------------

    def signal(self, phase: str, expected_s: float | None = None) -> None:
        if not self.closed:
            self.say(PhaseSignalled(self.now_s, "s", phase, expected_s))

    def wake(self) -> None:
        if not self.closed and not self.placed:
            self.placed = True
            self.say(SegmentPlaced(self.now_s, "job", 0, "s", PEAK_BYTES))

    def cell_ends(self) -> None:
        """The worker's report comes first, if it ran at all."""
        if self.closed:
            return
        if "job" in self.engine.granted:
            self.engine.granted.discard("job")
            self.placed = False
            self.engine.sessions["s"].device += 10
            self.say(self.engine.report(self.now_s, "job"))
        self.say(CellEnded(self.now_s, "s"))

    def transfer_ends(self) -> None:
        if self.engine.under_way:
            self.result(min(self.engine.under_way))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.say(SessionClosed(self.now_s, "s"))
            self.say(self.engine.report(self.now_s))


HAPPENINGS: dict[str, Callable[[World], None]] = {
    "compute": lambda world: world.signal("COMPUTE"),
    "wait": lambda world: world.signal("IO_WAIT"),
    "wait 5 s": lambda world: world.signal("IO_WAIT", 5.0),
    "soon": lambda world: world.signal("SOON"),
    "wake": World.wake,
    "cell ends": World.cell_ends,
    "transfer ends": World.transfer_ends,
    "close": World.close,
}


def on_the_device(world: World) -> None:
    world.settle()


def being_stored(world: World) -> None:
    assert world.engine.under_way


def on_the_host(world: World) -> None:
    """The other session takes all of the device and frees it; memory learns that from a report alone."""
    world.settle()
    world.now_s = 100.0
    world.say(SegmentPlaced(world.now_s, "large", 0, "other", 590))
    world.settle()
    assert world.engine.sessions["s"].device == 0
    world.engine.granted.discard("large")
    world.accounts.handle(world.engine.report(world.now_s, "large"))


def being_restored(world: World) -> None:
    on_the_host(world)
    world.signal("SOON")
    assert any(command.session == "s" for command in world.engine.under_way.values())


@pytest.mark.parametrize("start", [on_the_device, being_stored, on_the_host, being_restored])
@pytest.mark.parametrize("length", range(1, sampled(5, 4)))
def test_signals_in_every_order_come_to_rest(start: Callable[[World], None], length: int) -> None:
    for order in product(HAPPENINGS, repeat=length):
        world = World()
        start(world)
        for happening in order:
            world.now_s += 0.01
            HAPPENINGS[happening](world)
        comes_to_rest(world, order)


def comes_to_rest(world: World, order: tuple[str, ...]) -> None:
    """Assert that an open session runs its cell with its state whole, then waits, whatever came before."""
    world.settle()
    if world.closed:
        assert world.accounts.session("s") is None
        assert "s" not in world.engine.sessions
        with pytest.raises(IllegalEvent):
            world.say(PhaseSignalled(world.now_s, "s", "COMPUTE"))
        return
    world.wake()
    world.settle()
    for _ in range(3):
        world.now_s += 5.0
        world.say(ClockTicked(world.now_s))
        world.settle()
    assert "job" in world.engine.granted, order
    assert world.engine.sessions["s"].device >= STATE_BYTES
    world.cell_ends()
    account = world.accounts.session("s")
    assert account is not None
    assert account.phase is Phase.IO_WAIT
    assert set(world.answers) <= {"accepted", "deferred"}


def test_a_signal_during_a_cell_counts_when_the_cell_ends() -> None:
    world = World()
    world.settle()
    world.now_s = 1.0
    world.wake()
    world.signal("IO_WAIT", 7.0)
    assert world.answers == ["deferred"]
    assert phase_of(world) is Phase.COMPUTE
    world.now_s = 2.0
    world.cell_ends()
    account = world.accounts.session("s")
    assert account is not None
    assert account.phase is Phase.IO_WAIT
    assert account.wake_at_s is not None


def test_detached_session_has_its_signals_rejected() -> None:
    world = World()
    world.say(SessionDetached(1.0, "s"))
    world.signal("COMPUTE")
    assert world.answers == ["rejected"]
    account = world.accounts.session("s")
    assert account is not None
    assert account.connection is Connection.DETACHED
    assert account.wake_at_s is None
    world.say(SessionResumed(2.0, "s"))
    world.signal("COMPUTE")
    assert world.answers == ["rejected", "accepted"]


def test_an_absurd_wait_is_clipped_and_nonsense_rejected() -> None:
    world = World()
    world.signal("IO_WAIT", 1e12)
    world.signal("IO_WAIT", float("inf"))
    assert world.answers == ["clipped", "clipped"]
    for phase, wait_s in (("IO_WAIT", -1.0), ("IO_WAIT", float("nan")), ("NAP", None), ("compute", None)):
        world.signal(phase, wait_s)
    assert world.answers[2:] == ["rejected"] * 4


def test_compute_joins_a_restore_under_way() -> None:
    world = World()
    being_restored(world)
    before = dict(world.engine.under_way)
    world.signal("COMPUTE")
    assert world.engine.under_way == before
    counters = world.accounts.snapshot().counters
    assert (counters.prefetches, counters.prefetches_late) == (1, 1)


def test_session_signalling_compute_without_computing_becomes_a_victim_again() -> None:
    world = World()
    world.settle()
    world.signal("COMPUTE")
    world.now_s = 40.0
    world.say(SegmentPlaced(world.now_s, "large", 0, "other", 590))
    assert any(command.session == "s" for command in world.engine.under_way.values())


def phase_of(world: World) -> Phase:
    account = world.accounts.session("s")
    assert account is not None
    return account.phase
