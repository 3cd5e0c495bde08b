"""How many bytes came over a host's link, and how fast."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from djinn_lab.pool.launchers.ray_cluster.files import Content, write_file

RATE_BYTES_MIN = 2**20
"""Less says more about messages than about the link."""
NEWEST_PART = 0.3


class LinkUse(msgspec.Struct, frozen=True):
    """Since the receiver began. ``bytes_per_s``: of what came lately, with writing it down; None before the
    first megabyte."""

    nbytes: int = 0
    bytes_per_s: float | None = None


class Link:
    """What comes to one host, or from one."""

    def __init__(self) -> None:
        self.use = LinkUse()

    async def receive(self, path: Path, content: Content) -> None:
        """Write a file whole, or not at all. Raises ray.exceptions.RayError when an object is lost."""
        began_s = time.perf_counter()
        await write_file(path, content)
        rate = self.use.bytes_per_s
        if content.nbytes >= RATE_BYTES_MIN:
            new = content.nbytes / max(time.perf_counter() - began_s, 1e-9)
            rate = new if rate is None else rate + NEWEST_PART * (new - rate)
        self.use = LinkUse(self.use.nbytes + content.nbytes, rate)
