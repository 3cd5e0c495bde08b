"""How much of a cell is sent ahead while it is still being recorded, learnt from what ran before."""

from __future__ import annotations

import math

STREAM_NODES = 2048
"""The first part, while nothing is known of the pool's speed; and the longest that is waited for."""
STREAM_NODES_MIN = 128
PART_S = 0.05
"""Seconds that the device should be busy with a part. Many times as long as a message takes."""
KEPT_RATIO = 3
"""A length stays as it is while it is too long by less."""

EARLY_NODES_MIN = 64
"""Nodes between two cuts that are worth two messages."""
EARLY_GAIN_S = 0.002
"""An early part must save more; it costs half a millisecond here and more on the pool."""
EARLY_SHARE_MIN = 1 / 16
SHARE_KEPT_RATIO = 2.5
"""A share stays as it is while it is too large by less."""
ALIKE = 0.1
"""Iterations whose nodes differ by a larger part are not those of one loop."""


class PartLength:
    """How long a part that is sent ahead should be. ``nodes``: how many pending nodes are worth a message,
    from what the device took for those before; in powers of two, and changed rarely, so that equal cells are
    mostly cut into equal parts, which need not be sent again."""

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed is not None
        self.nodes = STREAM_NODES if fixed is None else fixed

    def learn(self, executed: int, run_s: float) -> None:
        """Note that ``executed`` nodes took the device ``run_s`` seconds."""
        if self._fixed or executed < STREAM_NODES_MIN or run_s <= 0:
            return
        wanted = PART_S * executed / run_s
        if self.nodes / KEPT_RATIO < wanted <= self.nodes:
            return
        self.nodes = STREAM_NODES_MIN
        while self.nodes < min(wanted, STREAM_NODES):
            self.nodes *= 2


class CutRhythm:
    """Predict after how many nodes a loop that needs a value in each iteration is cut next. Its iterations
    are sent in two parts then, so that the device computes the first while the cell records the second.

    Recording takes C seconds and running R. A first part with a share of C / (C + R) of the nodes keeps the
    device busy until the rest comes; it saves that share of R. The share is a power of two, and its nodes
    are changed rarely: equal iterations should make equal parts. ``early``: nodes of the next part, None
    where it is not the first after a cut, or where there is no rhythm, or too little to gain."""

    def __init__(self) -> None:
        self.early: int | None = None
        self._first = 0
        """Nodes of first parts, 0 for none."""
        self._share = 0.0
        self._usual = 0
        """Nodes between the last two cuts."""
        self.begin(0.0)

    def begin(self, now_s: float) -> None:
        """Note that a cell begins to record, or resumes."""
        self._began_s = now_s
        self._nodes, self._waited_s, self._run_s = 0, 0.0, 0.0

    def took(self, nodes: int) -> None:
        """Note that so many pending nodes were taken to be sent."""
        self._nodes += nodes
        self.skip()

    def skip(self) -> None:
        """Send no part early until the next cut."""
        self.early = None

    def waited(self, seconds: float) -> None:
        """Note that the cell waited for the pool, and did not record."""
        self._waited_s += seconds

    def ran(self, seconds: float) -> None:
        """Note that the device computed so long."""
        self._run_s += seconds

    def cut(self, recorded_until_s: float, now_s: float) -> None:
        """Note that the cell waited for a value since ``recorded_until_s``, and resumes."""
        record_s = max(0.0, recorded_until_s - self._began_s - self._waited_s)
        alike = abs(self._nodes - self._usual) <= ALIKE * self._usual  # views are named anew in a second part
        if alike and self._nodes >= EARLY_NODES_MIN and record_s > 0 and self._run_s > 0:
            self._learn(record_s / (record_s + self._run_s), self._run_s)
        elif self._nodes:
            self._first, self._usual = 0, self._nodes
        self.early = self._first or None
        self.begin(now_s)

    def _learn(self, share: float, run_s: float) -> None:
        if share * run_s < (EARLY_GAIN_S / 2 if self._first else EARLY_GAIN_S):
            self._first = 0
        elif not self._first or not share <= self._share <= SHARE_KEPT_RATIO * share:
            self._share = min(0.5, max(EARLY_SHARE_MIN, 2.0 ** math.ceil(math.log2(share))))
            self._first = math.ceil(self._share * self._usual)
