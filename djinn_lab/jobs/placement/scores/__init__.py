"""How good a node is for a request, as numbers from 0 to 1. One idea a file; none knows of the others."""

from djinn_lab.jobs.placement.scores.cost import cost
from djinn_lab.jobs.placement.scores.fit import dot_product, fit, most_loaded
from djinn_lab.jobs.placement.scores.fragmentation import Fragmentation
from djinn_lab.jobs.placement.scores.load import load
from djinn_lab.jobs.placement.scores.locality import affinity, locality
from djinn_lab.jobs.placement.scores.seat import Score, Seat

__all__ = [
    "Fragmentation",
    "Score",
    "Seat",
    "affinity",
    "cost",
    "dot_product",
    "fit",
    "load",
    "locality",
    "most_loaded",
]
