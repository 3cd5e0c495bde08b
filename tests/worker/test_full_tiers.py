"""Transfers when a device, the host or the disk is full or fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from programs import Script
from worker_kit import MIB, Device, failed, fetch, keep

from djinn_lab.errors import PoolError
from djinn_lab.pool.launchers.host_rows import HostRows
from djinn_lab.pool.launchers.orphans import OrphanedFiles
from djinn_lab.protocol import worker as messages
from djinn_lab.worker.host_account import HostAccount
from djinn_lab.worker.host_arena import HostArena
from djinn_lab.worker.pieces import Piece, PieceStore
from djinn_lab.worker.transfer import store_result

Make = Callable[..., Device]


@pytest.mark.parametrize(
    ("batch_bytes", "chunk_bytes"), [(0, 0), (2 * MIB, 0), (4 * MIB, 0), (4 * MIB, 2 * MIB)]
)
def test_a_full_host_keeps_what_was_copied_and_loses_nothing(
    make_device: Make, batch_bytes: int, chunk_bytes: int
) -> None:
    device = make_device(host_bytes=3 * MIB)
    device.copies.link.batch_bytes, device.copies.link.chunk_bytes = batch_bytes, chunk_bytes
    script = Script()
    tensor = torch.randn(MIB)  # 4 MiB
    (value,) = keep(device, "ann", script, tensor)
    answer = failed(device.ask(messages.StoreState(1, "ann")))
    assert answer.full == "host"
    assert answer.memory.host_bytes == 3 * MIB
    assert answer.memory.unstored_bytes == {"ann": MIB}
    assert torch.equal(fetch(device, "ann", script, value)[0], tensor)


def test_small_values_go_over_the_link_together_and_come_back(make_device: Make) -> None:
    device = make_device()
    link = device.copies.link
    link.batch_bytes = link.chunk_bytes = MIB
    copied: list[int] = []
    send_out = link.send_out

    def counted(devices: Sequence[torch.Tensor], hosts: Sequence[torch.Tensor]) -> None:
        copied.append(len(devices))
        send_out(devices, hosts)

    link.send_out = counted  # type: ignore[method-assign]
    script = Script()
    tensors = [torch.full((1000,), float(number)) for number in range(40)] + [torch.randn(MIB)] * 2
    values = keep(device, "ann", script, *tensors)
    device.park("ann")
    assert sum(copied) == 40 + 4  # equal pieces go once
    assert len(copied) <= 6
    device.restore("ann")
    found = fetch(device, "ann", script, *values)
    assert all(torch.equal(one, other) for one, other in zip(found, tensors, strict=True))


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


def test_arena_returns_what_is_given_back_to_the_file_system(shared_memory: Path) -> None:
    arena = HostArena(8 * MIB, shared_memory, "cpu:0")
    offsets = [arena.take(MIB // 2 + 100) for _ in range(4)]
    for offset in offsets:
        assert offset is not None
        arena.view(offset, MIB // 2).fill_(1)
    assert arena.path is not None
    assert arena.path.stat().st_blocks * 512 >= 2 * MIB
    for offset in (offsets[1], offsets[3], offsets[0], offsets[2]):
        assert offset is not None
        arena.give_back(offset, MIB // 2 + 100)
    assert arena.path.stat().st_blocks == 0
    assert arena.account.used_bytes == 0


def test_workers_of_a_device_have_its_host_memory_together(shared_memory: Path) -> None:
    rows = HostRows(shared_memory, "cpu:0")
    numbers = [rows.give(), rows.give()]
    accounts = [HostAccount.open(str(rows.path), number, 4 * MIB) for number in numbers]
    one, other = (
        PieceStore(HostArena(4 * MIB, folder, "cpu:0", account=account))
        for folder, account in zip(_two(shared_memory), accounts, strict=True)
    )
    kept = one.add(Piece(b"name", b"", 3 * MIB, _taken(one, 3 * MIB)))
    assert other.take(2 * MIB) is None
    assert other.host_free_bytes == MIB
    one.drop(kept)  # no session holds it, and it is kept for the next of the same bytes
    assert accounts[1].kept_by_others(of_copies=False) == 3 * MIB
    assert other.host_free_bytes == 4 * MIB
    one.release(2 * MIB)
    assert other.take(2 * MIB) is not None
    rows.ended(numbers[1])
    assert accounts[0].used_bytes == 0


def test_host_without_space_in_shared_memory_refuses_and_says_so(
    shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = HostArena(4 * MIB, shared_memory, "cpu:0")

    def no_space(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_space)
        assert arena.take(MIB) is None
    assert arena.refusal == "shared memory gave no space (No space left on device)"
    assert arena.used_bytes == arena.account.used_bytes == 0
    assert arena.take(MIB) == 0


def test_result_without_space_is_an_error_with_advice_and_takes_no_space(
    shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(PoolError, match=r"1\.0 MiB of results could not be written.*No space left"):
        store_result(1, torch.ones(512, 512).t(), shared_memory)
    assert sum(path.stat().st_size for path in shared_memory.iterdir()) == 0


def test_file_of_a_dead_worker_keeps_only_what_a_manifest_names(shared_memory: Path) -> None:
    (shared_memory / "group").mkdir()
    path = shared_memory / "group" / "host-cpu-0-17.arena"
    path.write_bytes(b"x" * MIB)
    orphans = OrphanedFiles([shared_memory])
    orphans.died(17)
    pieces = [(b"d", b"f", 4096, 0, 8192), (b"e", b"f", 100, 0, 512 * 1024)]
    manifest = msgspec.msgpack.encode(
        {"files": [str(path)], "storages": [(4096, 4096, None, None, pieces), (1, 1, None, None, [])]}
    )
    orphans.sweep([manifest])
    assert path.stat().st_blocks * 512 == 2 * 4096
    assert path.read_bytes()[8192:12288] == b"x" * 4096
    assert path.read_bytes()[512 * 1024 :][:100] == b"x" * 100
    orphans.sweep([])
    assert not path.exists()


def _two(directory: Path) -> list[Path]:
    made = [directory / "one", directory / "other"]
    for path in made:
        path.mkdir()
    return made


def _taken(store: PieceStore, nbytes: int) -> int:
    offset = store.take(nbytes)
    assert offset is not None
    return offset


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


def test_copies_on_the_disk_stay_until_the_next_one_is_committed(make_device: Make) -> None:
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
    stored = device.store_whole("ann")
    assert list(device.directory.glob("*.pieces")) != []
    device.send(messages.CopyKept(stored.transfer, "ann"))
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
