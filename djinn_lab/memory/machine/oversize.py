"""Segments that need more memory than a device has: they run where values of their session can be offloaded
to the tiers below it, or never."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.memory.machine.records import Device
from djinn_lab.memory.messages import RejectSegment, SegmentPlaced, SegmentProposed
from djinn_lab.memory.policy import MemoryPolicy
from djinn_lab.units import format_bytes

ADVICE = "Use smaller batches or tensors, or run on a pool whose devices have more memory."


def can_run(event: SegmentPlaced | SegmentProposed, device: Device, policy: MemoryPolicy) -> bool:
    """Return whether the segment can run on the device, had it all to itself."""
    if (event.floor_bytes or 0) > device.memory_bytes:
        return False
    if event.peak_bytes <= device.memory_bytes:
        return True
    offloads = _offloads(device, policy) and event.floor_bytes is not None
    return offloads and event.peak_bytes <= device.capacity_bytes


def most_bytes(nbytes: int, device: Device, policy: MemoryPolicy) -> int:
    """Return how many of the bytes a segment may have on the device at once; it offloads the others."""
    return min(nbytes, device.memory_bytes) if _offloads(device, policy) else nbytes


def never_fits(
    event: SegmentPlaced | SegmentProposed, devices: Sequence[Device], bound: bool
) -> RejectSegment:
    """``bound``: the session is on the only one of ``devices``."""
    largest = max(devices, key=lambda one: (one.memory_bytes, one.device))
    whose = f"{largest.device} has" if bound else f"the largest device, {largest.device}, has"
    has = f"{whose} {format_bytes(largest.memory_bytes)}"
    floor_bytes, advice = event.floor_bytes or 0, ADVICE
    if floor_bytes > largest.memory_bytes:
        op, needs = f" ({event.floor_op})" if event.floor_op else "", _needs(floor_bytes, largest)
        message = f"one op of the cell{op} needs {needs} at once, and {has}"
        return RejectSegment(event.job, event.segment, message, advice, event.floor_node, event.floor_op)
    at, more = f" at {event.op}" if event.op else "", ""
    if largest.tiers:
        below = largest.capacity_bytes - largest.memory_bytes
        more = f", and {format_bytes(below)} in the tiers below it" if floor_bytes else ""
    elif floor_bytes:
        advice = f"{ADVICE[:-1]}, or one with --host-memory, to which values can be offloaded."
    message = f"the cell needs {_needs(event.peak_bytes, largest)} at once{at}, and {has}{more}"
    return RejectSegment(event.job, event.segment, message, advice, event.node, event.op)


def _needs(nbytes: int, device: Device) -> str:
    """Return the bytes, and how many more than the device has where both look alike."""
    if format_bytes(nbytes) != format_bytes(device.memory_bytes):
        return format_bytes(nbytes)
    return f"{format_bytes(nbytes)} ({format_bytes(nbytes - device.memory_bytes)} too many)"


def _offloads(device: Device, policy: MemoryPolicy) -> bool:
    return device.tiers and policy.moves
