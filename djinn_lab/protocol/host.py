"""Do two processes share a host, so that tensors can pass through shared memory?"""

from __future__ import annotations

import hashlib
from pathlib import Path


def host_id() -> str:
    """A digest of this boot of this machine (and its shared-memory mount), equal for processes that share
    them."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    shared_memory = Path("/dev/shm").stat()
    return hashlib.sha256(f"{boot}:{shared_memory.st_dev}".encode()).hexdigest()[:16]
