"""Which account is next: Fair Tree (Cox, Morrison: Slurm, 2014; slurm.schedmd.com/fair_tree.html); and how
even usage is.

Siblings are compared by level fairness, shares over usage, and only with each other. The tree is walked
depth first, the best sibling first, and a user's place in that walk is the user's rank. So no rank depends
on the precision of a product, and each can be explained: find the lowest common ancestor, compare the
level just below it. Here usage over weight is compared, the inverse up to a factor common to siblings: the
lowest first.

Ties, as documented: users that tie share a rank; the children of accounts that tie are merged and compared
as if they were siblings. A user that ties with accounts comes before all below them. In Slurm such a user
shares the rank of the best of those, possibly of an account that asks for nothing and then decides between
others."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from djinn_lab.jobs.fairness.account import AccountNode


def fair_order(root: AccountNode, among: Container[AccountNode] | None = None) -> Iterator[list[AccountNode]]:
    """Yield leaves in groups of equal rank, the first that is due first. Lazy: a caller that reads the
    first few groups pays for those. Not to be continued after a charge. ``among``: leaves, and all
    accounts above them; groups without any of these may be left out."""
    return _walk(root.ordered, among)


def _walk(ordered: list[AccountNode], among: Container[AccountNode] | None) -> Iterator[list[AccountNode]]:
    index, count = 0, len(ordered)
    while index < count:
        first = ordered[index]
        index += 1
        if index == count or ordered[index].level != first.level:
            if among is not None and first not in among:
                continue
            if first.children:
                yield from _walk(first.ordered, among)
            elif first.leaf:
                yield [first]
            continue
        tied = [first]
        while index < count and ordered[index].level == first.level:
            tied.append(ordered[index])
            index += 1
        if among is None or any(account in among for account in tied):
            yield from _tied(tied)


def _tied(accounts: list[AccountNode]) -> Iterator[list[AccountNode]]:
    users = [account for account in accounts if account.leaf]
    merged = [child for account in accounts for child in account.children.values()]
    merged.sort(key=lambda account: (account.level, account.path))
    if users:
        yield users
    yield from _walk(merged, None)


def ranks(groups: Iterable[list[AccountNode]]) -> dict[str, int]:
    """Return the rank of each leaf, from 1; after a tie of n the next rank is n higher."""
    found: dict[str, int] = {}
    for group in groups:
        rank = len(found) + 1
        for leaf in group:
            found[leaf.path] = rank
    return found


def jain(amounts: Iterable[float]) -> float:
    """Return Jain's index, (sum x)^2 / (n sum x^2): 1 when all have the same, 1/n when one has everything.
    Amounts are those of users, each divided by its weight or by what it asked for. Nothing at all is even:
    1. (Jain, Chiu, Hawe: A quantitative measure of fairness, DEC-TR-301, 1984.)"""
    found = list(amounts)
    largest = max(found, default=0.0)
    if largest <= 0:
        return 1.0
    scaled = [amount / largest for amount in found]
    return sum(scaled) ** 2 / (len(scaled) * sum(one * one for one in scaled))
