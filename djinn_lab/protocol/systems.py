"""On which systems a pool runs."""

from __future__ import annotations

import sys

from djinn_lab.errors import PoolNotFound


def check_pool_runs_here() -> None:
    """Raises PoolNotFound on a system where no pool runs."""
    if sys.platform == "win32":
        raise PoolNotFound(
            "no pool runs on Windows.",
            "Start one on a Linux machine, or in WSL, with `djinn-lab pool start --host 0.0.0.0`, and "
            "name its address in the variable DJINN_POOL.",
        )
