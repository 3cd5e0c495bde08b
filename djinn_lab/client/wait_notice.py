"""Says once why a cell waits, where nothing else shows it: in scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic

from djinn_lab.client.report import WAITING_STATES
from djinn_lab.protocol.messages import JobUpdate

SAY_AFTER_S = 10.0


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class WaitNotice:
    """Of one session. ``quiet``: it says nothing."""

    def __init__(
        self,
        quiet: bool = False,
        now_s: Callable[[], float] = monotonic,
        say: Callable[[str], None] = _print,
    ) -> None:
        self._quiet, self._now_s, self._say = quiet, now_s, say
        self._waits: JobUpdate | None = None
        self._since_s = 0.0
        self._said = ""

    def on_update(self, update: JobUpdate) -> None:
        if update.state not in WAITING_STATES or not update.reason:
            self._waits = None
            return
        if self._waits is None or self._waits.job != update.job:
            self._since_s = self._now_s()
        self._waits = update

    def tick(self) -> None:
        """Time has passed."""
        waits = self._waits
        if self._quiet or waits is None or waits.job == self._said:
            return
        if self._now_s() - self._since_s > SAY_AFTER_S:
            self._said = waits.job
            self._say(f"A cell waits: {waits.reason} (djinn-lab why {waits.job[:8]})")
