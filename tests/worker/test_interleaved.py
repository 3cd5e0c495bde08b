"""Whole programs between two ops of another one: both compute what they compute alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from programs import Script
from training import training
from worker_kit import Device, WorkerUnderTest, read_fetched, run_undisturbed

from djinn_lab.protocol import worker as messages
from djinn_lab.srg.program import encode_program
from djinn_lab.worker.executor import find_executor
from djinn_lab.worker.interpreter import Outcome
from djinn_lab.worker.outcome import Stop, StopSignal

NATIVE = pytest.param(True, marks=pytest.mark.skipif(find_executor() is None, reason="not built"))
Start = Callable[[], WorkerUnderTest]


class Pausing:
    """A run that pauses before each of its first ops, and trains another session's model there."""

    def __init__(self, device: Device, pauses: int) -> None:
        self.signal = StopSignal()
        self.signal.others = self.run_other
        self.signal.ask_to_pause()
        self.outcomes: list[Outcome] = []
        self._device, self._pauses = device, pauses

    def run_other(self) -> None:
        other, kept = training(steps=1, seed=len(self.outcomes))
        with self._device.interpreter.between_ops():
            self.outcomes.append(self._device.run("bob", other))
            self._device.interpreter.release("bob", kept)
        if len(self.outcomes) < self._pauses:
            self.signal.ask_to_pause()


@pytest.mark.parametrize("native", [NATIVE, False], ids=["natively", "in Python"])
def test_program_that_pauses_often_computes_the_same(tmp_path: Path, native: bool) -> None:
    device = Device(tmp_path / "here", native=native)
    alone = Device(tmp_path / "alone", native=native)
    program, _ = training(steps=3, seed=7)
    expected = run_undisturbed(alone.interpreter, "ann", program, alone.results)
    pausing = Pausing(device, pauses=40)
    outcome = device.try_run("ann", program, should_stop=pausing.signal)
    assert outcome.failure is None, outcome.failure
    found = [read_fetched(item, device.results) for item in outcome.fetched]
    assert all(map(torch.equal, found, expected))
    assert outcome.executed == len(program.nodes)
    assert len(pausing.outcomes) == 40
    for seed, other in enumerate(pausing.outcomes):
        expected = run_undisturbed(alone.interpreter, f"bob{seed}", training(1, seed=seed)[0], alone.results)
        assert all(map(torch.equal, [read_fetched(one, device.results) for one in other.fetched], expected))
    alone.close()
    device.close()
    assert device.interpreter.memory.used_bytes == 0


@pytest.mark.parametrize("native", [NATIVE, False], ids=["natively", "in Python"])
@pytest.mark.parametrize("stop", ["preempted", "cancelled"])
def test_stop_that_comes_in_a_pause_stops_the_program_there(tmp_path: Path, native: bool, stop: Stop) -> None:
    device = Device(tmp_path / "here", native=native)
    signal = StopSignal()
    signal.others = lambda: signal.ask(stop)
    signal.ask_to_pause()
    outcome = device.try_run("ann", training(steps=1)[0], should_stop=signal)
    assert (outcome.stopped, outcome.executed) == (stop, 0)
    device.close()


@pytest.mark.processes
def test_worker_answers_interleaved_segments_before_the_one_that_runs(start: Start) -> None:
    worker = start()
    program, _ = training(steps=300, size=384)
    short, _ = training(steps=1)
    alone = {"long": worker.run("undisturbed", program), "short": worker.run("undisturbed too", short)}
    expected = {job: (values(worker, done), done.rng_state) for job, done in alone.items()}
    worker.send(messages.RunSegment("long", 0, "ann", encode_program(program)))
    worker.wait_for(messages.SegmentStarted)
    for number in range(5):
        worker.send(
            messages.RunSegment(f"short{number}", 0, f"bob{number}", encode_program(short), interleaved=True)
        )
    answers = [worker.wait_for(messages.SegmentDone) for _ in range(6)]
    assert [answer.job for answer in answers] == [*(f"short{number}" for number in range(5)), "long"]
    for answer in answers:
        assert (values(worker, answer), answer.rng_state) == expected[answer.job.rstrip("01234")]


@pytest.mark.processes
def test_interleaved_segment_runs_by_itself_on_an_idle_worker(start: Start) -> None:
    worker = start()
    script = Script()
    loaded = script.load(torch.ones(3))
    program = script.program(fetch=(script.op("aten.neg.default", loaded),))
    worker.send(messages.RunSegment("j", 0, "bob", encode_program(program), interleaved=True))
    done = worker.wait_for(messages.SegmentDone)
    assert read_fetched(done.fetched[0], worker.directory).tolist() == [-1.0] * 3


def values(worker: WorkerUnderTest, done: messages.SegmentDone) -> list[bytes]:
    return [read_fetched(item, worker.directory).numpy().tobytes() for item in done.fetched]
