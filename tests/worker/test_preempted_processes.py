"""Preemption in real worker processes: a training program on its way through two of them, and kill -9."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from programs import Script
from training import training
from worker_kit import WorkerUnderTest, read_fetched

from djinn_lab.protocol import worker as messages
from djinn_lab.protocol.worker import Resume
from djinn_lab.srg.program import Program, encode_program

pytestmark = pytest.mark.processes

Start = Callable[[], WorkerUnderTest]


def begin(worker: WorkerUnderTest, program: Program, resume: Resume | None = None) -> None:
    worker.send(messages.RunSegment("long", 0, "ann", encode_program(program), resume=resume))
    worker.wait_for(messages.SegmentStarted)


def preempt(worker: WorkerUnderTest) -> messages.RunPreempted:
    worker.send(messages.Preempt("long", 0))
    return worker.wait_for(messages.RunPreempted)


def preempt_in_the_middle(worker: WorkerUnderTest, program: Program) -> messages.RunPreempted:
    """Preempt a program after at least one op: stopped before, it has nothing to lose."""
    begin(worker, program)
    while (stopped := preempt(worker)).executed == 0:
        begin(worker, program, Resume(0, stopped.rng_state))
    return stopped


def park(worker: WorkerUnderTest, number: int) -> bytes:
    worker.send(messages.StoreState(number, "ann"))
    stored = worker.wait_for(messages.CopyDone)
    assert stored.manifest is not None
    worker.send(messages.Evict(number + 1, "ann"))
    worker.wait_for(messages.CopyDone)
    return stored.manifest


def restore(worker: WorkerUnderTest, number: int, manifest: bytes) -> None:
    worker.send(messages.Restore(number, "ann", manifest=manifest))
    worker.wait_for(messages.CopyDone)


def tensors(worker: WorkerUnderTest, done: messages.SegmentDone) -> list[bytes]:
    return [read_fetched(item, worker.directory).numpy().tobytes() for item in done.fetched]


def test_training_moves_between_two_processes_and_ends_as_if_it_had_not(start: Start) -> None:
    here, there = start(), start()
    program, _ = training(steps=150, size=384)
    expected = here.run("undisturbed", program)
    stopped, done = preempt_in_the_middle(here, program), 0
    for number in range(0, 24, 4):
        if number:
            stopped = preempt(here)
        assert done <= stopped.executed < stopped.ops_total == len(program.nodes)
        done = stopped.executed
        other, kept = training(steps=2, seed=number)
        here.run("bob", other, job="short")  # draws random numbers of its own
        here.run("bob", Script().program(release=kept), job="release")
        manifest = park(here, number + 1)
        restore(there, number + 3, manifest)
        here.send(messages.Close("ann"))
        assert here.wait_for(messages.Closed).memory.session_bytes.get("ann", 0) == 0
        here, there = there, here
        begin(here, program, Resume(stopped.executed, stopped.rng_state))
    assert done > 0
    found = here.wait_for(messages.SegmentDone)
    assert tensors(here, found) == tensors(there, expected)
    assert found.rng_state == expected.rng_state
    assert len(found.node_end_s) == len(program.nodes) - done
    assert found.memory.session_bytes["ann"] == expected.memory.session_bytes["undisturbed"]


def test_a_preempt_that_comes_too_late_hits_nothing_else(start: Start) -> None:
    worker = start()
    short, long = Script(), training(steps=100)[0]
    value = short.load(torch.ones(10))
    program = short.program(fetch=(value,))
    worker.send(messages.RunSegment("long", 0, "ann", encode_program(program)))
    worker.wait_for(messages.SegmentDone)
    worker.send(messages.Preempt("long", 0))
    worker.send(messages.RunSegment("long", 1, "ann", encode_program(long)))
    worker.send(messages.Preempt("long", 0))
    answer = worker.wait_for(messages.SegmentDone)
    assert (answer.segment, len(answer.node_end_s)) == (1, len(long.nodes))


def test_a_cancel_comes_before_a_preempt(start: Start) -> None:
    worker = start()
    program, _ = training(steps=100, size=384)
    begin(worker, program)
    worker.send(messages.Preempt("long", 0))
    stopped = worker.wait_for(messages.RunPreempted)
    begin(worker, program, Resume(stopped.executed, stopped.rng_state))
    worker.send(messages.Cancel("long"))
    worker.send(messages.Preempt("long", 0))
    assert worker.wait_for(messages.SegmentCancelled).executed >= stopped.executed


def test_a_killed_process_costs_a_parked_program_nothing(start: Start) -> None:
    first, second = start(), start()
    program, _ = training(steps=100, size=384)
    expected = second.run("undisturbed", program)
    stopped = preempt_in_the_middle(first, program)
    manifest = park(first, 1)
    first.kill()
    restore(second, 1, manifest)
    begin(second, program, Resume(stopped.executed, stopped.rng_state))
    assert tensors(second, second.wait_for(messages.SegmentDone)) == tensors(second, expected)


def test_what_lay_only_in_a_killed_process_is_lost(start: Start) -> None:
    first, second = start(), start()
    program, _ = training(steps=100, size=384)
    stopped = preempt_in_the_middle(first, program)
    first.kill()
    second.send(
        messages.RunSegment(
            "long", 0, "ann", encode_program(program), resume=Resume(stopped.executed, stopped.rng_state)
        )
    )
    failed = second.wait_for(messages.SegmentFailed)
    assert (failed.error.family, failed.error.type_name) == ("pool", "ValueLost")
