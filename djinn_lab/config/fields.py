"""Every setting that a profile has, as a table: what it means, what it accepts, how it is read, and issues
with their fixes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Literal, NamedTuple

import msgspec

from djinn_lab.units import format_bytes, parse_bytes

Value = str | int | float | bool | None
PRIORITIES = ("CRITICAL", "HIGH", "NORMAL", "LOW", "SCAVENGER")
OBJECTIVES = ("latency", "memory", "energy")
NUMBERS = ("close", "bits")
CPU_DEVICES_MAX = 64
MEMORY_BYTES_MIN = 64 * 2**20
"""Of a device: less holds no model worth a pool, and is most often a number whose unit was forgotten."""
THREADS_MAX = 1024
BUILT_IN_ESTIMATOR = "built-in"
"""Name of the cost model that no package needs to offer."""
PLUGIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Field(NamedTuple):
    """One setting. ``read`` checks a TOML value and raises ValueError that says what was found."""

    path: str
    label: str
    help: str
    accepted: str
    read: Callable[[object], Value]
    choices: tuple[str, ...] = ()

    @property
    def section(self) -> str:
        return self.path.partition(".")[0]

    @property
    def key(self) -> str:
        return self.path.partition(".")[2]


def _read_devices(raw: object) -> Value:
    if raw in ("auto", "cuda"):
        return str(raw)
    match = re.fullmatch(r"cpu:([1-9][0-9]?)", raw) if isinstance(raw, str) else None
    if match and int(match[1]) <= CPU_DEVICES_MAX:
        return match[0]
    raise ValueError(f"found {raw!r}")


def _read_memory(raw: object) -> Value:
    if raw is None or raw == "auto":
        return None
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise ValueError(f"found {raw!r}")
    try:
        count = parse_bytes(str(raw))
    except ValueError:
        raise ValueError(f"found {raw!r}") from None
    if count < MEMORY_BYTES_MIN:
        raise ValueError(f"found {raw!r}, which is below {format_bytes(MEMORY_BYTES_MIN)}")
    return count


def _read_size(none: bool) -> Callable[[object], Value]:
    """Read a size; ``none``: whether "auto" is a value."""

    def read(raw: object) -> Value:
        if raw is None or raw == "auto":
            if none:
                return None
            raise ValueError(f"found {raw!r}")
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise ValueError(f"found {raw!r}")
        try:
            return parse_bytes(str(raw))
        except ValueError:
            raise ValueError(f"found {raw!r}") from None

    return read


def _read_threads(raw: object) -> Value:
    if raw is None or raw == "auto":
        return None
    if isinstance(raw, bool) or not isinstance(raw, int) or not 1 <= raw <= THREADS_MAX:
        raise ValueError(f"found {raw!r}")
    return raw


def _read_choice(choices: tuple[str, ...], transform: Callable[[str], str]) -> Callable[[object], Value]:
    def read(raw: object) -> Value:
        if isinstance(raw, str) and transform(raw) in choices:
            return transform(raw)
        hint = get_close_matches(transform(str(raw)), choices, n=1)
        raise ValueError(f"found {raw!r}" + (f"; did you mean {hint[0]!r}?" if hint else ""))

    return read


def _read_number(low: float, high: float) -> Callable[[object], Value]:
    def read(raw: object) -> Value:
        if isinstance(raw, bool) or not isinstance(raw, int | float) or math.isnan(raw):
            raise ValueError(f"found {raw!r}")
        if not low <= raw <= high:
            raise ValueError(f"found {raw!r}")
        return float(raw)

    return read


def _read_plugin_name(raw: object) -> Value:
    if isinstance(raw, str) and PLUGIN_NAME.fullmatch(raw):
        return raw
    raise ValueError(f"found {raw!r}")


def _read_switch(raw: object) -> Value:
    if isinstance(raw, bool):
        return raw
    raise ValueError(f"found {raw!r}")


FIELDS: tuple[Field, ...] = (
    Field(
        "pool.devices",
        "Devices",
        "which devices the pool starts workers on; auto takes every CUDA device, else two CPU devices, "
        "and cpu:3 three, named cpu:0 to cpu:2",
        f"auto, cuda, or cpu:N with N from 1 to {CPU_DEVICES_MAX}",
        _read_devices,
    ),
    Field(
        "pool.memory_bytes",
        "Memory of each CPU device",
        "limit that every CPU device enforces; CUDA devices bring their own",
        f"auto, or a size such as 2GiB (at least {format_bytes(MEMORY_BYTES_MIN)})",
        _read_memory,
    ),
    Field(
        "pool.threads",
        "Threads of each device",
        "threads that torch uses on each device",
        f"auto, or a whole number from 1 to {THREADS_MAX}",
        _read_threads,
    ),
    Field(
        "pool.host_bytes",
        "Host memory for parked sessions",
        "how much state of idle sessions each device may keep in the host's memory",
        "auto, or a size such as 8GiB (0 for none)",
        _read_size(none=True),
    ),
    Field(
        "pool.disk_bytes",
        "Disk for parked sessions",
        "how much state of idle sessions each device may keep on disk when the host's share is full",
        "a size such as 50GiB (0 for none)",
        _read_size(none=False),
    ),
    Field(
        "pool.link_bytes_per_s",
        "Copy rate of CPU devices",
        "CPU devices park and restore no faster than this a second, as a GPU's link would",
        "a size such as 1GiB (0 for as fast as memory)",
        _read_size(none=False),
    ),
    Field(
        "pool.cost_estimator",
        "Cost estimator",
        "what predicts the run times of cells that have not run before",
        f"{BUILT_IN_ESTIMATOR}, or the name that an installed package offers",
        _read_plugin_name,
    ),
    Field(
        "session.priority",
        "Priority",
        "which of the waiting cells runs first; equal priorities go by fair share",
        ", ".join(PRIORITIES),
        _read_choice(PRIORITIES, str.upper),
        PRIORITIES,
    ),
    Field(
        "session.progress_after_s",
        "Show progress after (s)",
        "seconds a cell may take before its progress line appears",
        "a number of seconds from 0 to 3600",
        _read_number(0.0, 3600.0),
    ),
    Field(
        "session.quiet",
        "Quiet",
        "show neither progress nor the report line under a cell",
        "true or false",
        _read_switch,
        ("false", "true"),
    ),
    Field(
        "session.numbers",
        "Numbers of GPUs",
        "close: by torch's own kernels; bits: by deterministic ones, slower, so that what runs again after a "
        "loss has the same bits. CPUs always have the same bits",
        ", ".join(NUMBERS),
        _read_choice(NUMBERS, str.lower),
        NUMBERS,
    ),
    Field(
        "scheduler.objective",
        "Objective",
        "where a session begins: where its cell is predicted to be done first, on the device filled least, "
        "or where it is predicted to use the fewest joules",
        ", ".join(OBJECTIVES),
        _read_choice(OBJECTIVES, str.lower),
        OBJECTIVES,
    ),
    Field(
        "scheduler.memory_reserve_fraction",
        "Memory kept free",
        "share of a device's memory that stays free where a session begins, if there is such a device",
        "a number from 0 to 0.9",
        _read_number(0.0, 0.9),
    ),
)
SIZES = frozenset(("pool.memory_bytes", "pool.host_bytes", "pool.disk_bytes", "pool.link_bytes_per_s"))
"""Shown and written as sizes (``2GiB``)."""
FIELD_BY_PATH: dict[str, Field] = {field.path: field for field in FIELDS}


def native_from_text(text: str) -> object:
    """Return a typed value (``"4"``, ``"0.2"``, ``"true"``) as the value that TOML would hold."""
    cleaned = text.strip()
    if cleaned.lower() in ("true", "false"):
        return cleaned.lower() == "true"
    for convert in (int, float):
        try:
            return convert(cleaned)
        except ValueError:
            continue
    return cleaned


def text_of(path: str, value: Value) -> str:
    """Return a setting's value as it is shown and typed: the inverse of :func:`native_from_text` and
    ``read``."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "true" if value else "false"
    if path in SIZES and isinstance(value, int):
        return _size_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _size_text(count: int) -> str:
    if count == 0:
        return "0"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def did_you_mean(found: object, known: list[str] | tuple[str, ...]) -> str:
    """Return ``" (did you mean 'x'?)"`` or an empty string, for the middle of a sentence."""
    matches = get_close_matches(found, known, n=1) if isinstance(found, str) else []
    return f" (did you mean {matches[0]!r}?)" if matches else ""


Severity = Literal["error", "warning"]


class Issue(msgspec.Struct, frozen=True):
    """What is wrong with a profile, and what to do about it. ``path`` is a setting such as ``pool.devices``.
    An ``error`` keeps a profile from being saved."""

    path: str
    severity: Severity
    message: str
    fix: str

    def sentence(self) -> str:
        """Return path, message and fix on one line."""
        return f"{self.path}: {self.message}. {self.fix}"
