"""The sentences for segments that are deferred or rejected."""

from __future__ import annotations

from collections.abc import Iterator

from djinn_lab.memory.machine.records import Device, PlacedSegment, SessionRecord
from djinn_lab.memory.machine.suggestions import Defer, Reject, Suggestion
from djinn_lab.units import SHORT_ID_CHARS, counted, format_bytes, listed

NAMED_MAX = 3


def defer(
    segment: PlacedSegment, kind: str, reason: str, estimate_s: float | None = None
) -> Iterator[Suggestion]:
    if segment.job:
        yield Defer(segment, kind, reason, estimate_s)


def queued(segment: PlacedSegment, device: Device) -> Defer:
    return Defer(
        segment,
        "queue",
        f"memory is reserved for it near the front of the queue of {device.device}",
        queued=True,
    )


def short_of(device: Device, needed: int, free: int, what: str) -> str:
    if needed <= 0:
        return f"device {device.device} is full; {what}"
    free = max(0, free)
    if free < needed and format_bytes(needed) == format_bytes(free):
        more = format_bytes(needed - free)
        return f"it needs {format_bytes(needed)}, {more} more than {device.device} has free; {what}"
    return f"it needs {format_bytes(needed)} and {device.device} has {format_bytes(free)} free; {what}"


def holders_text(holders: list[SessionRecord], device: Device) -> str:
    staying = [one for one in holders if one.place == "device" and one.total_bytes > device.host_bytes]
    if staying:
        host = f"the host's {format_bytes(device.host_bytes)}"
        leaves = "it is" if len(staying) == 1 else "they are"
        return f"{counted(len(staying), 'session')} on it cannot leave, since {leaves} larger than {host}"
    fill = "fills" if len(holders) == 1 else "fill"
    return f"{counted(len(holders), 'session')} {fill} the device and the tiers below"


def running_text(device: Device) -> str:
    """Name the cells that run on the device or are about to."""
    names = sorted(segment.job[:SHORT_ID_CHARS] for segment in device.granted.values())
    more = [f"{len(names) - NAMED_MAX} more"] if len(names) > NAMED_MAX else []
    return f"{'job' if len(names) == 1 else 'jobs'} {listed([*names[:NAMED_MAX], *more])}"


def out_of_memory(segment: PlacedSegment, device: Device, needed: int, free: int) -> Reject:
    holding = sum(nbytes > 0 for nbytes in device.session_bytes.values())
    return Reject(
        segment,
        f"out of memory: the cell needs {format_bytes(needed)} and {device.device} has"
        f" {format_bytes(max(0, free))} of {format_bytes(device.memory_bytes)} free;"
        f" {counted(holding, 'session')} {'holds' if holding == 1 else 'hold'} the rest",
        "Close other sessions, or run the pool with a memory policy that moves idle ones.",
    )


def unrestorable(segment: PlacedSegment, session: SessionRecord) -> Reject:
    return Reject(
        segment,
        f"the session's {format_bytes(session.total_bytes)} could not be restored to the device,"
        f" {session.failed_restores} times in a row",
        "Run the cell again; if it fails again, close other sessions or look into the pool's log.",
    )
