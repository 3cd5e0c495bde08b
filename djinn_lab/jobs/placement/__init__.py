"""Placement: free capacity, the nodes that a request may have, and scores to choose among them."""

from djinn_lab.jobs.placement.feasibility import EverFits, Misfit, Placed
from djinn_lab.jobs.placement.free import Free
from djinn_lab.jobs.placement.free_capacity import FreeCapacity
from djinn_lab.jobs.placement.scoring import DEFAULT, SCORINGS, Scoring, Term, fragmentation

__all__ = [
    "DEFAULT",
    "SCORINGS",
    "EverFits",
    "Free",
    "FreeCapacity",
    "Misfit",
    "Placed",
    "Scoring",
    "Term",
    "fragmentation",
]
