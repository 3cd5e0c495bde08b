"""Guarantees that exceed the devices: allowed, since seldom all accounts want theirs at once, but
reported. So are guarantees above a limit of an ancestor, which can never be had in full, and those that
exceed the devices which are neither cordoned nor down."""

from __future__ import annotations

import math
from collections.abc import Iterator

from djinn_lab.jobs.fairness.account import AccountNode


def overcommitted(account: AccountNode, devices: float, away: float = 0.0) -> str:
    """Return sentences on the guarantees of this account and its siblings, and of those below it.
    ``devices``: of the pool, 0 as long as that is not known; ``away``: of these, cordoned or down."""
    levels = [account]
    if account.parent is not None and account.limits.devices_guaranteed is not None:
        levels.insert(0, account.parent)
    together = (_of_children(level, devices, away) for level in levels)
    return " ".join(filter(None, (_out_of_reach(account), *together)))


def short_of_devices(root: AccountNode, devices: float, away: float) -> str:
    """Return a sentence where the pool's devices that are neither cordoned nor down are fewer than are
    guaranteed; empty where none is."""
    return _of_children(root, devices, away) if away else ""


def _of_children(above: AccountNode, devices: float, away: float) -> str:
    total = sum(_guaranteed(child) for child in above.children.values())
    own = above.limits.devices_guaranteed
    most = devices - away if own is None else own
    if total <= most or (own is None and not devices):
        return ""
    whose = f"Accounts below {above.account}" if above.account else "Accounts of the pool"
    has = f"the pool has {devices:g}" if own is None else f"{above.account} itself {own:g}"
    if own is None and away:
        has += f", of which {away:g} {'is' if away == 1 else 'are'} cordoned or down"
    numbers = f"{total:g} devices together, and {has}"
    return f"{whose} are guaranteed {numbers}: not all can have theirs at once."


def _out_of_reach(account: AccountNode) -> str:
    """Report the account's own guarantee where a limit above it is lower; else the largest below it that
    exceeds its limits, and how many others do."""
    lowest = min(_ancestors(account), key=_limit, default=account)
    if _limit(lowest) < _guaranteed(account):
        return _never(account, lowest)
    most = _limit(account)
    missing = [one for one in _below(account) if _guaranteed(one) > most]
    if not missing:
        return ""
    first = max(missing, key=lambda one: (_guaranteed(one), one.path))
    others = len(missing) - 1
    more = f" So it is with {others} more account{'s' if others > 1 else ''} below it." if others else ""
    return _never(first, account) + more


def _never(account: AccountNode, above: AccountNode) -> str:
    most, whose = _limit(above), above.account or "the pool"
    said = f"{account.account} is guaranteed {_guaranteed(account):g} devices"
    if above.limits.devices_max == most:
        return f"{said}, and {whose} may have {most:g} at once: it can never have all of its guarantee."
    return f"{said}, and the soft limit of {whose} is {most:g}: no job is preempted for more than that."


def _limit(account: AccountNode) -> float:
    """Return the lower of both limits, infinite where there is none."""
    limits = (account.limits.devices_max, account.limits.devices_soft)
    return min((one for one in limits if one is not None), default=math.inf)


def _guaranteed(account: AccountNode) -> float:
    return account.limits.devices_guaranteed or 0.0


def _ancestors(account: AccountNode) -> Iterator[AccountNode]:
    """Yield the ancestors, the nearest first."""
    above = account.parent
    while above is not None:
        yield above
        above = above.parent


def _below(account: AccountNode) -> Iterator[AccountNode]:
    for child in account.children.values():
        yield child
        yield from _below(child)
