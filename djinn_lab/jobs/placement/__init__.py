"""What is free where, which nodes a request may have, and which of them is best."""

from djinn_lab.jobs.placement.answers import Constraint, EverFits, Misfit, Placed
from djinn_lab.jobs.placement.free import Free
from djinn_lab.jobs.placement.room import Room
from djinn_lab.jobs.placement.scoring import DEFAULT, SCORINGS, Scoring, Term, fragmentation

__all__ = [
    "DEFAULT",
    "SCORINGS",
    "Constraint",
    "EverFits",
    "Free",
    "Misfit",
    "Placed",
    "Room",
    "Scoring",
    "Term",
    "fragmentation",
]
