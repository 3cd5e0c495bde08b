"""One account of the share tree: its weight, and the usage of it and all accounts below."""

from __future__ import annotations

from operator import attrgetter

from djinn_lab.jobs.fairness.limits import NO_LIMITS, Limits

OWN = "."
"""The child that stands for what is charged to an account that has other accounts below it."""

_by_level = attrgetter("level", "path")


class AccountNode:
    """A node of the tree. ``device_s``, ``memory_byte_s`` and ``transfer_bytes`` are stored forward from
    the landmark. ``level``: dominant usage over weight, stored the same way; the lowest of the siblings is
    next. ``account``: the path that people use. ``ancestry``: the accounts from below the root down to
    this one."""

    __slots__ = (
        "_ordered",
        "account",
        "ancestry",
        "children",
        "device_s",
        "leaf",
        "level",
        "limits",
        "memory_byte_s",
        "min_runtime_s",
        "name",
        "parent",
        "path",
        "transfer_bytes",
        "used",
        "weight",
    )

    def __init__(self, name: str, parent: AccountNode | None) -> None:
        self.name = name
        self.parent = parent
        self.path: str = name if parent is None or parent.parent is None else f"{parent.path}/{name}"
        self.account: str = self.path.removesuffix(f"/{OWN}")
        self.ancestry: tuple[AccountNode, ...] = () if parent is None else (*parent.ancestry, self)
        self.children: dict[str, AccountNode] = {}
        self.leaf = False
        self.weight = 1.0
        self.limits: Limits = NO_LIMITS
        self.min_runtime_s: float | None = None
        self.device_s = 0.0
        self.memory_byte_s = 0.0
        self.transfer_bytes = 0.0
        self.level = 0.0
        self.used = (0, 0, 0)
        self._ordered: list[AccountNode] | None = []

    @property
    def usage(self) -> tuple[float, float, float]:
        return self.device_s, self.memory_byte_s, self.transfer_bytes

    @property
    def blank(self) -> bool:
        """Return whether nothing was set for the account and nothing was used."""
        is_set = self.weight != 1.0 or self.limits != NO_LIMITS or self.min_runtime_s is not None
        return not (is_set or any(self.usage) or any(self.used))

    @property
    def charged(self) -> bool:
        """Return whether something has been charged to the account itself, not to accounts below it."""
        return self.leaf and (any(self.usage) or any(self.used))

    def child(self, name: str) -> AccountNode:
        """Return the child, new when there is none."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = AccountNode(name, self)
            self._ordered = None
        return found

    def moved(self) -> None:
        """Mark the order of the siblings as outdated, since its level changed."""
        if self.parent is not None:
            self.parent._ordered = None

    @property
    def ordered(self) -> list[AccountNode]:
        """Children by level, the one with the least usage for its weight first."""
        if self._ordered is None:
            self._ordered = sorted(self.children.values(), key=_by_level)
        return self._ordered


def sides(one: AccountNode, other: AccountNode) -> tuple[AccountNode, AccountNode] | None:
    """Return, below their lowest common ancestor, the child on each account's side; None for one and the
    same."""
    if one.ancestry[0] is not other.ancestry[0]:
        return one.ancestry[0], other.ancestry[0]
    for mine, theirs in zip(one.ancestry, other.ancestry, strict=False):
        if mine is not theirs:
            return mine, theirs
    assert one is other, "a leaf has no account below it"
    return None
