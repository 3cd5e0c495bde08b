"""A program that is stopped between two ops and resumed later, on any device, computes the same as one that
was never stopped."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from audit import audit
from comparing import Left, summary
from programs import Script
from random_programs import SIZE, RandomPrograms
from sampled import sampled
from worker_kit import Device, read_fetched

from djinn_lab.protocol import worker as messages
from djinn_lab.srg.program import Program
from djinn_lab.worker import cuts, storages
from djinn_lab.worker.outcome import Outcome, Stop

MakeDevice = Callable[..., Device]
PREEMPTIONS = 50
"""Of each seed."""
SEEDS = sampled(20, 5)


def stop_at(calls: int, how: Stop = "preempted") -> Callable[[], Stop | None]:
    """Return a stop signal that stops from its ``calls``-th call on, counted from 0."""
    left = [calls]

    def should_stop() -> Stop | None:
        left[0] -= 1
        return how if left[0] < 0 else None

    return should_stop


def held(device: Device) -> int:
    """Return the bytes of the session, weights that it shares included."""
    memory = device.memory()
    return memory.session_bytes["ann"] + memory.weight_bytes.get("ann", 0)


class Journey:
    """A session whose programs are stopped at random; meanwhile it is moved between devices and tiers, and
    programs of another session run."""

    def __init__(self, devices: list[Device], seed: int) -> None:
        self.random = random.Random(seed)
        self.devices = devices
        self.here = devices[0]
        self.done: Counter[str] = Counter()
        self.stops = 0
        made = torch.Generator().manual_seed(seed)
        squares = [torch.randn(SIZE, SIZE, generator=made) for _ in range(2)]
        for index, square in enumerate(squares):
            for device in devices:
                device.blob(square, f"blob{index}")
        self.programs = RandomPrograms(seed, ["blob0", "blob1"])
        self.others = {device.directory: RandomPrograms(seed + 1, ["blob0", "blob1"]) for device in devices}
        self.undisturbed = Device(devices[0].directory / "undisturbed", name="cpu:undisturbed", native=False)
        for index, square in enumerate(squares):
            self.undisturbed.blob(square, f"blob{index}")

    def run_one(self) -> None:
        """Run the next program here with stops and on another device without, and compare."""
        program = self.programs.next()
        expected = self.undisturbed.try_run("ann", program)
        outcome = self.run_with_stops(program)
        assert summary(outcome) == summary(expected)
        assert Left.of(self.here.interpreter.values_of("ann")) == Left.of(
            self.undisturbed.interpreter.values_of("ann")
        )
        assert held(self.here) == held(self.undisturbed)
        audit(self.here)

    def run_with_stops(self, program: Program) -> Outcome:
        resume: messages.Resume | None = None
        times: list[float] = []
        while True:
            calls = self.random.randrange(2 * (len(program.nodes) + len(program.sources)))
            outcome = self.here.try_run("ann", program, stop_at(calls), resume)
            times += messages.NodeTimes(node_times=outcome.node_times).node_end_s
            if outcome.stopped is None:
                assert len(times) == outcome.executed
                return outcome
            self.stops += 1
            assert len(times) == outcome.executed
            assert outcome.ops_total == len(program.nodes)
            resume = messages.Resume(outcome.executed, outcome.rng_state)
            audit(self.here)
            for _ in range(self.random.randrange(3)):
                self.disturb()

    def disturb(self) -> None:
        what = self.random.choice(
            [self.other, self.other, self.store, self.park, self.demote, *[self.move] * 3]
        )
        what()
        self.done[what.__name__] += 1
        audit(self.here)

    def other(self) -> None:
        """Run a program of another session, and draw from the device's generator."""
        torch.randn(3)
        self.here.try_run("bob", self.others[self.here.directory].next())

    def store(self) -> None:
        self.here.store_whole("ann")

    def park(self) -> None:
        self.here.park("ann")
        self.here.restore("ann")

    def demote(self) -> None:
        self.here.park("ann")
        self.here.demote("ann")
        self.here.restore("ann")

    def move(self) -> None:
        """Move the session to the other device by its manifest, as a pool does."""
        there = next(device for device in self.devices if device is not self.here)
        manifest = self.here.park("ann").manifest
        if self.random.random() < 0.5:
            manifest = self.here.demote("ann").manifest
        there.restore("ann", manifest)
        self.here.interpreter.close("ann")
        self.here = there


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut memory into small pieces, so that small tensors have several."""
    monkeypatch.setattr(storages, "PIECE_BYTES", 64)
    monkeypatch.setattr(cuts, "TOKENS_PER_PIECE", 4)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs_never_notice_that_they_were_stopped(make_device: MakeDevice, seed: int) -> None:
    devices = [make_device(disk_bytes=64 * 2**20) for _ in range(2)]
    journey = Journey(devices, 100 * seed)
    while journey.stops < PREEMPTIONS:
        journey.run_one()
    assert {"other", "store", "park", "demote", "move"} <= set(journey.done), journey.done
    journey.undisturbed.close()


def adding(device: Device) -> tuple[Program, int]:
    """Return a program of ten ops that keeps and fetches its last result, and that result."""
    script = Script()
    value = script.load(torch.ones(100))
    for _ in range(10):
        value = script.op("aten.add.Tensor", value, scalars=(1,))
    return script.program(keep=(value,), fetch=(value,)), value


def test_what_a_preempted_program_made_is_freed_when_it_is_given_up(make_device: MakeDevice) -> None:
    device = make_device()
    program, _ = adding(device)
    outcome = device.try_run("ann", program, stop_at(4))
    assert (outcome.stopped, outcome.executed, outcome.ops_total) == ("preempted", 3, 10)
    assert device.memory().session_bytes == {"ann": 400}
    device.park("ann")
    device.run("ann", Script().program(release=tuple(outcome.if_given_up)))
    assert device.memory().host_bytes == 0
    device.restore("ann")
    assert device.memory().session_bytes == {"ann": 0}


@pytest.mark.parametrize("calls", [0, 1])
def test_a_stop_before_the_first_op_or_load(make_device: MakeDevice, calls: int) -> None:
    """The stop comes before the only load, or after it."""
    device, other = make_device(), make_device()
    program, _ = adding(device)
    stopped = device.try_run("ann", program, stop_at(calls))
    assert (stopped.stopped, stopped.executed) == ("preempted", 0)
    other.restore("ann", device.park("ann").manifest)
    device.interpreter.close("ann")
    done = other.try_run("ann", program, resume=messages.Resume(0, stopped.rng_state))
    assert read_fetched(done.fetched[0], device.results).tolist() == [11.0] * 100


def test_resume_without_earlier_values_raises_value_lost(make_device: MakeDevice) -> None:
    device = make_device()
    program, _ = adding(device)
    failed = device.try_run("ann", program, resume=messages.Resume(5))
    assert failed.failure is not None
    assert (failed.failure.family, failed.failure.type_name) == ("pool", "ValueLost")
    assert failed.executed == 5


def test_a_stop_that_is_a_cancel_frees_as_before(make_device: MakeDevice) -> None:
    device = make_device()
    program, _ = adding(device)
    first = device.try_run("ann", program, stop_at(4))
    second = device.try_run("ann", program, stop_at(2, "cancelled"), messages.Resume(first.executed))
    assert (second.stopped, second.executed) == ("cancelled", 5)
    assert device.memory().used_bytes == 0


def test_a_session_that_went_away_and_comes_back_does_not_meet_what_it_was(make_device: MakeDevice) -> None:
    """The first device drops its parked copy before the session can return, also while it runs a program."""
    here, there = make_device(), make_device()
    script = Script()
    value = script.load(torch.zeros(100))
    here.run("ann", script.program(keep=(value,)))
    there.restore("ann", here.park("ann").manifest)
    here.interpreter.drop_parked("ann")
    assert here.memory().host_bytes == 0
    script.write("aten.add_.Tensor", value, scalars=(7,))
    there.run("ann", script.program())
    here.restore("ann", there.park("ann").manifest)
    there.interpreter.drop_parked("ann")
    assert here.fetch("ann", script.program(fetch=(value,)))[0].tolist() == [7.0] * 100
    here.interpreter.drop_parked("ann")  # what is on the device is not parked
    assert here.memory().session_bytes == {"ann": 400}
