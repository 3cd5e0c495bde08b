"""A run asks for its next ops while the device computes those before, and tells of none that is under way."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import standin
import torch
from isolated import on_standin
from programs import Script, contiguous

from djinn_lab.protocol.worker import Resume
from djinn_lab.srg.program import Program, encode_program
from djinn_lab.worker.accelerator.link import AcceleratorLink
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.outcome import Outcome, Stop, StopSignal

DEVICE = "standin:0"
MIB = 2**20


class Worker:
    """A worker's interpreter, without its process."""

    def __init__(self, results: Path) -> None:
        device = torch.device(DEVICE)
        self.interpreter = Interpreter(device, 256 * MIB, results, link=AcceleratorLink(device))
        assert self.interpreter.prepare(adds(2)[0], None).plan is not None, "the extension is not built"

    def run(
        self,
        program: Program,
        should_stop: Callable[[], Stop | None] | None = None,
        resume: Resume | None = None,
    ) -> Outcome:
        stop = StopSignal() if should_stop is None else should_stop
        encoded = encode_program(program)
        return self.interpreter.run("ann", encoded, {}, stop, lambda done, total: None, resume=resume)

    def values(self, *identifiers: int) -> list[torch.Tensor]:
        tensors = self.interpreter.values_of("ann").tensors
        found = [tensors[identifier] for identifier in identifiers]
        return [tensor.cpu() for tensor in found if tensor is not None]


def adds(count: int, size: int = 8) -> tuple[Program, int, list[int]]:
    """Return a program that counts, its last value, and all values."""
    script = Script()
    value = script.load(torch.zeros(size))
    values = []
    for _ in range(count):
        value = script.op("aten.add.Tensor", value, scalars=(1,))
        values.append(value)
    return script.program(keep=(value,)), value, values


def looked_up(ops: int, at: int, row: int) -> tuple[Program, int]:
    """Return a program of adds, of which op ``at`` looks up a row instead."""
    script = Script()
    table, index = script.load(torch.ones(4, 8)), script.load(torch.tensor([row]))
    value = script.load(torch.zeros(1, 8))
    for number in range(ops):
        if number == at:
            meta = contiguous(1, 8)
            value = script.op("aten.embedding.default", table, index, meta=meta)
        else:
            value = script.op("aten.add.Tensor", value, scalars=(1,))
    return script.program(keep=(value,)), value


def is_idle() -> bool:
    return torch.accelerator.current_stream(DEVICE).query()


@on_standin(manual=True)
def test_a_run_waits_for_few_of_its_ops_and_ends_when_all_have_ended(tmp_path: Path) -> None:
    """By the device's clock, which stands still but for waits: nothing ends without a wait."""
    worker = Worker(tmp_path)
    program, last, _ = adds(1000)
    worker.run(program)
    before = standin.counters(DEVICE)
    outcome = worker.run(program)
    waits = standin.counters(DEVICE)["waits"] - before["waits"]
    assert (outcome.failure, outcome.executed) == (None, 1000)
    assert is_idle()
    assert waits < 100
    assert len(outcome.node_times) == 1000 * 2 * 8
    assert torch.equal(worker.values(last)[0], torch.full((8,), 1000.0))


@on_standin(manual=True)
def test_times_of_ops_come_one_after_the_other(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    outcome = worker.run(adds(300)[0])
    times = memoryview(outcome.node_times).cast("d")
    assert list(times) == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= outcome.run_s


@pytest.mark.parametrize("seed", range(4))
@on_standin(launch_s=1e-3)
def test_a_run_that_is_stopped_has_nothing_under_way_and_goes_on_from_there(
    tmp_path: Path, seed: int
) -> None:
    worker = Worker(tmp_path)
    program, last, values = adds(300)
    stop, chance = StopSignal(), random.Random(seed)
    asking = threading.Timer(chance.uniform(0.01, 0.2), stop.ask, ("preempted",))
    asking.start()
    outcome = worker.run(program, stop)
    asking.join()
    assert (outcome.failure, outcome.stopped) == (None, "preempted")
    assert is_idle()
    assert 0 < outcome.executed < 300
    [reached] = worker.values(values[outcome.executed - 1])
    assert torch.equal(reached, torch.full((8,), float(outcome.executed)))
    rest = worker.run(program, resume=Resume(outcome.executed, outcome.rng_state))
    assert (rest.failure, rest.executed) == (None, 300)
    assert torch.equal(worker.values(last)[0], torch.full((8,), 300.0))


@on_standin(launch_s=20e-3)
def test_a_stop_waits_for_few_long_ops(tmp_path: Path) -> None:
    """Of 200 that take four seconds, the device is asked for no more than a handful ahead."""
    worker = Worker(tmp_path)
    stop = StopSignal()
    asking = threading.Timer(0.3, stop.ask, ("preempted",))
    asking.start()
    began = time.monotonic()
    before = standin.counters(DEVICE)["launches"]
    outcome = worker.run(adds(200)[0], stop)
    launched = standin.counters(DEVICE)["launches"] - before
    asking.join()
    assert outcome.stopped == "preempted"
    reached = (time.monotonic() - began) / 20e-3
    assert launched <= reached + 10


@pytest.mark.parametrize("at", [0, 1, 7, 130, 299])
@pytest.mark.parametrize("watched", [False, True])
@on_standin(devices=1)
def test_a_fault_is_raised_by_the_run_and_named_by_one_that_is_watched(
    tmp_path: Path, at: int, watched: bool
) -> None:
    worker = Worker(tmp_path)
    program, _ = looked_up(300, at, row=9)
    outcome = worker.run(program, (lambda: None) if watched else None)
    assert outcome.failure is not None
    assert outcome.failure.type_name == "AcceleratorError"
    assert outcome.executed <= at
    if watched:
        assert outcome.failure.node == at
        assert outcome.failure.op == "aten.embedding.default"


@on_standin(devices=1)
def test_an_op_that_cannot_have_its_memory_leaves_those_before_it(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    script = Script()
    value = script.load(torch.zeros(MIB))
    values = [script.op("aten.add.Tensor", value, scalars=(number,)) for number in range(80)]
    outcome = worker.run(script.program(keep=tuple(values)))
    assert outcome.failure is not None
    assert outcome.failure.family == "memory"
    assert outcome.failure.node == outcome.executed
    [reached] = worker.values(values[outcome.executed - 1])
    assert torch.equal(reached, torch.full((MIB,), float(outcome.executed - 1)))


@on_standin(devices=1)
def test_memory_that_a_run_frees_serves_its_next_ops(tmp_path: Path) -> None:
    """In the order of the device's stream, without a wait for each."""
    worker = Worker(tmp_path)
    program, last, _ = adds(500, size=8 * MIB)
    outcome = worker.run(program)
    assert outcome.failure is None
    assert torch.equal(worker.values(last)[0], torch.full((8 * MIB,), 500.0))
    assert torch.accelerator.max_memory_allocated(DEVICE) < 256 * MIB
    assert standin.races() == []
