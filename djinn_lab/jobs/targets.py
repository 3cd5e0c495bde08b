"""Where a cell may run: on named devices, or on devices with the labels that it wants, and on none with a
taint that it does not tolerate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar

MARKS_MAX = 32
MARK_CHARS_MAX = 64
_NAME = re.compile(r"[A-Za-z0-9][\w.:/-]*")


class Described(Protocol):
    """A device as :class:`djinn_lab.jobs.machine.tables.QueueDevice` has it."""

    @property
    def device(self) -> str: ...

    @property
    def labels(self) -> frozenset[str]: ...

    @property
    def taints(self) -> frozenset[str]: ...


Known = TypeVar("Known", bound=Described)


class Target(NamedTuple):
    """Where a cell may run. ``devices``: one of these, None for any; ``labels``: all of these."""

    devices: frozenset[str] | None = None
    labels: frozenset[str] = frozenset()

    def suits(self, device: Described) -> bool:
        return (self.devices is None or device.device in self.devices) and self.labels <= device.labels


@lru_cache(maxsize=1024)
def parsed(text: str | None) -> Target:
    """Return the target: ``"cpu:0,cpu:1"``, ``"gpu=h200,team=vision"``, or both. Raises ValueError for a
    text that is neither."""
    if text is None:
        return Target()
    parts = [part.strip() for part in text.split(",")]
    labels = frozenset(part for part in parts if "=" in part)
    names = frozenset(parts) - labels
    for name in names:
        if not _NAME.fullmatch(name) or len(name) > MARK_CHARS_MAX:
            raise ValueError(f"{name!r}, which is neither a device nor a label such as gpu=h200")
    for label in labels:
        check_label(label)
    return Target(names or None, labels)


def check_label(label: str) -> None:
    """Raise ValueError for a text that is no label."""
    key, _, value = label.partition("=")
    if not (_NAME.fullmatch(key) and _NAME.fullmatch(value)) or len(label) > MARK_CHARS_MAX:
        raise ValueError(f"{label!r}, which is no label; write key=value, such as gpu=h200")


def check_taint(taint: str) -> None:
    """Raise ValueError for a text that is no taint."""
    if not _NAME.fullmatch(taint) or len(taint) > MARK_CHARS_MAX:
        raise ValueError(f"{taint!r}, which is no taint; write a name, such as vision")


def suits(target: str | None, tolerates: Iterable[str], device: Described) -> bool:
    """Return whether the job is eligible on the device."""
    return parsed(target).suits(device) and device.taints <= frozenset(tolerates)


def allowed(target: str | None, tolerates: Iterable[str], devices: Sequence[Known]) -> list[Known]:
    """Return the devices that it may run on. Raises ValueError, which says why there is none and what is
    there. Where no device is up yet, only a target is refused."""
    try:
        wanted = parsed(target)
    except ValueError as error:
        raise ValueError(f"it asks for {error}") from None
    unknown = sorted(wanted.devices - {device.device for device in devices}) if wanted.devices else ()
    if unknown:
        raise ValueError(f"there is no device {unknown[0]!r} (devices: {_there(devices)})")
    suitable = devices if target is None else [device for device in devices if wanted.suits(device)]
    if not suitable and target is not None:
        raise ValueError(f"no device is {target} (devices: {_there(devices)})")
    tolerated = frozenset(tolerates)
    found = [device for device in suitable if device.taints <= tolerated]
    if suitable and not found:
        raise ValueError(
            "every device that it could run on has a taint that it does not tolerate "
            f"({', '.join(map(describe, suitable))}); "
            "cells with --tolerate and its name start there"
        )
    return found


def _there(devices: Sequence[Described]) -> str:
    return ", ".join(map(describe, devices)) or "none is up yet"


def describe(device: Described) -> str:
    """Return for example ``cpu:0 (kind=cpu; tainted vision)``."""
    marks = [", ".join(sorted(device.labels))] if device.labels else []
    marks += [f"tainted {', '.join(sorted(device.taints))}"] if device.taints else []
    return f"{device.device} ({'; '.join(marks)})" if marks else device.device
