"""Money."""

from __future__ import annotations

from djinn_lab.jobs.placement.scores.seat import Seat


def cost(seat: Seat) -> float:
    """1 where a device-hour is free of charge, falling with its price."""
    return 1.0 / (1.0 + seat.node.price)
