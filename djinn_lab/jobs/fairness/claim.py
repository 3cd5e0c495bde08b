"""How one account stands against others, for a job that it would like to start."""

from __future__ import annotations

from collections.abc import Callable

from djinn_lab.jobs.fairness.account import Account, sides
from djinn_lab.jobs.fairness.amounts import Amounts

NOTHING = Amounts()


class Claim:
    """``account`` would be charged ``gains``. Levels are compared below the lowest common ancestor, and told
    in seconds: of the whole pool's (dominant) resource, per weight."""

    __slots__ = ("_account", "_after", "_gains", "_known", "_leveled", "_scale")

    def __init__(
        self, account: Account, gains: Amounts, leveled: Callable[[Account, Amounts], float], scale: float
    ) -> None:
        """``leveled``: an account's level with something more charged; ``scale``: device-seconds per
        level."""
        self._account, self._gains = account, gains
        self._leveled, self._scale = leveled, scale
        self._after: dict[Account, float] = {}
        self._known: dict[Account, float] = {}

    def behind_s(self, other: Account, gives_back: Amounts = NOTHING) -> float:
        """By how much it would still be better entitled than ``other`` after both charges; 0 for itself. What
        is given back only makes it less."""
        found = sides(self._account, other)
        if found is None:
            return 0.0
        mine, theirs = found
        if gives_back is NOTHING and theirs in self._known:
            return self._known[theirs]
        after = self._after.get(mine)
        if after is None:
            after = self._after[mine] = self._leveled(mine, self._gains)
        before = theirs.level
        if gives_back is not NOTHING:
            before = self._leveled(theirs, Amounts(*(-amount for amount in gives_back)))
        behind_s = (before - after) * self._scale
        if gives_back is NOTHING:
            self._known[theirs] = behind_s
        return behind_s
