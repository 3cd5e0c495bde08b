"""Fences keep copies and ops apart; without them, wrong bytes are found.

Gates make every race happen in the harmful order. Each test runs with the fence, where all is well, and
without it, where the hash must differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import blake3
import pytest
import torch
from parked import flip_a_byte
from programs import Script
from replaced_kernels import Kernel
from worker_kit import Device, done, failed

from djinn_lab.protocol import worker as messages
from djinn_lab.worker.storages import Storage
from djinn_lab.worker.tiers import Fences

WAIT_S = 20.0


def wait(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


class WithoutReadAfterWrite(Fences):
    """Fences whose copies begin while an op writes."""

    def begin_read(self, storage: Storage) -> bool:
        writing, storage.writing = storage.writing, False
        try:
            return super().begin_read(storage)
        finally:
            storage.writing = writing


class WithoutWriteAfterRead(Fences):
    """Fences whose ops do not wait for copies."""

    def wait_for_readers(self, storage: Storage) -> None:
        return


def digest_of(device: Device, session: str, script: Script, value: int) -> bytes:
    (found,) = device.fetch(session, script.program(fetch=(value,)))
    return blake3.blake3(found.numpy().tobytes()).digest()


def settled_value(device: Device, session: str, script: Script, tensor: torch.Tensor) -> int:
    """Make a value that is copied even while its session runs."""
    value = script.load(tensor)
    device.run(session, script.program(keep=(value,)))
    other = script.load(torch.zeros(1))
    device.run(session, script.program(keep=(other,)))
    assert device.memory().ready_bytes[session] >= tensor.nbytes
    return value


@pytest.mark.parametrize("fences", [Fences, WithoutReadAfterWrite])
def test_a_copy_that_begins_while_an_op_writes(
    make_device: Callable[..., Device], kernel: Kernel, fences: type[Fences]
) -> None:
    looked, half_written, answered = threading.Event(), threading.Event(), threading.Event()

    class Gated(fences):  # type: ignore[valid-type, misc]
        """Fences whose copy chooses its piece before the op writes, and reads it during the write."""

        def begin_read(self, storage: Storage) -> bool:
            if threading.current_thread().name == "copies out" and not looked.is_set():
                looked.set()
                wait(half_written)
            return bool(super().begin_read(storage))

    device = make_device(fences=Gated())
    script = Script()
    value = settled_value(device, "ann", script, torch.zeros(1000))

    def begin_the_copy(tensor: torch.Tensor) -> torch.Tensor:
        device.send(messages.StoreState(7, "ann"))
        wait(looked)
        return tensor.clone()

    def add_one_in_two_halves(tensor: torch.Tensor) -> torch.Tensor:
        tensor[:500].add_(1)
        half_written.set()
        wait(answered)
        tensor[500:].add_(1)
        return tensor

    kernel("trunc", begin_the_copy)
    kernel("frac_", add_one_in_two_halves)
    script.op("aten.trunc.default", value)
    script.write("aten.frac_.default", value)
    running = threading.Thread(target=device.run, args=("ann", script.program()))
    running.start()
    assert not done(device.answers.get(timeout=WAIT_S)).whole
    answered.set()
    running.join(WAIT_S)
    device.park("ann")
    device.restore("ann")
    expected = blake3.blake3(torch.ones(1000).numpy().tobytes()).digest()
    found = digest_of(device, "ann", script, value)
    assert (found == expected) == (fences is Fences)


@pytest.mark.parametrize("fences", [Fences, WithoutWriteAfterRead])
def test_an_op_that_writes_what_a_copy_reads(
    make_device: Callable[..., Device], fences: type[Fences]
) -> None:
    reading, op_is_there = threading.Event(), threading.Event()

    class Gated(fences):  # type: ignore[valid-type, misc]
        def wait_for_readers(self, storage: Storage) -> None:
            if storage.reading and fences is Fences:
                op_is_there.set()
            super().wait_for_readers(storage)

    device = make_device(fences=Gated())
    ann, bob = Script(), Script()
    old = torch.arange(1000.0)
    value = settled_value(device, "ann", ann, old)

    def between_look_and_copy(storage: Storage, index: int) -> None:
        if storage.nbytes == old.nbytes and not reading.is_set():
            reading.set()
            wait(op_is_there)

    device.copies.fingerprint_taken = between_look_and_copy  # type: ignore[method-assign]
    device.send(messages.StoreState(7, "ann"))
    wait(reading)
    ann.write("aten.add_.Tensor", value, scalars=(1,))
    device.run("ann", ann.program())  # with the fence it waits until the copy is complete
    op_is_there.set()
    done(device.answers.get(timeout=WAIT_S))
    same = bob.load(old)
    device.run("bob", bob.program(keep=(same,)))
    device.park("bob")  # the host has these bytes already, or so it thinks
    answer = device.ask(messages.Restore(8, "bob"))
    if fences is Fences:
        done(answer)
        assert digest_of(device, "bob", bob, same) == blake3.blake3(old.numpy().tobytes()).digest()
    else:
        assert failed(answer).mismatch
    device.park("ann")
    device.restore("ann")
    assert digest_of(device, "ann", ann, value) == blake3.blake3((old + 1).numpy().tobytes()).digest()


@pytest.mark.parametrize("flipped", [False, True])
def test_a_flipped_byte_in_the_host_arena(make_device: Callable[..., Device], flipped: bool) -> None:
    device = make_device()
    ann, bob, cy = Script(), Script(), Script()
    tensor = torch.randn(1000)
    value = ann.load(tensor)
    device.run("ann", ann.program(keep=(value,)))
    same, other = bob.load(tensor), bob.load(torch.ones(1000))
    device.run("bob", bob.program(keep=(same, other)))
    third = cy.load(torch.randn(10))
    device.run("cy", cy.program(keep=(third,)))
    for session in ("ann", "cy"):
        device.park(session)
    device.store_whole("bob")
    content = tensor.numpy().tobytes()
    if flipped:
        assert device.arena.path is not None
        flip_a_byte([device.arena.path], content)
    answer = device.ask(messages.Restore(9, "ann"))
    if not flipped:
        done(answer)
        assert digest_of(device, "ann", ann, value) == blake3.blake3(content).digest()
        return
    assert failed(answer).mismatch
    assert str(device.arena.path) in failed(answer).reason
    # its values are gone, and say so
    outcome = device.try_run("ann", ann.program(fetch=(value,)))
    assert outcome.failure is not None
    assert outcome.failure.type_name == "ValueLost"
    assert "not what was stored" in outcome.failure.message
    # a session still on the device stores its own bytes again; an unrelated session is unharmed
    assert failed(device.ask(messages.Evict(10, "bob"))).reason.endswith("are not stored")
    device.park("bob")
    device.restore("bob")
    assert digest_of(device, "bob", bob, same) == blake3.blake3(content).digest()
    device.restore("cy")
    # and ann continues with new values
    value = ann.load(tensor)
    device.run("ann", ann.program(keep=(value,)))
    assert digest_of(device, "ann", ann, value) == blake3.blake3(content).digest()


def test_a_session_is_closed_while_its_copy_reads(make_device: Callable[..., Device]) -> None:
    device = make_device()
    reading, closing = threading.Event(), threading.Event()
    script = Script()
    value = script.load(torch.arange(1000.0))
    device.run("ann", script.program(keep=(value,)))

    def between_look_and_copy(storage: Storage, index: int) -> None:
        reading.set()
        wait(closing)

    device.copies.fingerprint_taken = between_look_and_copy  # type: ignore[method-assign]
    wait_for_readers = device.tiers.fences.wait_for_readers

    def now_it_closes(storage: Storage) -> None:
        closing.set()
        wait_for_readers(storage)

    device.tiers.fences.wait_for_readers = now_it_closes  # type: ignore[method-assign]
    device.send(messages.StoreState(1, "ann"))
    wait(reading)
    device.interpreter.close("ann")
    assert device.memory().used_bytes == 0
    device.send(messages.StoreState(2, "bob"))  # the lane's next answer is not the closed session's
    assert device.answers.get(timeout=WAIT_S).transfer == 2
    assert device.memory().host_bytes == 0
