"""The C++ extension that runs programs, as Python sees it. Without it everything is done in Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, cast

import torch

from djinn_lab.native import load


class Counts(Protocol):
    """Counts of a :class:`~djinn_lab.worker.memory_account.MemoryAccount`, read and written by threads."""

    @property
    def used_bytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    def start_peak(self) -> None: ...
    def add(self, nbytes: int, /) -> None: ...
    def mark_peak(self) -> None: ...
    def reserve(self, nbytes: int, /) -> int | None: ...
    def settle(self, reserved: int, used: int, /) -> None: ...
    def release(self, nbytes: int, /) -> None: ...
    def reserve_other(self, nbytes: int, /) -> bool: ...
    def release_other(self, nbytes: int, /) -> None: ...


class Op(Protocol):
    """A template that can be called without Python."""


class ExecutionPlan(Protocol):
    """A program's nodes with their values numbered; serves all programs with one key."""

    def begin(self, *args: object) -> NativeRun: ...


class NativeRun(Protocol):
    """One run of a plan (``native/run.h``). ``live_bytes``: of values that no Python object has seen, for any
    thread to read. ``executed``: nodes that have ended; ``launched``: those that were asked for, of which an
    accelerator may still compute the last ones. ``in_op``: the next one was begun and has not ended."""

    live_bytes: int
    executed: int
    launched: int
    in_op: bool
    times: bytes
    mismatch: tuple[int, Any]

    def advance(self) -> Any: ...
    def ran(self, start_s: float, end_s: float, /) -> None: ...
    def settle(self) -> None:
        """Wait for what is under way. Raises torch.AcceleratorError for what was wrong with any of it."""

    def flush(self) -> None: ...


class ProgramReader(Protocol):
    """Reads an encoded program. ``node``, ``sent``: the bytes of one node, and of sources that the session
    does not hold. ``missing``: held values that these tensors lack. ``rest``: a map of the fields behind the
    nodes."""

    node_count: int

    def node(self, index: int, /) -> bytes: ...
    def sent(self) -> list[bytes]: ...
    def missing(self, tensors: dict[int, torch.Tensor | None], /) -> list[int]: ...
    def rest(self) -> bytes: ...


class Executor(Protocol):
    """The extension module."""

    Account: Callable[[int], Counts]
    EncodedProgram: Callable[[bytes], ProgramReader]
    Marks: type[Any]
    Op: Callable[..., Op]
    Plan: Callable[..., ExecutionPlan]

    def keep_tensors_in_own_heap(self, kept_bytes_max: int, /) -> None:
        """From now on new CPU tensors lie in ``native/heap.h``, which keeps so much of what is freed."""

    def trim_heap(self) -> None:
        """Return to the system what no tensor uses."""

    def heap_bytes(self) -> tuple[int, int, int]:
        """Return the bytes that are mapped for tensors, those of them that are free, and malloc's."""


class Transient(Protocol):
    """Counts bytes on the device that no :class:`SessionValues` counts yet."""

    @property
    def live_bytes(self) -> int: ...
    @property
    def executed(self) -> int: ...


@cache
def find_executor() -> Executor | None:
    """The extension, or None where it is not built or switched off."""
    return cast("Executor | None", load("executor"))
