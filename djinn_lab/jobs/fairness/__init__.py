"""Fair share: usage of accounts, and which account is next."""

from djinn_lab.jobs.fairness.fair_tree import jain
from djinn_lab.jobs.fairness.limits import LimitHit, Limits
from djinn_lab.jobs.fairness.state import (
    AccountState,
    AccountView,
    Amounts,
    Capacity,
    Charge,
    ShareSettings,
    ShareState,
)
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
