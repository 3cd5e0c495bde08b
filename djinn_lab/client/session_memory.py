"""Words for session memory, as the notebook and the dashboard show it."""

from __future__ import annotations

from djinn_lab.protocol.rest.sessions import MemorySession
from djinn_lab.units import format_seconds

STATES: dict[str, str] = {
    "busy": "on a device, computing",
    "idle": "on a device, idle",
    "loading": "on its way to a device",
    "host": "parked on the host",
    "disk": "parked on disk",
    "none": "holds nothing",
}
"""What the pages call each :attr:`~djinn_lab.protocol.rest.sessions.MemorySession.state`, busiest first."""


def expected_wake(session: MemorySession, now: float) -> str:
    """Return when the session is or was expected to compute again, with the span that holds two times in
    three: ``in 30 s (10 s to 2 min)``, ``at any moment`` or ``20 s ago (now: within 5 s)``."""
    if session.wake_at_s is None:
        return ""
    wait_s = session.wake_at_s - now
    if abs(wait_s) < 1:
        middle = "at any moment"
    else:
        middle = f"in {_rounded(wait_s)}" if wait_s > 0 else f"{_rounded(-wait_s)} ago"
    if session.wake_from_s is None or session.wake_until_s is None:
        return middle
    low_s, high_s = max(0.0, session.wake_from_s - now), session.wake_until_s - now
    if high_s < 1:
        return middle
    if wait_s < 1:
        return f"{middle} (now: within {_rounded(high_s)})"
    return f"{middle} ({_rounded(low_s)} to {_rounded(high_s)})"


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
