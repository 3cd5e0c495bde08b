"""Values that go from one session to another as whole storages, through results of the pool: how they
alias, where they begin in memory and what lies between their elements stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from djinn_lab.errors import ValueLost
from djinn_lab.protocol.worker import Handed
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.parked import ParkedLayout
from djinn_lab.worker.storages import Storage
from djinn_lab.worker.transfer import new_mapped_file, result_name
from djinn_lab.worker.values import SessionValues

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[ParkedLayout]).decode


def hand_over(identifiers: Sequence[int], values: SessionValues, results: Path) -> tuple[Handed, ...]:
    """Raises ValueLost for a value that is not here."""
    by_storage: dict[int | None, list[int]] = {}
    for identifier in identifiers:
        if identifier not in values.tensors:
            message = "the values of a tensor of this cell were on a device whose process died."
            raise ValueLost(message, "Run the cell again.")
        storage = values.storage_of.get(identifier)
        by_storage.setdefault(None if storage is None else storage.key, []).append(identifier)
    return tuple(_handed(key, found, values, results) for key, found in by_storage.items())


def _handed(key: int | None, found: list[int], values: SessionValues, results: Path) -> Handed:
    layouts = _encode([ParkedLayout.of(values.tensors[identifier]) for identifier in found])
    if key is None:
        return Handed(None, 0, tuple(found), layouts)
    memory = values.storages[key].memory()
    name = None
    if memory.numel():
        name = result_name()
        new_mapped_file(results / name, memory.numel()).copy_(memory)
    return Handed(name, memory.numel(), tuple(found), layouts)


def take_over(
    handed: Handed, values: SessionValues, account: MemoryAccount, device: torch.device, results: Path
) -> None:
    """Into the memory of a value that is here, or into new memory. Called before the session's program
    runs."""
    layouts = dict(zip(handed.values, _decode(handed.layouts), strict=True))
    here = next((one for one in handed.values if one in values.storage_of), None)
    if here is None:
        _place(layouts, _new_memory(handed, account, device, results), values, account, handed.nbytes, device)
        return
    storage = _write_back(handed, values, here, results)
    fresh = {one: layout for one, layout in layouts.items() if one not in values.tensors}
    _place(fresh, storage.handle, values, account, 0, device)


def _new_memory(
    handed: Handed, account: MemoryAccount, device: torch.device, results: Path
) -> torch.UntypedStorage:
    account.reserve(handed.nbytes, "what another device made for this cell")
    try:
        memory = torch.empty(handed.nbytes, dtype=torch.uint8, device=device)
        if handed.blob is not None:
            memory.copy_(_file(handed, results))
    except BaseException:
        account.release(handed.nbytes)
        raise
    return memory.untyped_storage()


def _write_back(handed: Handed, values: SessionValues, here: int, results: Path) -> Storage:
    if values.storage_of[here].nbytes != handed.nbytes:
        raise AssertionError(
            f"value {here} has {values.storage_of[here].nbytes} bytes of memory here, "
            f"{handed.nbytes} elsewhere."
        )
    written = values.begin_write([here], [0])
    try:
        if handed.blob is not None:
            values.storage_of[here].memory().copy_(_file(handed, results))
    finally:
        values.end_write(written, False)
    return values.storage_of[here]


def _file(handed: Handed, results: Path) -> torch.Tensor:
    assert handed.blob is not None
    return torch.from_file(str(results / handed.blob), shared=False, size=handed.nbytes, dtype=torch.uint8)


def _place(
    layouts: dict[int, ParkedLayout],
    memory: torch.UntypedStorage,
    values: SessionValues,
    account: MemoryAccount,
    reserved: int,
    device: torch.device,
) -> None:
    added = sum(values.place(one, layout.build(memory, device)) for one, layout in layouts.items())
    account.settle(reserved, added)
