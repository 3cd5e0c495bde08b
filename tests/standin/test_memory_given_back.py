"""What a session leaves on a device when it is parked: nothing, also of its restore."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import standin
import torch
from isolated import on_standin
from programs import Script

from djinn_lab.protocol import worker as messages
from djinn_lab.protocol.host_rows import FILE_BYTES
from djinn_lab.srg.program import encode_program
from djinn_lab.worker import host_arena, parking
from djinn_lab.worker.accelerator.link import AcceleratorLink
from djinn_lab.worker.host_account import HostAccount
from djinn_lab.worker.host_arena import HostArena
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.outcome import StopSignal
from djinn_lab.worker.pieces import PieceStore
from djinn_lab.worker.process import memory_report
from djinn_lab.worker.restoring import Copied
from djinn_lab.worker.tier_service import Answer, Message, TierService
from djinn_lab.worker.tiers import Tiers

DEVICE = "standin:0"
MIB = 2**20
WEIGHTS_BYTES = MIB // 8
"""Of fingerprints, which a link keeps."""


@on_standin()
def test_a_parked_session_holds_no_memory_of_the_device(tmp_path: Path) -> None:
    device = torch.device(DEVICE)
    arena = HostArena(256 * MIB, tmp_path, "standin:0", registered_with=device)
    tiers = Tiers(PieceStore(arena))
    interpreter = Interpreter(device, 256 * MIB, tmp_path, tiers, link=AcceleratorLink(device))
    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    service = TierService(
        interpreter.copies, interpreter.values_of, lambda: memory_report(interpreter), answers.put
    )

    def ask(message: Message) -> None:
        service.handle(message)
        answer = answers.get(timeout=60)
        assert isinstance(answer, messages.CopyDone), answer

    script = Script()
    value = script.load(torch.ones(8 * MIB))
    doubled = script.op("aten.mul.Tensor", value, scalars=(2,))
    program = encode_program(script.program(keep=(doubled,)))
    outcome = interpreter.run("ann", program, {}, StopSignal(), lambda done, total: None)
    assert outcome.failure is None
    for turn in range(3):
        ask(messages.StoreState(3 * turn + 1, "ann"))
        ask(messages.Evict(3 * turn + 2, "ann"))
        assert torch.accelerator.memory_allocated(DEVICE) <= WEIGHTS_BYTES
        ask(messages.Restore(3 * turn + 3, "ann"))
    [restored] = [tensor for tensor in interpreter.values_of("ann").tensors.values() if tensor is not None]
    assert torch.equal(restored.cpu(), torch.full((8 * MIB,), 2.0))
    service.stop()


@on_standin()
def test_a_worker_pins_little_more_of_the_host_than_it_uses(tmp_path: Path) -> None:
    """What one has pinned no other worker of the device has."""
    arena = HostArena(512 * MIB, tmp_path, DEVICE, registered_with=torch.device(DEVICE))
    tiers = Tiers(PieceStore(arena))
    tiers.pin_for(20 * MIB)
    assert 20 * MIB <= arena.spare_bytes == arena.account.used_bytes <= 32 * MIB
    offset = arena.take(4 * MIB)
    assert offset is not None
    assert arena.spare_bytes == arena.account.used_bytes - 4 * MIB
    tiers.release_idle_host()
    assert arena.account.used_bytes <= 16 * MIB
    arena.give_back(offset, 4 * MIB)
    assert arena.spare_bytes == arena.account.used_bytes > 0
    tiers.release_host(1)
    assert arena.spare_bytes == arena.account.used_bytes == 0


@on_standin()
def test_empty_slabs_are_given_to_another_worker_that_needs_them(tmp_path: Path) -> None:
    capacity, device = 64 * MIB, torch.device(DEVICE)
    (tmp_path / "account").write_bytes(bytes(FILE_BYTES))
    ann, bob = (
        Tiers(
            PieceStore(
                HostArena(
                    capacity,
                    tmp_path,
                    f"{name}:0",
                    registered_with=device,
                    account=HostAccount.open(str(tmp_path / "account"), number, capacity),
                )
            )
        )
        for number, name in enumerate(("ann", "bob"))
    )
    ann.pin_for(capacity)
    assert bob.store.arena.take(MIB) is None
    assert bob.store.host_free_bytes == bob.store.arena.account.kept_by_others(of_copies=False) == capacity
    ann.release_host(MIB)
    assert bob.store.arena.take(MIB) == 0


@on_standin()
def test_nothing_waits_while_memory_is_pinned_and_unpinned(tmp_path: Path) -> None:
    device = torch.device(DEVICE)
    tiers = Tiers(PieceStore(HostArena(256 * MIB, tmp_path, DEVICE, registered_with=device)))
    was_free = []

    def looking(act: Callable[..., str | None]) -> Callable[..., str | None]:
        def call(*given: Any) -> str | None:
            with ThreadPoolExecutor(1) as other:  # a lock that this thread has is another one's to wait for
                was_free.append(other.submit(tiers.fences.lock.acquire, timeout=30).result())
                other.submit(tiers.fences.lock.release).result()
            return act(*given)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("register_memory", "unregister_memory"):
            patch.setattr(host_arena, name, looking(getattr(host_arena, name)))
        interpreter = Interpreter(device, 256 * MIB, tmp_path, tiers, link=AcceleratorLink(device))
        script = Script()
        value = script.op("aten.mul.Tensor", script.load(torch.arange(16.0 * MIB)), scalars=(2,))
        program = encode_program(script.program(keep=(value,)))
        assert interpreter.run("ann", program, {}, StopSignal(), lambda done, total: None).failure is None
        list(interpreter.copies.store("ann", interpreter.values_of("ann"), Copied()))
        assert tiers.store.host_used_bytes == 64 * MIB
        interpreter.close("ann")
    assert tiers.store.arena.account.used_bytes == 0
    assert len(was_free) >= 4
    assert all(was_free)


@on_standin()
def test_what_is_dropped_while_it_is_stored_is_free_at_once(tmp_path: Path) -> None:
    """The copy waits between two of its pieces, maybe for long: a process that lends its device's memory to
    others counts these bytes as theirs."""
    device = torch.device(DEVICE)
    arena = HostArena(256 * MIB, tmp_path, DEVICE, registered_with=device)
    interpreter = Interpreter(
        device, 256 * MIB, tmp_path, Tiers(PieceStore(arena)), link=AcceleratorLink(device)
    )
    script = Script()
    value = script.op("aten.mul.Tensor", script.load(torch.ones(16 * MIB)), scalars=(2,))
    program = encode_program(script.program(keep=(value,)))
    outcome = interpreter.run("ann", program, {}, StopSignal(), lambda done, total: None)
    assert outcome.failure is None
    values = interpreter.values_of("ann")
    steps = interpreter.copies.store("ann", values, Copied())
    assert next(steps) > 0
    interpreter.release("ann", [value])
    assert torch.accelerator.memory_allocated(DEVICE) <= WEIGHTS_BYTES
    assert list(steps) == []


@on_standin()
def test_equal_bytes_of_two_sessions_go_over_the_link_once(tmp_path: Path) -> None:
    device = torch.device(DEVICE)
    arena = HostArena(256 * MIB, tmp_path, DEVICE, registered_with=device)
    interpreter = Interpreter(
        device, 256 * MIB, tmp_path, Tiers(PieceStore(arena)), link=AcceleratorLink(device)
    )
    moved = []
    for session in ("ann", "bob"):
        script, copied = Script(), Copied()
        kept = [script.load(torch.arange(count, dtype=torch.int32)) for count in (9 * MIB, 1000, 3)]
        program = encode_program(script.program(keep=tuple(kept)))
        assert interpreter.run(session, program, {}, StopSignal(), lambda done, total: None).failure is None
        list(interpreter.copies.store(session, interpreter.values_of(session), copied))
        assert copied.whole
        moved.append(copied.nbytes)
    assert moved == [36 * MIB + 4012, 0]


@on_standin(manual=True, kernel_bytes_per_s=108e9)
def test_a_session_is_parked_and_comes_back_at_the_rate_of_the_link(tmp_path: Path) -> None:
    """In the time of the device, whose memory is as many times faster than its link as that of an H200."""
    device, nbytes = torch.device(DEVICE), 512 * MIB
    tiers = Tiers(PieceStore(HostArena(1024 * MIB, tmp_path, DEVICE, registered_with=device)))
    interpreter = Interpreter(device, 768 * MIB, tmp_path, tiers, link=AcceleratorLink(device))
    script = Script()
    value = script.load(torch.arange(nbytes // 4, dtype=torch.int32))
    program = encode_program(script.program(keep=(value,)))
    assert interpreter.run("ann", program, {}, StopSignal(), lambda done, total: None).failure is None
    copies, values = interpreter.copies, interpreter.values_of("ann")

    def expect_rate(steps: Iterator[int]) -> None:
        begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
        begin.record()
        assert sum(steps) == nbytes
        end.record()
        end.synchronize()
        assert begin.elapsed_time(end) / 1000 <= 1.1 * nbytes / standin.link_bytes_per_s

    expect_rate(copies.store("ann", values, Copied()))
    with tiers.fences.lock:
        parking.park(values)
    expect_rate(copies.restore(values, Copied()))
