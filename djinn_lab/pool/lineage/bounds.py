"""When a copy is worth its time, so that a replay stays short.

A value is copied when to make it again would take longer than twice its restore, and longer than a pause that
people notice. Where the session computes on without a break, its next segment waits for the copy, which may
then cost at most a small part of the time since the last one (Young's rule, with the pause in place of the
mean time between failures)."""

from __future__ import annotations

from typing import Literal

from djinn_lab.pool.lineage.log import LOG_BYTES_MAX, SessionLog

PAUSE_S = 2.0
RESTORES = 2.0
HELD_PART = 0.05
"""Of the run time since the last copy, that a segment may wait for the next one."""
AGAIN = 1.5
"""A copy that did not become whole is asked for again after so many times the run time."""


def copy_wanted(log: SessionLog, copy_s: float) -> Literal["held", "beside"] | None:
    """Return how to copy the session, None for not now. ``copy_s``: predicted seconds of the copy, or of a
    restore."""
    full = log.nbytes > LOG_BYTES_MAX // 2
    if not full and log.run_s <= max(PAUSE_S, RESTORES * copy_s, AGAIN * log.asked_s):
        return None
    if log.void or log.spread or log.done < len(log.runs):
        return None
    log.asked_s = log.run_s
    return "held" if full or copy_s <= HELD_PART * log.run_s else "beside"
