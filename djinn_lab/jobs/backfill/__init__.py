"""Who may pass a request that waits for room, without making it wait longer."""

from djinn_lab.jobs.backfill.passing import Backfilled, Reserved, Wish, backfill
from djinn_lab.jobs.backfill.profile import Ending, Profile, Slot

__all__ = ["Backfilled", "Ending", "Profile", "Reserved", "Slot", "Wish", "backfill"]
