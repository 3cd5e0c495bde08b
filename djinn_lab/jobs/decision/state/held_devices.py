"""Devices that accounts hold, as guarantees count them. Kept from event to event, so that a decision need
not count them anew. :class:`~.guarantees.Guarantees` reads it, and defines what counts."""

from __future__ import annotations

from collections.abc import Mapping

from djinn_lab.jobs.request import Request
from djinn_lab.jobs.states import RANKS

BEST_EFFORT_RANK = RANKS["SCAVENGER"]

AccountPath = tuple[str, ...]
"""An account and every account above it, the pool (``""``) too."""


class HeldDevices:
    """Devices held by account. ``milli``: thousandths of devices by account, no entry for none. ``below``:
    accounts that hold less than they are guaranteed. After :meth:`checkpoint` changes are on trial."""

    __slots__ = ("_guaranteed", "_marks", "_undo", "below", "milli")

    def __init__(self) -> None:
        self.milli: dict[str, int] = {}
        self.below: set[str] = set()
        self._guaranteed: Mapping[str, float] = {}
        self._undo: list[tuple[AccountPath, int]] = []
        self._marks = 0

    def follow(self, guaranteed: Mapping[str, float]) -> None:
        """Set what accounts are guaranteed, in thousandths: a new mapping whenever that has changed."""
        if guaranteed is not self._guaranteed:
            self._guaranteed = guaranteed
            self.below = {name for name, milli in guaranteed.items() if self.milli.get(name, 0) < milli}

    def add(self, path: AccountPath, milli: int) -> None:
        """Add to what these accounts hold; ``milli`` below 0 subtracts."""
        for name in path:
            held = self.milli[name] = self.milli.get(name, 0) + milli
            guaranteed = self._guaranteed.get(name)
            if guaranteed is not None:
                if held < guaranteed:
                    self.below.add(name)
                else:
                    self.below.discard(name)
        if self._marks:
            self._undo.append((path, milli))

    def count(self, path: AccountPath, request: Request, members: int) -> None:
        """Count so many members of the request; fewer when they are below 0."""
        if not best_effort(request):
            self.add(path, members * request.demand.device_milli)

    def checkpoint(self) -> int:
        """Return a mark to roll back to."""
        self._marks += 1
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Restore everything as it was at the mark."""
        assert self._marks, "no trial is on"
        self._marks -= 1
        marks, self._marks = self._marks, 0
        while len(self._undo) > mark:
            path, milli = self._undo.pop()
            self.add(path, -milli)
        self._marks = marks


def best_effort(request: Request) -> bool:
    """Return whether the request neither has a guarantee nor uses one up."""
    return request.rank >= BEST_EFFORT_RANK
