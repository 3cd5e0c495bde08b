"""One account of the share tree: its weight, and what it and everybody below it have used."""

from __future__ import annotations

from operator import attrgetter

from djinn_lab.jobs.fairness.limits import NO_LIMITS, Limits

OWN = "."
"""The child that stands for what is charged to an account that has others below it."""

_by_level = attrgetter("level", "path")


class Account:
    """A node of the tree. ``device_s``, ``memory_byte_s`` and ``transfer_bytes`` are stored forward from the
    landmark. ``level``: dominant usage over weight, stored the same way; the lowest of the siblings is next.
    ``account``:
    the path that people know it by. ``line``: the accounts from below the root down to this one."""

    __slots__ = (
        "_ordered",
        "account",
        "children",
        "device_s",
        "leaf",
        "level",
        "limits",
        "line",
        "memory_byte_s",
        "min_runtime_s",
        "name",
        "parent",
        "path",
        "transfer_bytes",
        "used",
        "weight",
    )

    def __init__(self, name: str, parent: Account | None) -> None:
        self.name = name
        self.parent = parent
        self.path: str = name if parent is None or parent.parent is None else f"{parent.path}/{name}"
        self.account: str = self.path.removesuffix(f"/{OWN}")
        self.line: tuple[Account, ...] = () if parent is None else (*parent.line, self)
        self.children: dict[str, Account] = {}
        self.leaf = False
        self.weight = 1.0
        self.limits: Limits = NO_LIMITS
        self.min_runtime_s: float | None = None
        self.device_s = 0.0
        self.memory_byte_s = 0.0
        self.transfer_bytes = 0.0
        self.level = 0.0
        self.used = (0, 0, 0)
        self._ordered: list[Account] | None = []

    @property
    def usage(self) -> tuple[float, float, float]:
        return self.device_s, self.memory_byte_s, self.transfer_bytes

    @property
    def blank(self) -> bool:
        """Nobody has said or used anything."""
        told = self.weight != 1.0 or self.limits != NO_LIMITS or self.min_runtime_s is not None
        return not (told or any(self.usage) or any(self.used))

    @property
    def charged(self) -> bool:
        """Has something been charged to it itself, not to others below it?"""
        return self.leaf and (any(self.usage) or any(self.used))

    def child(self, name: str) -> Account:
        """The child, new when there is none."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = Account(name, self)
            self._ordered = None
        return found

    def moved(self) -> None:
        """Its level is another; its place among the siblings may be."""
        if self.parent is not None:
            self.parent._ordered = None

    @property
    def ordered(self) -> list[Account]:
        """Children by level, the one with the least usage for its weight first."""
        if self._ordered is None:
            self._ordered = sorted(self.children.values(), key=_by_level)
        return self._ordered


def sides(one: Account, other: Account) -> tuple[Account, Account] | None:
    """Below their lowest common ancestor, the child on each one's side; None for one and the same."""
    if one.line[0] is not other.line[0]:
        return one.line[0], other.line[0]
    for mine, theirs in zip(one.line, other.line, strict=False):
        if mine is not theirs:
            return mine, theirs
    assert one is other, "a leaf has nobody below it"
    return None
