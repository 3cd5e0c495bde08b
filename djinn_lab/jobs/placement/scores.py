"""How good a node is for a request, as numbers from 0 to 1. No score knows of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from djinn_lab.jobs.placement.free import Free, members_fitting, taken
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, ComputeNode, Demand


class ScoreInput(NamedTuple):
    """The input of a score: ``members`` of ``demand`` on a node of this kind (without its name) with so
    much ``free``. ``nearness``: of its state, by :class:`~djinn_lab.jobs.placement.nearness.Nearness`."""

    node: ComputeNode
    free: Free
    demand: Demand
    members: int
    nearness: float


Score = Callable[[ScoreInput], float]


def part(amount: float, whole: float) -> float:
    return amount / whole if whole > 0 else 0.0


def free_milli(scored: ScoreInput) -> int:
    """Return the thousandths of devices that are free, whole or not."""
    partly = sum(WHOLE_DEVICE_MILLI - sum(held) for held in scored.free.shares)
    return scored.free.devices * WHOLE_DEVICE_MILLI + partly


def fit(scored: ScoreInput) -> float:
    """Score best fit: 1 where nothing is left. The mean over devices, cpu and memory of the part of the
    node that is left, as in the BestFit policy that Weng et al. compare with (USENIX ATC'23, section 6.1).
    """
    node, demand, members = scored.node, scored.demand, scored.members
    left = [
        part(amount, whole)
        for amount, whole in (
            (free_milli(scored) - members * demand.device_milli, node.devices * WHOLE_DEVICE_MILLI),
            (scored.free.cpu_milli - members * demand.cpu_milli, node.cpu_milli),
            (scored.free.memory_mib - members * demand.memory_mib, node.memory_mib),
        )
        if whole
    ]
    return 1.0 - part(sum(left), len(left))


def most_loaded(scored: ScoreInput) -> float:
    """Score devices only: 1 where all would be held, so that large requests find whole nodes later. On
    public cluster data better than :func:`fit`, as cpu and memory seldom run out."""
    left = free_milli(scored) - scored.members * scored.demand.device_milli
    return 1.0 - part(left, scored.node.devices * WHOLE_DEVICE_MILLI)


def dot_product(scored: ScoreInput) -> float:
    """Score as Tetris (Grandl et al., SIGCOMM'14), as Weng et al. use it: best where demand and free
    capacity point into different directions, by the smallest scalar product."""
    node, demand, members = scored.node, scored.demand, scored.members
    product = sum(
        part(asked, whole) * part(free, whole)
        for asked, free, whole in (
            (members * demand.device_milli, free_milli(scored), node.devices * WHOLE_DEVICE_MILLI),
            (members * demand.cpu_milli, scored.free.cpu_milli, node.cpu_milli),
            (members * demand.memory_mib, scored.free.memory_mib, node.memory_mib),
        )
    )
    return 1.0 - product / 3


def load(scored: ScoreInput) -> float:
    """Score balance: 1 on an idle node, so that work is spread. It works against :func:`fit`; on public
    cluster data it gives back most of what that gains."""
    return part(free_milli(scored), scored.node.devices * WHOLE_DEVICE_MILLI)


def locality(scored: ScoreInput) -> float:
    """Score 1 where the request's state lies: it need not be moved. Half of that on the same host: it need
    not go over a link between hosts."""
    return scored.nearness


def affinity(scored: ScoreInput) -> float:
    """Score the part of the preferred labels that the node has; 1 where none are preferred."""
    wished = scored.demand.prefers
    return len(wished & scored.node.labels) / len(wished) if wished else 1.0


def cost(scored: ScoreInput) -> float:
    """Score 1 where a device-hour is free of charge, falling with its price."""
    return 1.0 / (1.0 + scored.node.price)


STEPS = 25
"""Scores are rounded down to these, so that nodes that are about as good are equal, and another score
decides between them. The authors' program rounds to 100; on their data coarser is better."""


class Fragmentation:
    """Fragmentation gradient descent: put each request where it makes the least of the free capacity
    useless.

    Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
    Descent", USENIX ATC'23, sections 4 and 5. The fragment of a node for one typical request is what is
    free on devices that this request cannot use: everything if it does not fit on the node (or wants no
    device), else the parts of devices smaller than its share. A node's fragmentation is the mean over
    typical requests by popularity.

    ``typical``: demands with their popularity. Values are cached by free capacity, as most nodes are equal
    to one seen before."""

    def __init__(self, typical: Iterable[tuple[Demand, float]]) -> None:
        self.typical = tuple(typical)
        self._known: dict[Free, float] = {}

    def __call__(self, scored: ScoreInput) -> float:
        """Score above one half where fragmentation shrinks, below where it grows, in devices."""
        after = taken(scored.free, scored.demand, scored.members)
        grown_milli = self.fragment_milli(after) - self.fragment_milli(scored.free)
        score = 1.0 / (1.0 + math.exp(grown_milli / WHOLE_DEVICE_MILLI))
        return math.floor(STEPS * score) / STEPS

    def fragment_milli(self, free: Free) -> float:
        """Return the expected thousandths of devices that the next request cannot use."""
        known = self._known.get(free)
        if known is None:
            parts = [WHOLE_DEVICE_MILLI - sum(held) for held in free.shares]
            parts += [WHOLE_DEVICE_MILLI] * free.devices
            known = sum(popularity * _unusable(free, parts, one) for one, popularity in self.typical)
            self._known[free] = known
        return known


def _unusable(free: Free, parts: list[int], demand: Demand) -> int:
    if demand.device_milli == 0 or members_fitting(free, demand) < demand.members:
        return sum(parts)
    return sum(part for part in parts if part < demand.device_milli)
