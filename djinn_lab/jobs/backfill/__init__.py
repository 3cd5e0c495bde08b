"""Backfilling: which requests may start before one that is ahead, without making it wait longer."""

from djinn_lab.jobs.backfill.profile import AvailabilityProfile, Ending, Slot

__all__ = ["AvailabilityProfile", "Ending", "Slot"]
