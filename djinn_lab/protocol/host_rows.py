"""The layout of the file in which the workers of a device count host memory together
(:mod:`djinn_lab.worker.host_account`): rows of three int64."""

from __future__ import annotations

ROWS_MAX = 1024
FILE_BYTES = ROWS_MAX * 3 * 8
DEAD_ROW = ROWS_MAX - 1
"""Written by the pool, for what dead workers left; the others are of workers."""


def arena_prefix(device: str) -> str:
    """Return how the names of a device's files in shared memory begin, in which its workers park sessions."""
    return f"host-{device.replace(':', '-')}-"


def row(number: int) -> int:
    """Return the place of a row's first number, counted in numbers."""
    return 3 * number
