"""How much memory a host tier may have: what the machine and its control group leave. Imports no torch."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import psutil

from djinn_lab.system.host import SHARED_MEMORY

USABLE_PART = 0.8
"""Of the memory that is available: the rest is for the processes themselves."""

_UNLIMITED_FROM = 2**60


def largest_host_bytes(root: Path = Path("/")) -> int:
    """The most that all host tiers of this machine may hold together now: a part of the memory that is
    available to this process's control group (v1 or v2) and on the machine. ``root``: of the file system,
    for tests."""
    if sys.platform != "linux":
        return int(psutil.virtual_memory().available * USABLE_PART)
    available = [_available_on_machine(root / "proc/meminfo")]
    for directory, limit_name, usage_name in _groups(root):
        limit = _number(directory / limit_name)
        if limit is not None and limit < _UNLIMITED_FROM:
            available.append(max(0, limit - (_number(directory / usage_name) or 0)))
    return int(min(available) * USABLE_PART)


def free_shared_memory(path: Path = SHARED_MEMORY) -> int | None:
    """Return how much more shared memory may hold, where host tiers and uploads are files of it; None where
    this machine has none."""
    if not path.is_dir():
        return None
    return shutil.disk_usage(path).free


def _groups(root: Path) -> list[tuple[Path, str, str]]:
    """Every control group above this process, each with the names of its limit and usage files."""
    found: list[tuple[Path, str, str]] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = (
                root / "sys/fs/cgroup/memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            )
        else:
            continue
        parts = [part for part in path.split("/") if part]
        found += [(base.joinpath(*parts[:depth]), *names) for depth in range(len(parts) + 1)]
    return found


def _available_on_machine(meminfo: Path) -> int:
    for line in _lines(meminfo):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo} does not say how much memory is available")


def _number(path: Path) -> int | None:
    """None where there is no such file, or it says ``max``."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []
