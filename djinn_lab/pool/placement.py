"""A segment as session memory sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Placement:
    """What session memory is asked about a segment. ``rank``: of its priority, 0 first. ``peak_bytes``: from
    where it is now to its end."""

    job: str
    segment: int
    session: str
    peak_bytes: int
    rank: int
    node: int | None
    op: str | None
    kept_bytes: int | None = None
