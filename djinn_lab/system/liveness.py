"""Whether a process lives."""

from __future__ import annotations

import psutil


def process_is_alive(pid: int) -> bool:
    """Return whether a process of this id exists and is no zombie."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except (psutil.NoSuchProcess, ValueError):  # no number of a process
        return False
    except psutil.AccessDenied:
        return True
