"""What ``torch.cuda`` answers about memory in a cell: that of the pool's device that has the session's state.

Each answer first runs what was recorded, and asks the pool, so it takes as long as a small cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from djinn_lab.capture.torch_functions.pool_devices import is_pool, unknown
from djinn_lab.units import format_bytes


@dataclass(frozen=True)
class PoolMemory:
    """``used_bytes``: of the device's ``memory_bytes``, what all sessions have. ``session_bytes``: this
    session's part. ``peak_bytes``: the most that the device had in use while cells of this session ran, since
    that was reset."""

    device: str
    memory_bytes: int
    used_bytes: int
    session_bytes: int
    peak_bytes: int


class SessionsMemory(Protocol):
    """What a recorder's session knows of its memory."""

    def look(self) -> PoolMemory | None:
        """Ask the pool; None where there is none."""
        ...

    def reset_peak(self) -> None: ...


class NoMemory:
    """Of a recorder without a pool."""

    def look(self) -> PoolMemory | None:
        return None

    def reset_peak(self) -> None:
        pass


class Asks(Protocol):
    """A recorder. ``finish`` runs what was recorded."""

    device_memory: SessionsMemory

    def finish(self, cause: str) -> None: ...


def memory_answers(recorder: Asks) -> dict[str, Callable[..., object]]:
    """Return the functions of ``torch.cuda`` about memory, by name."""

    def ask(name: str, device: object) -> PoolMemory:
        _check(device)
        recorder.finish(f"torch.cuda.{name} was called")
        found = recorder.device_memory.look()
        return unknown(name) if found is None else found

    def answer(name: str, of: Callable[[PoolMemory], object]) -> Callable[..., object]:
        return lambda device=None, abbreviated=False: of(ask(name, device))

    found = {
        "mem_get_info": lambda one: (one.memory_bytes - one.used_bytes, one.memory_bytes),
        "memory_stats": _statistics,
        "memory_summary": _summary,
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), _now),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), _peak),
    }
    named = {name: answer(name, of) for name, of in found.items() if hasattr(torch.cuda, name)}
    resets = ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached")

    def reset(device: object = None) -> None:
        _check(device)
        recorder.device_memory.reset_peak()

    return named | {name: reset for name in resets if hasattr(torch.cuda, name)}


def _check(device: object) -> None:
    """Raises CaptureError for a device that the pool does not have, and as torch does for what is none."""
    if device is None:
        return
    named = device if isinstance(device, int) else torch.device(device)  # type: ignore[call-overload]
    if not is_pool(named):
        raise ValueError(f"Expected a cuda device, but got: {named}")


def _now(memory: PoolMemory) -> int:
    return memory.session_bytes


def _peak(memory: PoolMemory) -> int:
    return max(memory.peak_bytes, memory.session_bytes)


def _statistics(memory: PoolMemory) -> dict[str, Any]:
    """The part of torch's statistics that a pool has an answer for."""
    now, peak = _now(memory), _peak(memory)
    known = {
        f"{kind}_bytes.all.{when}": nbytes
        for kind in ("allocated", "reserved", "active", "requested")
        for when, nbytes in (("current", now), ("peak", peak))
    }
    return known | dict.fromkeys(("num_alloc_retries", "num_ooms"), 0)


def _summary(memory: PoolMemory) -> str:
    return (
        f"{memory.device} of the pool: {format_bytes(memory.session_bytes)} are this session's, "
        f"{format_bytes(memory.used_bytes)} of {format_bytes(memory.memory_bytes)} are used, "
        f"{format_bytes(_peak(memory))} at most while its cells ran. %djinn memory has more."
    )
