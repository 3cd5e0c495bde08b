"""Compare keeping, swapping and rebuilding state by the memory that each wastes, in byte-seconds (InferCept,
arXiv 2402.01869, section 4):

- *keep* wastes the session's bytes for as long as it idles;
- *swap* wastes what stalls while it is copied out and back, which is nothing where the copies hide behind
  others' computing, as with copies made in advance. It needs free capacity below the device;
- *rebuild* wastes the session's own bytes, and those of sessions that stall beside it, for as long as
  rebuilding takes.

So a session is swapped wherever it fits, else rebuilt if that wastes less than keeping it.
"""

from __future__ import annotations

from djinn_lab.memory.machine.records import SessionRecord
from djinn_lab.memory.policy import MemoryPolicy


def keep_waste(after_s: float, nbytes: int) -> float:
    """Byte-seconds wasted by keeping the state. ``after_s``: seconds until the session computes again."""
    return after_s * nbytes


def rebuild_waste(rebuild_s: float, nbytes: int, stalled_bytes: int) -> float:
    """Byte-seconds wasted by rebuilding the state. ``stalled_bytes``: of the sessions that wait
    meanwhile."""
    return rebuild_s * (nbytes + stalled_bytes)


def may_rebuild(session: SessionRecord, policy: MemoryPolicy, after_s: float, stalled_bytes: int) -> bool:
    """Return whether the session's state may be dropped, its client having said that it can rebuild it."""
    if policy.recompute == "never" or session.rebuild_s is None:
        return False
    if policy.recompute == "always":
        return True
    nbytes = session.total_bytes
    return rebuild_waste(session.rebuild_s, nbytes, stalled_bytes) < keep_waste(after_s, nbytes)
