"""Values over time as a chart draws them: what was not seen is a gap, never a ramp."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

HELD_S = 2.0
"""A value is drawn as it was until the next one, when that came later than this."""
GAP_S = 15.0
"""Nothing is drawn between values further apart: no one looked in between."""


def drawn(
    at_s: Sequence[float], values: Sequence[float], before: tuple[float, float] | None = None
) -> tuple[list[float], list[float]]:
    """Return the points to join by lines, with times in milliseconds. ``before``: time and value that are
    drawn already."""
    times_ms: list[float] = []
    points: list[float] = []
    for now_s, value in zip(at_s, values, strict=True):
        if before is not None and now_s - before[0] > HELD_S:
            times_ms.append(now_s * 1e3)
            points.append(nan if now_s - before[0] > GAP_S else before[1])
        times_ms.append(now_s * 1e3)
        points.append(value)
        before = (now_s, value)
    return times_ms, points
