"""Moments as people write them: ``14:00``, ``2026-11-23 14:00``, ``+2h``, ``now``."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta

from djinn_lab.errors import OptionError
from djinn_lab.units import parse_seconds

_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


def read_moment(option: str, text: str, now_s: float) -> float:
    """Seconds since the epoch. A time of day is the next one after ``now_s`` by this machine's clock, ``+2h``
    counts from ``now_s``, a date without a zone is of this machine's. Raises OptionError that names the
    ``option``."""
    cleaned = text.strip()
    try:
        if cleaned == "now":
            return now_s
        if cleaned.startswith("+"):
            return now_s + parse_seconds(cleaned[1:])
        if _CLOCK.fullmatch(cleaned):
            return _next(cleaned, now_s)
        return datetime.fromisoformat(cleaned).timestamp()
    except (ValueError, OverflowError, OSError):
        raise OptionError(
            f"{option}: {text!r} is not a time.",
            "Write a time of day (14:00), a date (2026-11-23 14:00), a time from now (+2h) or now.",
        ) from None


def read_past_moment(option: str, text: str, now_s: float) -> float:
    """Read a moment as :func:`read_moment`; a time of day is the last one before ``now_s``."""
    found = read_moment(option, text, now_s)
    return found if found <= now_s else found - 86_400


def shown_moment(at_s: float) -> str:
    """``2026-11-23 14:00:00``, by this machine's clock."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def _next(clock: str, now_s: float) -> float:
    now = datetime.fromtimestamp(now_s)
    hours, minutes, seconds = (int(part) for part in f"{clock}:0".split(":")[:3])
    found = now.replace(hour=hours, minute=minutes, second=seconds, microsecond=0)
    return (found if found.timestamp() > now_s else found + timedelta(days=1)).timestamp()
