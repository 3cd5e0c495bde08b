"""End all that a process started, also what left its process group."""

from __future__ import annotations

import contextlib

import psutil


def kill_descendants(pid: int) -> None:
    """Kill the descendants of a process until there are none: one may start another meanwhile. Zombies wait
    for their parents."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while living := [one for one in process.children(recursive=True) if _lives(one)]:
            for one in living:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
