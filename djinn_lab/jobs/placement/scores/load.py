"""Balance."""

from __future__ import annotations

from djinn_lab.jobs.placement.scores.fit import free_milli
from djinn_lab.jobs.placement.scores.seat import Seat, part
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI


def load(seat: Seat) -> float:
    """1 on an idle node: work is spread. It works against :func:`fit`; on public cluster data it gives back
    most of what that gains."""
    return part(free_milli(seat), seat.node.devices * WHOLE_DEVICE_MILLI)
