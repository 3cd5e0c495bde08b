"""How long a part of a cell should be before it is sent ahead."""

from __future__ import annotations

STREAM_NODES = 2048
"""The first part, while nothing is known of the pool's speed; and the longest that is waited for."""
STREAM_NODES_MIN = 128
STREAM_NODES_MAX = 50_000
"""With so many pending, the cell waits for a busy pool."""
WHOLE_NODES_MAX = 200_000
"""So much of a cell that is to be sent whole is gathered; a pool looks for branches in a little more."""
PART_S = 0.05
"""Seconds that the device should be busy with a part. Many times as long as it then waits for the next."""

KEPT_RATIO = 3
"""A length stays as it is while it is too long by less."""


class PartLength:
    """``nodes``: how many pending nodes are worth a message, from what the device took for those before; in
    powers of two, and changed rarely, so that equal cells are mostly cut into equal parts, which need not be
    sent again."""

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed is not None
        self.nodes = STREAM_NODES if fixed is None else fixed

    def learn(self, executed: int, run_s: float) -> None:
        """``executed`` nodes took the device ``run_s`` seconds."""
        if self._fixed or executed < STREAM_NODES_MIN or run_s <= 0:
            return
        wanted = PART_S * executed / run_s
        if self.nodes / KEPT_RATIO < wanted <= self.nodes:
            return
        self.nodes = STREAM_NODES_MIN
        while self.nodes < min(wanted, STREAM_NODES):
            self.nodes *= 2
