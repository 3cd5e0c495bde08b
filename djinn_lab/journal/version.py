"""Which version wrote a journal: that of the package, and a digest of the code that decides, since commits of
one release share a number."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from blake3 import blake3

import djinn_lab
from djinn_lab.protocol.version import VERSION

DECIDING = ("engine", "jobs", "memory")
UNKNOWN = "an earlier version"
"""That wrote no version into its journals."""


@cache
def this_version() -> str:
    """Such as ``0.1.0 (decisions 1f0c9a27)``."""
    found = blake3()
    root = Path(djinn_lab.__file__).parent
    for package in DECIDING:
        for path in sorted((root / package).rglob("*.py")):
            found.update(path.relative_to(root).as_posix().encode())
            found.update(path.read_bytes())
    return f"{VERSION} (decisions {found.hexdigest(length=4)})"
