"""How full do nodes get? Requests come one by one in random order and nothing ends, until more was asked for
than there is: the experiment of Weng et al. (FGD, USENIX ATC'23, section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

import msgspec

from djinn_lab.jobs.placement import FreeCapacity, Scoring
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, ComputeNode, Demand


class Filling(msgspec.Struct, frozen=True):
    """``allocated`` and ``offered``: parts of all devices. ``refused``: requests that fit nowhere."""

    allocated: float
    offered: float
    requests: int
    refused: int


def fill(
    demands: Sequence[Demand], nodes: Iterable[ComputeNode], scoring: Scoring, load: float, seed: int
) -> Filling:
    """Each demand once, shuffled, then drawn again, until ``load`` times the devices have been asked for."""
    if not any(demand.device_milli for demand in demands):
        raise ValueError("none of the demands asks for devices")
    random = Random(seed)
    order = list(demands)
    random.shuffle(order)
    capacity = FreeCapacity(nodes)
    total_milli = capacity.devices * WHOLE_DEVICE_MILLI
    offered_milli = allocated_milli = number = refused = 0
    while offered_milli < load * total_milli:
        demand = order[number] if number < len(order) else random.choice(demands)
        number += 1
        wanted_milli = demand.members * demand.device_milli
        offered_milli += wanted_milli
        placed = capacity.place(demand, scoring)
        if placed is None:
            refused += 1
        else:
            capacity.take(demand, placed.where)
            allocated_milli += wanted_milli
    return Filling(allocated_milli / total_milli, offered_milli / total_milli, number, refused)


def popularity(demands: Iterable[Demand]) -> list[tuple[Demand, float]]:
    """Each kind of demand with its part of all, the most frequent first."""
    counts = Counter(demands)
    total = sum(counts.values())
    return [(demand, count / total) for demand, count in counts.most_common()]
