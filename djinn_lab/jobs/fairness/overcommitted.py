"""Guarantees that are more than there is: allowed, since seldom all want theirs at once, but told."""

from __future__ import annotations

from djinn_lab.jobs.fairness.account import Account


def overcommitted(account: Account, devices: float) -> str:
    """Sentences on the guarantees of this account and those beside it, and of those below it; ``devices``:
    of the pool, 0 as long as that is not known."""
    levels = [account]
    if account.parent is not None and account.limits.devices_guaranteed is not None:
        levels.insert(0, account.parent)
    return " ".join(filter(None, (_of_children(level, devices) for level in levels)))


def _of_children(above: Account, devices: float) -> str:
    total = sum(child.limits.devices_guaranteed or 0.0 for child in above.children.values())
    own = above.limits.devices_guaranteed
    most = devices if own is None else own
    if total <= most or (own is None and not devices):
        return ""
    who = f"Accounts below {above.account}" if above.account else "Accounts of the pool"
    has = "the pool has" if own is None else f"{above.account} itself"
    numbers = f"{total:g} devices together, and {has} {most:g}"
    return f"{who} are guaranteed {numbers}: not all can have theirs at once."
