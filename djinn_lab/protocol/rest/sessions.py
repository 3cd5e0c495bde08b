"""``/v1/sessions`` and ``/v1/memory``: sessions, and where their state is."""

from __future__ import annotations

import re

import msgspec

from djinn_lab.memory.snapshot import (
    Counters,
    DeferredSegment,
    DeviceAccount,
    MemoryChange,
    SessionAccount,
    WakeUps,
)
from djinn_lab.memory.states import Phase

_SESSION_ID = re.compile(r"\b[0-9a-f]{32}\b")
LABEL_CHARS_MAX = 28
HIT_MAX = 0.1
"""A wake-up below this part of what copying takes had nothing to copy."""


class SessionView(msgspec.Struct, frozen=True):
    """Show a session. ``state``: ``connected``, ``away`` (its connection broke: its cells continue, and its
    client may come back) or ``detached``. ``jobs``: how many cells it sent. ``last_seen``: when its client
    last sent something, or went away. ``ends_at``: when it is closed unless its client comes back, None while
    that is there."""

    session: str
    user: str = ""
    name: str = ""
    device: str | None = None
    state: str = ""
    phase: str | None = None
    used_bytes: int = 0
    jobs: int = 0
    connected_at: float | None = None
    last_seen: float | None = None
    ends_at: float | None = None


class MemorySession(SessionAccount, frozen=True):
    """Show a session's state in memory. ``name``: as its user called it. ``jobs``: how many cells it sent.
    ``away``: its connection broke, and its client may come back."""

    name: str = ""
    jobs: int = 0
    away: bool = False

    @property
    def short_id(self) -> str:
        return self.session[:8]

    @property
    def label(self) -> str:
        """The session's name, with as much of its id as distinguishes it from others of that name."""
        name = self.name or self.user or "session"
        if len(name) > LABEL_CHARS_MAX:
            name = f"{name[: LABEL_CHARS_MAX - 1]}…"
        return f"{name} · {self.session[:4]}"

    @property
    def client(self) -> str:
        """Return where its client is: ``connected``, ``away`` or ``detached``."""
        return "away" if self.away else str(self.connection)

    @property
    def state(self) -> str:
        """Summarise where it is: ``busy``, ``idle``, ``loading``, ``host``, ``disk`` or ``none``."""
        if self.moving == "restore":
            return "loading"
        if self.tier == "device":
            return "idle" if self.phase is Phase.IO_WAIT else "busy"
        return self.tier if self.tier in ("host", "disk") else "none"

    @property
    def last_ratio(self) -> float | None:
        """Return the last wake-up over the time that copying alone takes; None where nothing had to be
        copied."""
        if not self.last_floor_s or self.last_wake_s is None:
            return None
        ratio = self.last_wake_s / self.last_floor_s
        return ratio if ratio >= HIT_MAX else None


class MemoryView(msgspec.Struct, frozen=True):
    """Show session memory: devices, sessions, segments that wait for memory, wake-ups, counters, and what
    happened lately."""

    now: float
    policy: str = ""
    devices: tuple[DeviceAccount, ...] = ()
    sessions: tuple[MemorySession, ...] = ()
    deferred: tuple[DeferredSegment, ...] = ()
    wake_ups: WakeUps = WakeUps()
    counters: Counters = Counters()
    happenings: tuple[MemoryChange, ...] = ()

    def readable(self, text: str) -> str:
        """Put sessions' labels in place of their ids in a sentence of the pool."""
        labels = {session.session: session.label for session in self.sessions}
        return _SESSION_ID.sub(lambda found: labels.get(found[0], found[0][:8]), text)

    def session(self, start: str) -> MemorySession | None:
        """Find the session with this id, or the only one whose id starts so."""
        found = [session for session in self.sessions if session.session.startswith(start)]
        exact = next((session for session in found if session.session == start), None)
        return exact or (found[0] if len(found) == 1 else None)
