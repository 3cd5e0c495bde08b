"""Whose turn it is: Fair Tree (Cox, Morrison: Slurm, 2014; slurm.schedmd.com/fair_tree.html).

Siblings are compared by level fairness, shares over usage, and only with each other; the tree is walked depth
first, the best sibling first, and a user's place in that walk is his rank. So nobody's rank depends on the
precision of a product, and it can be explained: find the lowest common ancestor, compare the level just
below it. We hold usage over weight, which is the inverse up to a factor common to siblings: the lowest first.

Ties, as documented: users that tie share a rank; the children of accounts that tie are merged and compared as
if they were siblings. A user that ties with accounts comes before all below them; at Slurm he shares the rank
of the best of those, which may be an account that asks for nothing, and then decides between others."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from djinn_lab.jobs.fairness.account import Account


def fair_order(root: Account, among: Container[Account] | None = None) -> Iterator[list[Account]]:
    """Leaves in groups of equal rank, the first that is due first. Lazy: who looks at the first few groups
    pays for those. Not to be used on after anything was charged. ``among``: leaves, and all accounts above
    them; groups without any of these may be left out."""
    return _walk(root.ordered, among)


def _walk(ordered: list[Account], among: Container[Account] | None) -> Iterator[list[Account]]:
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


def _tied(accounts: list[Account]) -> Iterator[list[Account]]:
    users = [account for account in accounts if account.leaf]
    merged = [child for account in accounts for child in account.children.values()]
    merged.sort(key=lambda account: (account.level, account.path))
    if users:
        yield users
    yield from _walk(merged, None)


def ranks(groups: Iterable[list[Account]]) -> dict[str, int]:
    """By leaf, from 1; after a tie of n the next rank is n higher."""
    found: dict[str, int] = {}
    for group in groups:
        rank = len(found) + 1
        for leaf in group:
            found[leaf.path] = rank
    return found
