"""Devices as a cell names them: ``cuda`` is the pool, and ``cuda:N`` one of its devices.

The queue chooses the device that a cell runs on, whatever the number says; a number beyond those of the pool
is an error, as it is on a machine with fewer GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from djinn_lab.errors import CaptureError

CUDA_RULES = "ipu"
"""The device type whose autocast means CUDA's rules in a cell (``native/autocast.h``, and
:mod:`djinn_lab.capture.python.autocast`)."""


@dataclass(frozen=True)
class PoolDevice:
    """A device of the pool: its name there (``cpu:0``), what it is, its memory, and its kind (``cpu``,
    ``cuda``)."""

    device: str
    name: str
    memory_bytes: int
    kind: str = "cpu"


def is_pool(device: object) -> bool:
    """Return whether a device means the pool. Raises CaptureError for one that the pool does not have."""
    index = _index(device)
    if index is None:
        return False
    known = _devices()
    if known and not 0 <= index < len(known):
        names = ", ".join(f"cuda:{place} ({one.device})" for place, one in enumerate(known))
        raise CaptureError(
            f"cuda:{index} does not exist: the pool has {names}.",
            'Name one of these, or write device="cuda"; --target chooses the device that a cell runs on.',
        )
    return True


def computes_on_accelerators() -> bool:
    """Return whether all devices of the pool are known, and none is a CPU."""
    known = _devices()
    return bool(known) and all(one.kind != "cpu" for one in known)


def _index(device: object) -> int | None:
    """Return the number behind ``cuda:``, 0 without one; None for another device."""
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    if isinstance(device, str) and device.startswith("cuda"):
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type == "cuda":
        return device.index or 0
    return None


def _devices() -> Sequence[PoolDevice]:
    from djinn_lab.capture.recorders import capturing_recorder  # which makes recorders, which replace these

    recorder = capturing_recorder()
    return () if recorder is None else recorder.devices()


class PoolDeviceScope:
    """Stands in for :class:`torch.cuda.device` and ``device_of``: where a cell runs is for the queue."""

    def __init__(self, device: object) -> None:
        is_pool(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


class PoolDeviceProperties:
    """What ``torch.cuda.get_device_properties`` answers for a device of the pool."""

    def __init__(self, device: object = None) -> None:
        known = _devices()
        index = _index(0 if device is None else device) or 0
        if is_pool(index) and not known:
            unknown("get_device_properties")
        self.name = f"{known[index].device} of the pool ({known[index].name})"
        self.total_memory = known[index].memory_bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, total_memory={self.total_memory})"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the pool does not tell {name!r} of a device; see %djinn status")


def unknown(name: str) -> NoReturn:
    """Raise CaptureError for a question about one GPU that only this very machine's could answer."""
    raise CaptureError(
        f"torch.cuda.{name}: a cell does not know which device of the pool it will run on.",
        "Use %djinn status for the devices and %djinn memory for this session's memory.",
    )
