"""The pool's answer about session memory, as frozen records, and what a session's state is called. For the
notebook and the dashboard."""

from __future__ import annotations

import re

import msgspec

from djinn_lab.memory.snapshot import Counters, DeviceAccount, HeldSegment, MemoryChange, WakeUps
from djinn_lab.units import format_seconds

_SESSION_ID = re.compile(r"\b[0-9a-f]{32}\b")
LABEL_CHARS_MAX = 28
HIT_MAX = 0.1
"""Who woke up in less than this part of what copying takes had nothing to copy."""
STATES: dict[str, str] = {
    "busy": "on a device, computing",
    "idle": "on a device, idle",
    "loading": "on its way to a device",
    "host": "parked on the host",
    "disk": "parked on disk",
    "none": "holds nothing",
}
"""What the state of a session is called, busiest first."""


class MemorySession(msgspec.Struct, frozen=True):
    """As :class:`djinn_lab.memory.snapshot.SessionAccount`, with plain words, so that a newer pool's
    are shown as they are."""

    session: str
    user: str = ""
    name: str = ""
    connection: str = ""
    phase: str = ""
    device: str | None = None
    tier: str = "none"
    moving: str | None = None
    total_bytes: int = 0
    kv_bytes: int = 0
    stored_bytes: int = 0
    jobs: int = 0
    idle_since_s: float | None = None
    wake_at_s: float | None = None
    wake_from_s: float | None = None
    wake_until_s: float | None = None
    leased_until_s: float | None = None
    last_wake_s: float | None = None
    last_floor_s: float | None = None

    @property
    def short_id(self) -> str:
        return self.session[:8]

    @property
    def label(self) -> str:
        """Its name with as much of its id as tells it from another of that name."""
        name = self.name or self.user or "session"
        if len(name) > LABEL_CHARS_MAX:
            name = f"{name[: LABEL_CHARS_MAX - 1]}…"
        return f"{name} · {self.session[:4]}"

    @property
    def state(self) -> str:
        """A key of :data:`STATES`."""
        if self.moving == "restore":
            return "loading"
        if self.tier == "device":
            return "idle" if self.phase == "IO_WAIT" else "busy"
        return self.tier if self.tier in ("host", "disk") else "none"

    @property
    def last_ratio(self) -> float | None:
        """Its last wake-up over the time that copying alone takes; None where nothing had to be copied."""
        if not self.last_floor_s or self.last_wake_s is None:
            return None
        ratio = self.last_wake_s / self.last_floor_s
        return ratio if ratio >= HIT_MAX else None


class Memory(msgspec.Struct, frozen=True):
    """``now``: the pool's clock, in seconds since the epoch."""

    now: float
    policy: str = ""
    devices: tuple[DeviceAccount, ...] = ()
    sessions: tuple[MemorySession, ...] = ()
    held: tuple[HeldSegment, ...] = ()
    wake_ups: WakeUps = WakeUps()
    counters: Counters = Counters()
    happenings: tuple[MemoryChange, ...] = ()

    def readable(self, text: str) -> str:
        """A sentence of the pool with sessions' labels in place of their ids."""
        labels = {session.session: session.label for session in self.sessions}
        return _SESSION_ID.sub(lambda found: labels.get(found[0], found[0][:8]), text)

    def session(self, start: str) -> MemorySession | None:
        """The session with this id, or the only one whose id starts so."""
        found = [session for session in self.sessions if session.session.startswith(start)]
        exact = next((session for session in found if session.session == start), None)
        return exact or (found[0] if len(found) == 1 else None)


def read_memory(answer: object) -> Memory:
    """Raises ``msgspec.ValidationError`` when the answer is not session memory."""
    return msgspec.convert(msgspec.to_builtins(answer), Memory, strict=False)


def expected_wake(session: MemorySession, now: float) -> str:
    """When it is expected to compute again, with the span that holds two times in three."""
    if session.wake_at_s is None:
        return ""
    wait_s = session.wake_at_s - now
    middle = f"in {_rounded(wait_s)}" if wait_s > 0 else f"overdue by {_rounded(-wait_s)}"
    if session.wake_from_s is None or session.wake_until_s is None:
        return middle
    low, high = max(0.0, session.wake_from_s - now), max(0.0, session.wake_until_s - now)
    return f"{middle} ({_rounded(low)} to {_rounded(high)})"


def _rounded(seconds: float) -> str:
    """Coarse enough that a table does not change at every look."""
    if seconds < 1:
        return "< 1 s"
    step = 1 if seconds < 10 else 5 if seconds < 60 else 60
    whole = int(seconds / step) * step
    return f"{whole} s" if whole < 60 else format_seconds(whole).removesuffix(" 0 s")


def format_rate(bytes_per_s: float) -> str:
    """Decimal units, as links are sold: ``1.2 GB/s``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.1f} {unit}/s"
    return f"{bytes_per_s:.0f} B/s"
