"""Programs that start while the rest of their session is still being restored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from audit import audit
from programs import Script
from worker_kit import MIB, Device, done, failed, fetch, keep, read_fetched, start_worker

from djinn_lab.protocol import worker as messages
from djinn_lab.protocol.worker import Reads
from djinn_lab.srg.program import Program, encode_program
from djinn_lab.worker.interpreter import Outcome
from djinn_lab.worker.loading import WantedValues
from djinn_lab.worker.outcome import Stop, StopSignal
from djinn_lab.worker.restoring import Copied, SessionGone, TransferProblem

Make = Callable[..., Device]
COUNT = MIB // 4
"""Floats of a piece."""


class Restoring:
    """A restore of ``ann``, one piece at a time, for a program that reads these values. ``ready``: filled
    once the program may start."""

    def __init__(self, device: Device, values: Sequence[int], first: int = 1) -> None:
        self.device = device
        self.ready: list[Reads] = []
        self.wanted = WantedValues(Reads("job", tuple(values), first), self.ready.append)
        self.values = device.interpreter.values_of("ann")
        self.copied = Copied()
        self._copy: Iterator[int] = device.copies.restore(self.values, self.copied, self.wanted)

    def step(self) -> bool:
        """Finish one piece and begin the next. False when all are there."""
        return next(self._copy, None) is not None

    def open(self) -> None:
        """Restore until a program may use the session."""
        while not self.ready:
            assert self.step()

    def finish(self) -> None:
        while self.step():
            pass
        self.device.copies.restore_ended(self.values, self.wanted)

    def fail(self, problem: type[Exception]) -> None:
        with pytest.raises(problem):
            self.step()
        self.device.copies.restore_ended(self.values, self.wanted)


class Running:
    """A program of ``ann`` in a thread of its own."""

    def __init__(self, device: Device, program: Program, resume: messages.Resume | None = None) -> None:
        self.stop = StopSignal()
        self.ops_done = 0
        self._looked = 0
        self._progress = threading.Condition()
        self._outcome: Outcome | None = None
        encoded = encode_program(program)

        def run() -> None:
            self._outcome = device.interpreter.run(
                "ann", encoded, {}, self.stop_asked, self._report, resume=resume
            )

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def stop_asked(self) -> Stop | None:
        with self._progress:
            self._looked += 1
            self._progress.notify_all()
        return self.stop()

    def wait_until_it_waits(self) -> None:
        """Wait until the program waits for a value: only then does it look for a stop several times."""
        with self._progress:
            looked = self._looked
            assert self._progress.wait_for(lambda: self._looked >= looked + 3, timeout=30)

    def _report(self, ops_done: int, total: int) -> None:
        with self._progress:
            self.ops_done = ops_done
            self._progress.notify_all()

    def wait_for_op(self, number: int) -> None:
        with self._progress:
            assert self._progress.wait_for(lambda: self.ops_done >= number, timeout=30)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def outcome(self) -> Outcome:
        self._thread.join(timeout=30)
        assert self._outcome is not None
        return self._outcome


class AfterOneOp:
    """A stop signal that preempts a run after its first op."""

    def __init__(self) -> None:
        self._asked = 0

    def __call__(self) -> Stop | None:
        self._asked += 1
        return "preempted" if self._asked > 1 else None


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.full((COUNT,), float(number + 1)) for number in range(count)]


def opened(device: Device, values: Sequence[int]) -> Restoring:
    """Park ``ann``, and restore it until a program that reads these values may start."""
    device.park("ann")
    restoring = Restoring(device, values)
    restoring.open()
    return restoring


def doubled(script: Script, *values: int) -> tuple[int, ...]:
    return tuple(
        script.op("aten.mul.Tensor", value, scalars=(2.0,), meta=script.metas[value]) for value in values
    )


def test_ops_run_in_the_order_in_which_their_values_come_and_wait_for_no_others(
    make_device: Make,
) -> None:
    device = make_device()
    script = Script()
    unused, late, early = keep(device, "ann", script, *tensors(3))
    restoring = opened(device, (early, late))
    assert [reads.job for reads in restoring.ready] == ["job"]
    results = doubled(script, early, late)
    running = Running(device, script.program(fetch=results))
    running.wait_for_op(1)
    assert restoring.copied.checked_pieces == 2  # the second is not there before the next step
    assert running.ops_done == 1
    assert restoring.step()
    running.wait_for_op(2)
    assert running.alive, "it is answered before its session is there"
    restoring.finish()
    outcome = running.outcome()
    assert outcome.failure is None
    found = [read_fetched(item, device.results) for item in outcome.fetched]
    assert torch.equal(found[0], torch.full((COUNT,), 6.0))
    assert torch.equal(found[1], torch.full((COUNT,), 4.0))
    assert torch.equal(fetch(device, "ann", script, unused)[0], tensors(3)[0])
    audit(device)
    device.park("ann")
    assert device.memory().used_bytes == 0


def test_a_write_before_the_end_of_the_copy_is_not_undone_by_it(make_device: Make) -> None:
    device = make_device()
    script = Script()
    values = keep(device, "ann", script, *tensors(2))
    restoring = opened(device, values)
    script.write("aten.add_.Tensor", values[0], scalars=(1,))
    script.write("aten.add_.Tensor", values[1], scalars=(1,))
    running = Running(device, script.program())
    running.wait_for_op(1)
    restoring.finish()
    assert running.outcome().failure is None
    assert device.memory().unstored_bytes == {"ann": 2 * MIB}
    device.park("ann")
    device.restore("ann")
    for found, tensor in zip(fetch(device, "ann", script, *values), tensors(2), strict=True):
        assert torch.equal(found, tensor + 1)
    audit(device)


@pytest.mark.parametrize("mismatch", [False, True])
def test_a_copy_that_fails_stops_its_program_and_undoes_it(
    make_device: Make, mismatch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run again, the program finds the parked values, or none if their bytes have changed."""
    device = make_device()
    script = Script()
    first, between, second = keep(device, "ann", script, *tensors(3))
    restoring = opened(device, (first, between, second))
    script.write("aten.add_.Tensor", first, scalars=(1,))
    total = script.op("aten.add.Tensor", first, second, meta=script.metas[first])
    program = script.program(keep=(total,), fetch=(total,))
    running = Running(device, program)
    running.wait_for_op(1)
    with monkeypatch.context() as patch:
        if mismatch:
            parked = restoring.values.loading
            assert parked is not None
            piece = parked.pending[0].pieces[0]
            device.store.read(piece)[0] ^= 1
        else:
            patch.setattr(type(device.copies.link), "copy_in", _broken)
        restoring.fail(TransferProblem if mismatch else RuntimeError)
    outcome = running.outcome()
    assert (outcome.stopped, outcome.executed, outcome.failure) == ("preempted", 0, None)
    assert device.memory().used_bytes == 0
    audit(device)
    if not mismatch:
        device.restore("ann")
    again = device.try_run("ann", program, resume=messages.Resume(0, outcome.rng_state))
    if mismatch:
        assert again.failure is not None
        assert set(again.failure.missing) == {first, second}
        return
    assert again.failure is None
    assert torch.equal(read_fetched(again.fetched[0], device.results), torch.full((COUNT,), 5.0))
    assert torch.equal(fetch(device, "ann", script, first)[0], torch.full((COUNT,), 2.0))
    audit(device)


def _broken(*arguments: object) -> list[bytes]:
    raise RuntimeError("the link is broken")


def test_segment_after_a_failed_restore_is_preempted_before_its_first_op(
    make_device: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = make_device()
    script = Script()
    values = keep(device, "ann", script, *tensors(3))
    restoring = opened(device, values)
    with monkeypatch.context() as patch:
        patch.setattr(type(device.copies.link), "copy_in", _broken)
        restoring.fail(RuntimeError)
    program = script.program(fetch=doubled(script, *values))
    outcome = device.try_run("ann", program)
    assert (outcome.stopped, outcome.executed, outcome.failure) == ("preempted", 0, None)
    device.restore("ann")
    assert device.try_run("ann", program).failure is None


def test_preempted_program_resumes_before_its_session_is_fully_restored(
    make_device: Make,
) -> None:
    device = make_device()
    script = Script()
    first, second = keep(device, "ann", script, *tensors(2))
    middle = doubled(script, first)[0]
    end = script.op("aten.add.Tensor", middle, second, meta=script.metas[first])
    last = script.op("aten.add.Tensor", end, first, meta=script.metas[first])
    program = script.program(fetch=(last,))
    outcome = device.try_run("ann", program, should_stop=AfterOneOp())
    assert (outcome.stopped, outcome.executed) == ("preempted", 1)
    device.park("ann")
    restoring = Restoring(device, (middle, second, first), first=2)
    assert restoring.step()
    assert restoring.step()
    assert not restoring.ready
    assert restoring.step()
    assert restoring.ready
    running = Running(device, program, messages.Resume(outcome.executed))
    running.wait_for_op(2)
    restoring.finish()
    again = running.outcome()
    assert again.failure is None
    assert torch.equal(read_fetched(again.fetched[0], device.results), torch.full((COUNT,), 5.0))
    audit(device)


def test_a_cancel_ends_the_wait_for_a_value_and_is_answered_when_the_copy_ends(
    make_device: Make,
) -> None:
    device = make_device()
    script = Script()
    values = keep(device, "ann", script, *tensors(2))
    restoring = opened(device, values)
    running = Running(device, script.program(fetch=doubled(script, *values)))
    running.wait_for_op(1)
    running.wait_until_it_waits()
    running.stop.ask("cancelled")
    restoring.finish()
    outcome = running.outcome()
    assert (outcome.stopped, outcome.failure) == ("cancelled", None)
    assert torch.equal(fetch(device, "ann", script, values[1])[0], tensors(2)[1])


def test_an_open_session_is_neither_evicted_nor_forgotten_nor_stored_and_can_be_closed(
    make_device: Make,
) -> None:
    device = make_device()
    script = Script()
    values = keep(device, "ann", script, *tensors(3))
    restoring = opened(device, values)
    assert "being restored" in failed(device.ask(messages.Evict(1, "ann"))).reason
    assert "only one" in failed(device.ask(messages.Forget(2, "ann"))).reason
    assert "not on the device yet" in failed(device.ask(messages.StoreState(3, "ann"))).reason
    device.run("ann", script.program(release=(values[2],)))
    audit(device)
    device.interpreter.close("ann")
    with pytest.raises(SessionGone):
        restoring.step()
    assert (device.memory().used_bytes, device.memory().host_bytes) == (0, 0)
    audit(device)


def test_memory_that_is_reserved_for_a_restore_is_reported_as_its_sessions(make_device: Make) -> None:
    device, script = make_device(), Script()
    tensor = torch.randn(MIB)
    values = keep(device, "ann", script, tensor)
    device.park("ann")
    restoring = Restoring(device, values)
    for _ in range(2):
        assert restoring.step()
        memory = device.memory()
        assert memory.session_bytes == {"ann": tensor.nbytes}
        assert memory.used_bytes == tensor.nbytes
    restoring.finish()
    assert device.memory().session_bytes == {"ann": tensor.nbytes}


def test_a_weight_that_is_still_being_copied_is_seen_by_no_other_session(make_device: Make) -> None:
    device = make_device()
    tensor = torch.randn(2 * COUNT)
    blob = device.blob(tensor, "weight")
    script, other = Script(), Script()
    small = script.load(torch.ones(COUNT))
    weight = script.load(tensor, blob)
    device.run("ann", script.program(keep=(small, weight)))
    restoring = opened(device, (small, weight))
    others = other.load(tensor, blob)
    device.run("bob", other.program(keep=(others,)))
    assert torch.equal(fetch(device, "bob", other, others)[0], tensor)
    restoring.finish()
    assert torch.equal(fetch(device, "ann", script, weight)[0], tensor)
    audit(device)
    for session in ("ann", "bob"):
        device.park(session)
        device.restore(session)
    assert torch.equal(fetch(device, "ann", script, weight)[0], tensor)
    audit(device)


def test_prefetch_expedited_for_a_job_reports_its_first_values(make_device: Make) -> None:
    """The same through the lanes, with a pool's messages."""
    device = make_device(link_bytes_per_second=16 * MIB)
    script = Script()
    values = keep(device, "ann", script, *tensors(8))
    device.park("ann")
    device.send(messages.Restore(7, "ann"))
    device.send(messages.Expedite(7, Reads("job", (values[-1],), 1)))
    first = device.answers.get(timeout=30)
    assert isinstance(first, messages.FirstValuesCopied)
    assert (first.transfer, first.session, first.job) == (7, "ann", "job")
    assert first.memory.session_bytes == {"ann": 8 * MIB}
    outcome = device.run("ann", script.program(fetch=doubled(script, values[-1])))
    assert torch.equal(read_fetched(outcome.fetched[0], device.results), torch.full((COUNT,), 16.0))
    ended = done(device.answers.get(timeout=30))
    assert ended.checked_pieces == 8


@pytest.mark.processes
def test_a_worker_runs_ops_before_its_copy_has_ended_and_answers_after_it(shared_memory: Path) -> None:
    worker = start_worker(shared_memory, 8.0 * MIB)
    script = Script()
    values = tuple(script.load(tensor) for tensor in tensors(8))
    worker.run("ann", script.program(keep=values))
    worker.send(messages.StoreState(1, "ann"))
    worker.wait_for(messages.CopyDone)
    worker.send(messages.Evict(2, "ann"))
    worker.wait_for(messages.CopyDone)
    order = values[::-1]
    worker.send(messages.Restore(3, "ann", True, reads=Reads("job", order, 1)))
    worker.wait_for(messages.FirstValuesCopied)
    program = script.program(fetch=doubled(script, *order))
    worker.send(messages.RunSegment("job", 0, "ann", encode_program(program)))
    progress = worker.wait_for(messages.SegmentProgress)
    assert 0 < progress.ops_done < 8
    worker.wait_for(messages.CopyDone)
    answer = worker.wait_for(messages.SegmentDone)
    found = [read_fetched(item, worker.directory) for item in answer.fetched]
    assert all(torch.equal(one, 2 * tensor) for one, tensor in zip(found, reversed(tensors(8)), strict=True))
    worker.stop()
