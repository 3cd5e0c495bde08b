"""Compare one account with others, for a job that it would like to start."""

from __future__ import annotations

import math

from djinn_lab.jobs.fairness.account import AccountNode
from djinn_lab.jobs.fairness.state import Amounts


class ShareComparison:
    """Compare one account with its rivals, as if it had been charged already. ``account`` would be charged
    ``gains``. Accounts are compared with their siblings only, so ``mine`` is always the ancestor whose
    sibling ``theirs`` is (:func:`~.account.sides`). Differences of levels are given in seconds: of the whole
    pool's (dominant) resource, per weight."""

    __slots__ = ("_after", "_factors", "_gains", "_scale", "_weight", "account")

    def __init__(
        self,
        account: AccountNode,
        gains: Amounts,
        weight: float,
        factors: tuple[float, float, float],
        window_s: float,
    ) -> None:
        """``weight``: of what is charged now; ``factors``: level per unit of each resource that is stored."""
        self.account = account
        self._gains = gains
        self._weight = weight
        self._factors = factors
        self._scale = window_s / weight
        self._after: dict[AccountNode, float] = {}

    def behind_s(self, mine: AccountNode, theirs: AccountNode) -> float:
        """Return by how much ``mine`` would still be better entitled than ``theirs`` after its charge."""
        return (theirs.level - self._after_charge(mine)) * self._scale

    def spare_device_s(self, mine: AccountNode, theirs: AccountNode) -> float:
        """Return the device-seconds above which ``theirs``, once given them back, is the better entitled
        one. Infinite when ``theirs`` is not ahead by device time."""
        by_device, by_memory, by_transfer = self._factors
        level = self._after_charge(mine) * theirs.weight
        by_others = max(theirs.memory_byte_s * by_memory, theirs.transfer_bytes * by_transfer)
        if not by_device or by_others >= level:
            return math.inf
        return (theirs.device_s - level / by_device) / self._weight

    def still_behind_s(self, mine: AccountNode, theirs: AccountNode, gives_back: Amounts) -> float:
        """Return :meth:`behind_s` when ``theirs`` is given something back: never more."""
        return (self._leveled(theirs, gives_back, -self._weight) - self._after_charge(mine)) * self._scale

    def _after_charge(self, mine: AccountNode) -> float:
        """Return the level of ``mine`` after its charge."""
        after = self._after.get(mine)
        if after is None:
            after = self._after[mine] = self._leveled(mine, self._gains, self._weight)
        return after

    def _leveled(self, node: AccountNode, more: Amounts, factor: float) -> float:
        by_device, by_memory, by_transfer = self._factors
        device_s, memory_byte_s, transfer_bytes = more
        dominant = (node.device_s + device_s * factor) * by_device
        by_byte_s = (node.memory_byte_s + memory_byte_s * factor) * by_memory
        if by_byte_s > dominant:
            dominant = by_byte_s
        moved = (node.transfer_bytes + transfer_bytes * factor) * by_transfer
        if moved > dominant:
            dominant = moved
        return dominant / node.weight if dominant > 0 else 0.0
