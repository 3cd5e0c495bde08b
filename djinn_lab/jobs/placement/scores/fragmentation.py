"""Fragmentation gradient descent: put each request where it makes the least of what is free useless.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC'23, sections 4 and 5. The fragment of a node for one typical request is what is free on devices
that this request cannot use: everything if it does not fit on the node (or wants no device), else the parts
of devices smaller than its share. A node's fragmentation is the mean over typical requests by popularity."""

from __future__ import annotations

import math
from collections.abc import Iterable

from djinn_lab.jobs.placement.free import Free, capacity, taken
from djinn_lab.jobs.placement.scores.seat import Seat
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, Demand

STEPS = 25
"""Scores are rounded down to these, so that nodes that are about as good are equal, and another score decides
between them. The authors' program rounds to 100; on their data coarser is better."""


class Fragmentation:
    """``typical``: demands with their popularity. Values are kept by what is free, as most nodes are equal
    to one seen before."""

    def __init__(self, typical: Iterable[tuple[Demand, float]]) -> None:
        self.typical = tuple(typical)
        self._known: dict[Free, float] = {}

    def __call__(self, seat: Seat) -> float:
        """Above one half where fragmentation shrinks, below where it grows, in devices."""
        after = taken(seat.free, seat.demand, seat.members)
        grown_milli = self.fragment_milli(after) - self.fragment_milli(seat.free)
        score = 1.0 / (1.0 + math.exp(grown_milli / WHOLE_DEVICE_MILLI))
        return math.floor(STEPS * score) / STEPS

    def fragment_milli(self, free: Free) -> float:
        """Expected thousandths of devices that the next request cannot use."""
        known = self._known.get(free)
        if known is None:
            parts = [WHOLE_DEVICE_MILLI - sum(held) for held in free.shares]
            parts += [WHOLE_DEVICE_MILLI] * free.devices
            known = sum(popularity * _unusable(free, parts, one) for one, popularity in self.typical)
            self._known[free] = known
        return known


def _unusable(free: Free, parts: list[int], demand: Demand) -> int:
    if demand.device_milli == 0 or capacity(free, demand) < demand.members:
        return sum(parts)
    return sum(part for part in parts if part < demand.device_milli)
