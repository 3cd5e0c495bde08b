"""What is shared, and how much of it: device time, memory over time, bytes moved."""

from __future__ import annotations

from typing import NamedTuple

RESOURCES = ("device_s", "memory_byte_s", "transfer_bytes")


class Amounts(NamedTuple):
    """``device_s``: devices times seconds. ``memory_byte_s``: bytes times seconds."""

    device_s: float = 0.0
    memory_byte_s: float = 0.0
    transfer_bytes: float = 0.0


class Capacity(NamedTuple):
    """What the whole pool offers in one second. A resource of capacity 0 is not compared."""

    devices: float = 0.0
    memory_bytes: float = 0.0
    transfer_bytes_per_s: float = 0.0
