"""Transfers when a device, the host or the disk is full or fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from programs import Script
from worker_kit import MIB, Device, failed, fetch, keep

from djinn_lab.errors import PoolError
from djinn_lab.protocol import worker as messages
from djinn_lab.worker.host_arena import HostArena

Make = Callable[..., Device]


def test_a_full_host_keeps_what_was_copied_and_loses_nothing(make_device: Make) -> None:
    device = make_device(host_bytes=3 * MIB)
    script = Script()
    tensor = torch.randn(MIB)  # 4 MiB
    (value,) = keep(device, "ann", script, tensor)
    answer = failed(device.ask(messages.StoreState(1, "ann")))
    assert answer.full == "host"
    assert answer.memory.host_bytes == 3 * MIB
    assert answer.memory.unstored_bytes == {"ann": MIB}
    assert torch.equal(fetch(device, "ann", script, value)[0], tensor)


def test_closed_sessions_free_the_host_tier(make_device: Make) -> None:
    device = make_device(host_bytes=4 * MIB)
    for session in ("ann", "bob", "cy"):
        script = Script()
        keep(device, session, script, torch.randn(MIB - 256))
        device.park(session)
        device.interpreter.close(session)
        assert device.memory().host_bytes == 0


def test_a_full_device_leaves_the_session_parked(make_device: Make) -> None:
    device = make_device(memory_bytes=6 * MIB)
    ann, bob = Script(), Script()
    tensor = torch.randn(MIB)
    (value,) = keep(device, "ann", ann, tensor)
    device.park("ann")
    (other,) = keep(device, "bob", bob, tensor + 1)
    answer = failed(device.ask(messages.Restore(1, "ann")))
    assert (answer.full, answer.mismatch) == ("device", False)
    assert answer.memory.used_bytes == tensor.nbytes
    device.run("bob", bob.program(release=(other,)))
    device.restore("ann")
    assert torch.equal(fetch(device, "ann", ann, value)[0], tensor)


def test_disk(make_device: Make) -> None:
    device = make_device(disk_bytes=5 * MIB)
    ann, bob = Script(), Script()
    tensor = torch.randn(MIB)
    (value,) = keep(device, "ann", ann, tensor)
    keep(device, "bob", bob, tensor * 2)
    assert "off the device" in failed(device.ask(messages.Demote(1, "ann"))).reason
    device.park("ann")
    device.park("bob")
    demoted = device.demote("ann")
    assert demoted.copied_bytes == demoted.memory.disk_bytes == tensor.nbytes
    assert demoted.memory.host_bytes == tensor.nbytes
    assert demoted.memory.on_disk_bytes == {"ann": tensor.nbytes}
    assert demoted.manifest is not None
    full = failed(device.ask(messages.Demote(8, "bob")))
    assert full.full == "disk"
    assert len(list(device.directory.glob("*.pieces"))) == 1
    restored = device.restore("ann")
    assert restored.checked_pieces == 4
    assert restored.memory.on_disk_bytes == {"ann": tensor.nbytes}
    assert torch.equal(fetch(device, "ann", ann, value)[0], tensor)
    forgotten = device.ask(messages.Forget(9, "ann"))
    assert forgotten.memory.on_disk_bytes == {}
    assert forgotten.memory.disk_bytes == 0
    device.restore("bob")


def test_a_disk_that_says_no_leaves_no_half_file(make_device: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    device = make_device(disk_bytes=64 * MIB)
    script = Script()
    tensor = torch.randn(MIB)
    (value,) = keep(device, "ann", script, tensor)
    device.park("ann")
    read, calls = device.store.read, []

    def no_space(piece: object) -> torch.Tensor:
        calls.append(piece)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return read(piece)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(device.store, "read", no_space)
        answer = failed(device.ask(messages.Demote(2, "ann")))
    assert answer.full == "disk"
    assert "No space left" in answer.reason
    assert answer.memory.disk_bytes == 0
    assert not list(device.directory.glob("*.pieces"))
    device.restore("ann")
    assert torch.equal(fetch(device, "ann", script, value)[0], tensor)


def test_missing_piece_file_fails_the_restore_as_a_mismatch(make_device: Make) -> None:
    device = make_device(disk_bytes=64 * MIB)
    script = Script()
    keep(device, "ann", script, torch.randn(MIB))
    device.park("ann")
    device.demote("ann")
    for path in device.directory.glob("*.pieces"):
        path.unlink()
    answer = failed(device.ask(messages.Restore(3, "ann")))
    assert answer.mismatch
    assert "cannot be read" in answer.reason


def test_a_host_tier_larger_than_memory_is_refused(shared_memory: Path) -> None:
    with pytest.raises(PoolError, match="are available for it"):
        HostArena(2**60, shared_memory, "cpu:0")
    assert not list(shared_memory.iterdir())


def test_a_host_tier_larger_than_its_file_system_is_refused(
    shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = os.statvfs(shared_memory)
    fields = list(free)
    fields[4] = MIB // free.f_frsize  # blocks for unprivileged users
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    with pytest.raises(PoolError, match=r"does not fit .*1\.0 MiB are free"):
        HostArena(2 * MIB, shared_memory, "cpu:0")
    assert not list(shared_memory.iterdir())
    assert HostArena(2 * MIB, shared_memory, "cpu:0", fits=True).take(MIB) == 0  # another's has filled it


def overwrite(device: Device, session: str, script: Script, value: int) -> None:
    """Write a value of an earlier program in place."""
    script.write("aten.add_.Tensor", value, scalars=(1.0,))
    device.run(session, script.program(keep=(value,)))


def test_copies_stay_while_the_disk_takes_what_comes_next(make_device: Make) -> None:
    device, script, tensor = make_device(host_bytes=5 * MIB, disk_bytes=64 * MIB), Script(), torch.randn(MIB)
    (value,) = keep(device, "ann", script, tensor)
    copy = device.store_whole("ann").manifest
    overwrite(device, "ann", script, value)
    others = {name: torch.randn(MIB) for name in ("bob", "cy", "dan")}
    scripts = {name: Script() for name in others}
    values = {name: keep(device, name, scripts[name], other)[0] for name, other in others.items()}
    for name in others:
        parked = device.park(name)
        assert parked.memory.on_disk_bytes.get(name, 0) > 0
    for name, other in others.items():
        device.restore(name)
        assert torch.equal(fetch(device, name, scripts[name], values[name])[0], other)
    another = make_device()
    another.restore("ann", copy)
    assert torch.equal(fetch(another, "ann", script, value)[0], tensor)
    assert torch.equal(fetch(device, "ann", script, value)[0], tensor + 1)


def test_copies_on_the_disk_stay_until_the_next_one(make_device: Make) -> None:
    device, script, tensor = make_device(disk_bytes=64 * MIB), Script(), torch.randn(MIB)
    (value,) = keep(device, "ann", script, tensor)
    device.park("ann")
    copy = device.demote("ann").manifest
    device.restore("ann")
    overwrite(device, "ann", script, value)
    assert device.memory().disk_bytes == 0
    another = make_device()
    another.restore("ann", copy)
    assert torch.equal(fetch(another, "ann", script, value)[0], tensor)
    device.store_whole("ann")
    assert list(device.directory.glob("*.pieces")) == []


def test_copies_give_way_last_where_there_is_no_disk(make_device: Make) -> None:
    device, script, tensor = make_device(host_bytes=5 * MIB), Script(), torch.randn(MIB)
    (value,) = keep(device, "ann", script, tensor)
    copy = device.store_whole("ann").manifest
    overwrite(device, "ann", script, value)
    keep(device, "bob", Script(), torch.randn(MIB))
    device.park("bob")
    another = make_device()
    lost = failed(another.ask(messages.Restore(1, "ann", manifest=copy)))
    assert lost.mismatch
    assert "gave way to other state when the tiers were full" in lost.reason
