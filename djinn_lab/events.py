"""Events and terms that queue, session memory and engine share; each event carries its time in seconds."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class MemoryRelease(StrEnum):
    """What frees the memory that a segment waits for."""

    COPIES = "copies"
    """Copies that are under way or come next."""
    PREEMPTION = "preemption"
    """Running cells hold enough; they may be preempted."""
    CELLS = "cells"
    """The end of running cells, and a preemption would not be enough."""
    ADMISSION = "admission"
    """The session holds nothing yet. It is admitted once cells end, or sessions grow less than predicted."""
    CLOSE = "close"
    """A session that closes, or frees values."""

    @property
    def stuck(self) -> bool:
        """Whether nothing is under way that frees memory, and preemption would not."""
        return self not in (MemoryRelease.COPIES, MemoryRelease.PREEMPTION)

    @property
    def of_other_sessions(self) -> bool:
        """Whether the segment waits for sessions to leave, shrink or settle, and not for a device."""
        return self in (MemoryRelease.ADMISSION, MemoryRelease.CLOSE)


class DeviceAdded(msgspec.Struct, frozen=True, tag=True):
    """A worker became ready, for the first time or again. ``memory_bytes``: what the device offers.
    ``host_bytes``, ``disk_bytes``: how much of this device's sessions the host and the disk may hold.
    ``link_bytes_per_s``: between device and host, None until measured. ``slots``: segments that run at
    once. ``numa_node``: where the device is, None when unknown. ``host``: on which machine, empty for that of
    the pool."""

    at_s: float
    device: str
    memory_bytes: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0
    link_bytes_per_s: float | None = None
    slots: int = 1
    numa_node: int | None = None
    host: str = ""


class Rebuild(msgspec.Struct, frozen=True, array_like=True):
    """How a session's lost values are made again: from a whole copy of ``copy_bytes`` (0: from nothing), by
    programs that hold at most ``peak_bytes`` beside the session's values. The session's next segment
    begins with them."""

    copy_bytes: int
    peak_bytes: int


class WorkerDied(msgspec.Struct, frozen=True, tag=True):
    """A process of the device ended. The contents of its memory are gone; what was on the host or the disk is
    not. ``rebuilds``: by session, for those of its sessions whose values can be made again. ``sessions``:
    those that the process had, where the device lives on with others; None: the device is lost with all that
    it held."""

    at_s: float
    device: str
    rebuilds: dict[str, Rebuild] = {}
    sessions: tuple[str, ...] | None = None


class HeartbeatChanged(msgspec.Struct, frozen=True, tag=True):
    """The device's worker stopped answering (``heard`` is False), or answers again. Whatever it was asked for
    is still under way; its memory is as it was."""

    at_s: float
    device: str
    heard: bool


class SessionDetached(msgspec.Struct, frozen=True, tag=True):
    """The client vanished without closing: its jobs are cancelled, its values stay, and the session stays
    bound to its device."""

    at_s: float
    session: str


class SessionClosed(msgspec.Struct, frozen=True, tag=True):
    """The client closed the session: its jobs are cancelled, and all its values are freed."""

    at_s: float
    session: str


class ClockTicked(msgspec.Struct, frozen=True, tag=True):
    """Time passed: leases may have ended, estimates changed, or something become due."""

    at_s: float


class IllegalEvent(Exception):
    """Reports an event that cannot happen in this state; nothing has changed. ``fault``: ``"client"`` when a
    client's message can cause it, ``"pool"`` when only a bug of the pool or of a worker can."""

    def __init__(self, message: str, fault: str = "pool") -> None:
        super().__init__(message)
        self.fault = fault
