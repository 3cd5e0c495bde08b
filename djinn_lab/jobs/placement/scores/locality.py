"""Nearness to data and to what was wished for."""

from __future__ import annotations

from djinn_lab.jobs.placement.scores.seat import Seat


def locality(seat: Seat) -> float:
    """1 where the request's state lies: it need not be moved."""
    return 1.0 if seat.home else 0.0


def affinity(seat: Seat) -> float:
    """The part of the labels wished for that the node has; 1 where none were."""
    wished = seat.demand.prefers
    return len(wished & seat.node.labels) / len(wished) if wished else 1.0
