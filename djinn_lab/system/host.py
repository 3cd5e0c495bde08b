"""Which machine this is, and what it shares between processes."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from functools import cache
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
"""Where Linux has files that lie in memory. No other system has such a folder."""

if sys.platform == "linux":

    def _identity() -> str:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{SHARED_MEMORY.stat().st_dev}"

elif sys.platform == "darwin":
    import subprocess

    def _identity() -> str:
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        return asked.stdout.strip() or platform.node()  # a sandboxed application may not ask

else:

    def _identity() -> str:
        return platform.node()


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def host_id() -> str:
    """Return a digest of this boot of this machine (on Linux, and its mount of shared memory; on Windows,
    where no pool runs, of the machine's name), equal for processes that share them."""
    return hashlib.sha256(_identity().encode()).hexdigest()[:16]
