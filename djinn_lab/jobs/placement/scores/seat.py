"""What a score looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from djinn_lab.jobs.placement.free import Free
from djinn_lab.jobs.request import Demand, Node


class Seat(NamedTuple):
    """``members`` of ``demand`` on a node of this kind (without its name) with so much ``free``. ``home``:
    the request's state lies there."""

    node: Node
    free: Free
    demand: Demand
    members: int
    home: bool


Score = Callable[[Seat], float]


def part(amount: float, whole: float) -> float:
    return amount / whole if whole > 0 else 0.0
