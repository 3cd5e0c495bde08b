"""Bytes, seconds, energy, counts, lists and sentences for people."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

SHORT_ID_CHARS = 8
"""Of an id of a job or a session, as people read it."""
_NAME = re.compile(r"\w+:\d|[0-9a-f]{32}\b")
_BYTE_STEPS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def format_bytes(count: float) -> str:
    """``1536`` -> ``"1.5 KiB"``."""
    for unit, size in _BYTE_STEPS:
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """``0.00042`` -> ``"420 us"``, ``75`` -> ``"1 min 15 s"``."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def whole_seconds(seconds: float) -> str:
    """Of something under way, without fractions: ``3.2`` -> ``"3 s"``, ``0.4`` -> ``"< 1 s"``."""
    if 1 <= seconds < 60:
        return f"{int(seconds)} s"
    return "< 1 s" if seconds < 1 else format_seconds(float(int(seconds)))


def counted(count: int, word: str) -> str:
    """``1 session``, ``2 sessions``."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def format_joules(joules: float) -> str:
    """``8400`` -> ``"8.4 kJ"``; below a joule ``"3.2 mJ"``, from a kilowatt-hour on ``"2.5 kWh"``."""
    if joules >= 3.6e6:
        return f"{joules / 3.6e6:.1f} kWh"
    if joules >= 1000:
        return f"{joules / 1000:.1f} kJ"
    return f"{joules * 1000:.1f} mJ" if 0 < joules < 1 else f"{joules:.1f} J"


def parse_bytes(text: str) -> int:
    """``"2GiB"``, ``"512 MB"`` or ``"1000"`` -> bytes. Raises ValueError that says what is accepted."""
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    units |= {name.upper(): size for name, size in _BYTE_STEPS}
    cleaned = text.strip().replace(" ", "")
    number = cleaned.rstrip("BbKkMmGgTtIi")
    unit = cleaned[len(number) :].upper()
    try:
        value = float(number) * units[unit]
    except (ValueError, KeyError):
        raise ValueError(f"{text!r} is not a size; write for instance 512MB, 2GiB or 1073741824") from None
    if not 0 <= value < 2**60:
        raise ValueError(f"{text!r} is out of range (0 to 1 EiB)")
    return int(value)


_SECONDS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_seconds(text: str) -> float:
    """``"90"``, ``"1.5h"`` or ``"10 min"`` -> seconds. Raises ValueError that says what is accepted."""
    cleaned = text.strip().replace(" ", "").lower()
    number = cleaned.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        value = float(number) * _SECONDS[cleaned[len(number) :]]
    except (ValueError, KeyError):
        raise ValueError(f"{text!r} is not a duration; write for instance 90s, 10min or 1.5h") from None
    if not 0 <= value < float("inf"):
        raise ValueError(f"{text!r} is not a duration; it must be 0 or more, and finite")
    return value


def listed(parts: Sequence[str]) -> str:
    """``["a", "b", "c"]`` -> ``"a, b and c"``; nothing for none."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def capitalised(text: str) -> str:
    """Begin a sentence with a capital, unless it begins with the name of a device or an id."""
    return text if _NAME.match(text) else text[:1].upper() + text[1:]


def format_error(error: float) -> str:
    """Show a relative error: ``0.25`` is ``25%``, ``248.86`` is ``249 times``."""
    return f"{error:.0%}" if error < 10 else f"{error:,.0f} times"


def format_clock(at_s: float) -> str:
    """Show the time of a day, here, of seconds since the epoch: ``14:03:59``."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))
