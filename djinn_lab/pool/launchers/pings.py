"""When a worker counts as silent, and when as hung."""

from __future__ import annotations

from enum import StrEnum

PING_EVERY_S = 2.0
PINGS_BEFORE_SILENT = 5
"""A worker that did not answer so many pings in a row is silent: no new work goes to it."""
PINGS_BEFORE_HUNG = 60
"""One that did not answer so many is hung: it is ended, and another is started."""
PINGS_BEFORE_HUNG_BESIDE = 20
"""So many where another worker of the device answers. Then the machine is well, and the cells of other groups
may wait for the device that the silent worker's cell holds."""


class Liveness(StrEnum):
    SILENT = "silent"
    HEARD = "heard"
    HUNG = "hung"


class Pings:
    """Count the pings that one worker did not answer. Time does not count: a pool that was stopped itself
    sends no pings meanwhile, and takes no worker for silent when it continues."""

    def __init__(self) -> None:
        self._unanswered = 0
        self._hung = False

    @property
    def silent(self) -> bool:
        return self._unanswered >= PINGS_BEFORE_SILENT

    def pinged(self, beside: bool) -> Liveness | None:
        """Note a ping; return what the unanswered ones before it mean, if that is new. ``beside``: another
        worker of the device answers."""
        self._unanswered += 1
        if self._unanswered == PINGS_BEFORE_SILENT:
            return Liveness.SILENT
        most = PINGS_BEFORE_HUNG_BESIDE if beside else PINGS_BEFORE_HUNG
        if self._hung or self._unanswered < most:
            return None
        self._hung = True
        return Liveness.HUNG

    def heard(self) -> Liveness | None:
        """Note any message of the worker; return whether it was silent before."""
        was_silent = self.silent
        self._unanswered = 0
        return Liveness.HEARD if was_silent else None
