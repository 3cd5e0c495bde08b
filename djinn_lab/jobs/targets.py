"""Where a cell may run: on devices that it names, or that operators have given the labels that it wants, and
on none that is kept for others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar

MARKS_MAX = 32
MARK_CHARS_MAX = 64
_NAME = re.compile(r"[A-Za-z0-9][\w.:/-]*")


class Described(Protocol):
    """A device as :class:`djinn_lab.jobs.tables.Device` has it."""

    device: str

    @property
    def labels(self) -> frozenset[str]: ...

    @property
    def taints(self) -> frozenset[str]: ...


Known = TypeVar("Known", bound=Described)


class Target(NamedTuple):
    """``devices``: one of these, None for any; ``labels``: ``key=value``, all of them."""

    devices: frozenset[str] | None = None
    labels: frozenset[str] = frozenset()

    def suits(self, device: Described) -> bool:
        return (self.devices is None or device.device in self.devices) and self.labels <= device.labels


@lru_cache(maxsize=1024)
def parsed(text: str | None) -> Target:
    """``"cpu:0,cpu:1"``, ``"gpu=h200,team=vision"``, or both. Raises ValueError for what is neither."""
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
    """Raises ValueError for what is no label."""
    key, _, value = label.partition("=")
    if not (_NAME.fullmatch(key) and _NAME.fullmatch(value)) or len(label) > MARK_CHARS_MAX:
        raise ValueError(f"{label!r}, which is no label; write key=value, such as gpu=h200")


def check_taint(taint: str) -> None:
    """Raises ValueError for what is no taint."""
    if not _NAME.fullmatch(taint) or len(taint) > MARK_CHARS_MAX:
        raise ValueError(f"{taint!r}, which is no taint; write a name, such as vision")


def suits(target: str | None, tolerates: Iterable[str], device: Described) -> bool:
    """May it run there?"""
    return parsed(target).suits(device) and device.taints <= frozenset(tolerates)


def allowed(target: str | None, tolerates: Iterable[str], devices: Sequence[Known]) -> list[Known]:
    """Those that it may run on. Raises ValueError, which says why there is none and what is there; where
    nothing is up yet, only a wish is refused."""
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
            f"what it could run on is kept for others ({', '.join(map(told, suitable))}); "
            "cells start there with --tolerate and that name"
        )
    return found


def _there(devices: Sequence[Described]) -> str:
    return ", ".join(map(told, devices)) or "none is up yet"


def told(device: Described) -> str:
    """``cpu:0 (kind=cpu; kept for vision)``."""
    marks = [", ".join(sorted(device.labels))] if device.labels else []
    marks += [f"kept for {', '.join(sorted(device.taints))}"] if device.taints else []
    return f"{device.device} ({'; '.join(marks)})" if marks else device.device
