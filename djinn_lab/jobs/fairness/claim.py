"""How one account stands against others, for a job that it would like to start."""

from __future__ import annotations

from collections.abc import Callable

from djinn_lab.jobs.fairness.account import Account, sides
from djinn_lab.jobs.fairness.amounts import Amounts


class Claim:
    """``account`` would be charged ``gains``. Levels are compared below the lowest common ancestor, and told
    in seconds: of the whole pool's (dominant) resource, per weight."""

    __slots__ = ("_account", "_after", "_gains", "_known", "_leveled", "_scale", "_sides")

    def __init__(
        self, account: Account, gains: Amounts, leveled: Callable[[Account, Amounts], float], scale: float
    ) -> None:
        """``leveled``: an account's level with something more charged; ``scale``: device-seconds per
        level."""
        self._account, self._gains = account, gains
        self._leveled, self._scale = leveled, scale
        self._after: dict[Account, float] = {}
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

    def still_behind_s(self, other: Account, gives_back: Amounts) -> float:
        """The same, when ``other`` is given something back: never more."""
        found = self._sides.get(other)
        if found is None:
            pair = sides(self._account, other)
            if pair is None:
                return 0.0
            found = self._sides[other] = (self._mine(pair[0]), pair[1])
        after, theirs = found
        device_s, memory_byte_s, transfer_bytes = gives_back
        before = self._leveled(theirs, Amounts(-device_s, -memory_byte_s, -transfer_bytes))
        return (before - after) * self._scale

    def _mine(self, mine: Account) -> float:
        """Its level after its charge."""
        after = self._after.get(mine)
        if after is None:
            after = self._after[mine] = self._leveled(mine, self._gains)
        return after
