"""Devices that accounts hold, as guarantees count them: kept from event to event, so that a decision need not
count them anew. :class:`~.guarantees.Standing` looks at it, and says what counts."""

from __future__ import annotations

from collections.abc import Mapping

from djinn_lab.jobs.request import Request
from djinn_lab.jobs.states import RANKS

BEST_EFFORT_RANK = RANKS["SCAVENGER"]

Line = tuple[str, ...]
"""An account and everybody above it, the pool (``""``) too."""


class Held:
    """``milli``: thousandths of devices by account; who is not named holds none. ``short``: accounts that
    hold less than they are guaranteed. After :meth:`checkpoint` it is counted on trial."""

    __slots__ = ("_guaranteed", "_marks", "_undo", "milli", "short")

    def __init__(self) -> None:
        self.milli: dict[str, int] = {}
        self.short: set[str] = set()
        self._guaranteed: Mapping[str, float] = {}
        self._undo: list[tuple[Line, int]] = []
        self._marks = 0

    def follow(self, guaranteed: Mapping[str, float]) -> None:
        """What accounts are guaranteed, in thousandths: a new mapping whenever that is another."""
        if guaranteed is not self._guaranteed:
            self._guaranteed = guaranteed
            self.short = {name for name, milli in guaranteed.items() if self.milli.get(name, 0) < milli}

    def add(self, line: Line, milli: int) -> None:
        """They hold so many more from now on; fewer when it is below 0."""
        for name in line:
            held = self.milli[name] = self.milli.get(name, 0) + milli
            guaranteed = self._guaranteed.get(name)
            if guaranteed is not None:
                if held < guaranteed:
                    self.short.add(name)
                else:
                    self.short.discard(name)
        if self._marks:
            self._undo.append((line, milli))

    def count(self, line: Line, request: Request, members: int) -> None:
        """It has so many members from now on; so many fewer when they are below 0."""
        if not best_effort(request):
            self.add(line, members * request.demand.device_milli)

    def checkpoint(self) -> int:
        """A mark to come back to."""
        self._marks += 1
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Everything is as it was at the mark."""
        assert self._marks, "no trial is on"
        self._marks -= 1
        marks, self._marks = self._marks, 0
        while len(self._undo) > mark:
            line, milli = self._undo.pop()
            self.add(line, -milli)
        self._marks = marks


def best_effort(request: Request) -> bool:
    """It neither has a guarantee nor uses it up."""
    return request.rank >= BEST_EFFORT_RANK
