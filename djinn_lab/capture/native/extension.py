"""The compiled module, imported once, and what its objects have for Python. Import this file only where
:func:`djinn_lab.native.load` finds it."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from djinn_lab.capture.values import Layout
from djinn_lab.errors import CaptureError
from djinn_lab.native import load, why_missing

_found = load("recorder")
if _found is None:
    raise CaptureError(f"the native recorder is not available: {why_missing('recorder')}")
native: Any = _found


class NativeStorage(Protocol):
    """One memory (``storage.h``). ``host``: the bytes in this process, and ``exposure`` of them, or None.
    ``covered``: bytes that the pool's copy has. ``lost``: why no copy of the bytes exists, None if one
    does."""

    serial: int
    nbytes: int
    base_id: int | None
    layout: Layout
    version: int
    host: Any
    host_users: int
    exposure: Any
    lost: str | None
    just_allocated: bool
    covered: int

    def host_is_current(self) -> bool: ...
    def written_on_host(self) -> None: ...
    def take_base(self, other: NativeStorage, /) -> None: ...
    def lose(self, reason: str, /) -> None: ...
    def restore_host(self, host: torch.UntypedStorage | None, version: int, /) -> None: ...
    def forget_pool_copy(self) -> None: ...
    def send(self, layout: Layout, blob: str | None, inline: bytes | None, /) -> None: ...


class NativeValue(Protocol):
    """A view of a memory: from element ``offset`` on, laid out as ``layout`` says."""

    storage: NativeStorage
    layout: Layout
    offset: int

    def covers_storage(self) -> bool: ...
    def key(self) -> tuple[int, int, int]: ...


class NativeFlight(Protocol):
    """A program under way (``pending.h``)."""

    nodes: int


class NativeCore(Protocol):
    """What of a recorder is compiled (``recorder.h``)."""

    pending: int
    ops_recorded: int
    plans_made: int
    look_at: int
    patience: int
    host_only: bool
    for_accelerators: bool
    replayable: bool
    host_dirty: bool
    draws_open: bool
    capturing: bool
    captures_here: bool
    line: int
    begins_call: bool
    calls: int

    def new_storage(self, nbytes: int, layout: Layout, residency: str, /) -> NativeStorage: ...
    def ids(self, values: list[NativeValue], /) -> list[int]: ...
    def assemble(
        self, fetch: list[int], state: bytes | None
    ) -> tuple[bytes | None, int, list[int], NativeFlight]: ...
    def settle(self, flight: NativeFlight, executed: int, arrived: bool, reason: str, /) -> None: ...
    def lose_pending(self, reason: str, /) -> None: ...
    def lose_pool(self, flight: NativeFlight, reason: str, /) -> None: ...
    def lose_held(self, values: list[int], reason: str, /) -> None: ...
    def bytes_of(self, flight: NativeFlight, source: int, /) -> tuple[torch.UntypedStorage, Any]: ...
    def storages(self) -> list[NativeStorage]: ...
    def pending_integers(self, at_most: int, /) -> list[NativeStorage]: ...
    def add_twin(self, tensor: torch.Tensor, storage: NativeStorage, once: bool, /) -> None: ...
    def has_twin(self, tensor: torch.Tensor, /) -> bool: ...
    def forget_twin(self, tensor: torch.Tensor, /) -> None: ...
    def clear_twins(self) -> None: ...
    def enter_cell(self, cell: str, file: str, /) -> None: ...
    def begin_optimizer(self) -> None: ...
    def end_optimizer(self) -> None: ...
    def module_names(self, names: dict[int, str], /) -> object: ...
