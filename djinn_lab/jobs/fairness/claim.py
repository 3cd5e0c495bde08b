"""How one account stands against others, for a job that it would like to start."""

from __future__ import annotations

import math
from collections.abc import Callable

from djinn_lab.jobs.fairness.account import Account, sides
from djinn_lab.jobs.fairness.amounts import Amounts

Leveled = Callable[[Account, Amounts, float], float]
Spare = Callable[[Account, float], float]


class Claim:
    """``account`` would be charged ``gains``. Levels are compared below the lowest common ancestor, and told
    in seconds: of the whole pool's (dominant) resource, per weight."""

    __slots__ = (
        "_account",
        "_after",
        "_gains",
        "_known",
        "_leveled",
        "_scale",
        "_sides",
        "_spare",
        "_spare_device_s",
    )

    def __init__(
        self,
        account: Account,
        gains: Amounts,
        leveled: Leveled,
        spare_device_s: Spare,
        scale: float,
    ) -> None:
        """``leveled``: an account's level with something charged (1) or given back (-1); ``spare_device_s``:
        what an account can be given back and be above a level; ``scale``: device-seconds per level."""
        self._account, self._gains = account, gains
        self._leveled, self._spare_device_s, self._scale = leveled, spare_device_s, scale
        self._after: dict[Account, float] = {}
        self._spare: dict[Account, float] = {}
        self._known: dict[Account, float] = {}
        self._sides: dict[Account, tuple[float, Account]] = {}

    def behind_s(self, other: Account) -> float:
        """By how much it would still be better entitled than ``other`` after its charge; 0 for itself."""
        theirs = other.line[0]
        known = self._known.get(theirs)
        if known is not None:
            return known
        found = sides(self._account, other)
        if found is None:
            return 0.0
        mine, theirs = found
        known = self._known.get(theirs)
        if known is None:
            known = self._known[theirs] = (theirs.level - self._mine(mine)) * self._scale
        return known

    def spare_device_s(self, other: Account) -> float:
        """Once it is given back more device-seconds than this, ``other`` is the better entitled one; infinite
        when it is not by device time that it is ahead."""
        known = self._spare.get(other)
        if known is None:
            found = sides(self._account, other)
            known = math.inf if found is None else self._spare_device_s(found[1], self._mine(found[0]))
            self._spare[other] = known
        return known

    def still_behind_s(self, other: Account, gives_back: Amounts) -> float:
        """The same, when ``other`` is given something back: never more."""
        found = self._sides.get(other)
        if found is None:
            pair = sides(self._account, other)
            if pair is None:
                return 0.0
            found = self._sides[other] = (self._mine(pair[0]), pair[1])
        after, theirs = found
        return (self._leveled(theirs, gives_back, -1.0) - after) * self._scale

    def _mine(self, mine: Account) -> float:
        """Its level after its charge."""
        after = self._after.get(mine)
        if after is None:
            after = self._after[mine] = self._leveled(mine, self._gains, 1.0)
        return after
