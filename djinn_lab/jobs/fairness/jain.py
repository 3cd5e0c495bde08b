"""How even a division is (Jain, Chiu, Hawe: A quantitative measure of fairness, DEC-TR-301, 1984)."""

from __future__ import annotations

from collections.abc import Iterable


def jain(amounts: Iterable[float]) -> float:
    """(sum x)^2 / (n sum x^2): 1 when all have the same, 1/n when one has everything. Amounts are those of
    users, each divided by its weight or by what it asked for. Nothing at all is even: 1."""
    found = list(amounts)
    largest = max(found, default=0.0)
    if largest <= 0:
        return 1.0
    scaled = [amount / largest for amount in found]
    return sum(scaled) ** 2 / (len(scaled) * sum(one * one for one in scaled))
