"""What goes into the accounts (events, each with its own time in seconds) and what comes out (commands)."""

from __future__ import annotations

import msgspec


class DeviceAdded(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    device: str
    memory_bytes: int


class DeviceLost(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    device: str


class SessionOpened(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    session: str
    user: str


class SessionParked(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    session: str


class SessionResumed(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    session: str


class SessionClosed(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    session: str


class SessionBound(msgspec.Struct, frozen=True, tag=True):
    """The session's values will live on this device."""

    at_s: float
    session: str
    device: str


class SegmentProposed(msgspec.Struct, frozen=True, tag=True):
    """``peak_bytes``: what the segment alone holds at its fullest, see
    :func:`djinn_lab.memory.footprint.predict_peak_bytes`. ``node``: the op at that moment, ``op`` its
    name."""

    at_s: float
    job: str
    segment: int
    session: str
    peak_bytes: int
    node: int | None = None
    op: str | None = None


class MemoryReported(msgspec.Struct, frozen=True, tag=True):
    """A worker's own count. ``session_bytes``: sessions with live values; ``used_bytes``: all of them."""

    at_s: float
    device: str
    used_bytes: int
    peak_bytes: int
    session_bytes: dict[str, int]


class PhaseSignalled(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    session: str
    phase: str
    expected_s: float | None = None


Event = (
    DeviceAdded
    | DeviceLost
    | SessionOpened
    | SessionParked
    | SessionResumed
    | SessionClosed
    | SessionBound
    | SegmentProposed
    | MemoryReported
    | PhaseSignalled
)


class AdmitSegment(msgspec.Struct, frozen=True, tag=True):
    job: str
    segment: int


class RefuseSegment(msgspec.Struct, frozen=True, tag=True):
    """It never fits; ``message`` has the numbers and ``advice`` what to do."""

    job: str
    segment: int
    message: str
    advice: str
    node: int | None
    op: str | None


class FreeSession(msgspec.Struct, frozen=True, tag=True):
    """Drop everything the session holds on the device."""

    session: str
    device: str


class ValuesLost(msgspec.Struct, frozen=True, tag=True):
    """The device died with ``nbytes`` of the session's values."""

    session: str
    device: str
    nbytes: int


class AnswerPhase(msgspec.Struct, frozen=True, tag=True):
    """``answer``: ``accepted`` or ``rejected``, with the reason."""

    session: str
    answer: str
    message: str


Command = AdmitSegment | RefuseSegment | FreeSession | ValuesLost | AnswerPhase
