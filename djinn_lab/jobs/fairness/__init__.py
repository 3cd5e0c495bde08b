"""Who has had how much of the pool, and whose turn it is."""

from djinn_lab.jobs.fairness.amounts import Amounts, Capacity
from djinn_lab.jobs.fairness.jain import jain
from djinn_lab.jobs.fairness.limits import LimitHit, Limits
from djinn_lab.jobs.fairness.state import AccountState, AccountView, Charge, ShareSettings, ShareState
from djinn_lab.jobs.fairness.tree import ShareTree

__all__ = [
    "AccountState",
    "AccountView",
    "Amounts",
    "Capacity",
    "Charge",
    "LimitHit",
    "Limits",
    "ShareSettings",
    "ShareState",
    "ShareTree",
    "jain",
]
