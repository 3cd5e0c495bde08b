"""Who may pass a request that waits for room, without making it wait longer."""

from djinn_lab.jobs.backfill.profile import Ending, Profile, Slot

__all__ = ["Ending", "Profile", "Slot"]
