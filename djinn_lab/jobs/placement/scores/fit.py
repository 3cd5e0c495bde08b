"""Tight packing, so that large requests find whole nodes later."""

from __future__ import annotations

from djinn_lab.jobs.placement.scores.seat import Seat, part
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI


def free_milli(seat: Seat) -> int:
    """Thousandths of devices that are free, whole or not."""
    partly = sum(WHOLE_DEVICE_MILLI - sum(held) for held in seat.free.shares)
    return seat.free.devices * WHOLE_DEVICE_MILLI + partly


def fit(seat: Seat) -> float:
    """Best fit: 1 where nothing is left. The mean over devices, cpu and memory of the part of the node that
    is left, as in the BestFit policy that Weng et al. compare with (USENIX ATC'23, section 6.1)."""
    node, demand, members = seat.node, seat.demand, seat.members
    left = [
        part(amount, whole)
        for amount, whole in (
            (free_milli(seat) - members * demand.device_milli, node.devices * WHOLE_DEVICE_MILLI),
            (seat.free.cpu_milli - members * demand.cpu_milli, node.cpu_milli),
            (seat.free.memory_mib - members * demand.memory_mib, node.memory_mib),
        )
        if whole
    ]
    return 1.0 - part(sum(left), len(left))


def most_loaded(seat: Seat) -> float:
    """Devices only: 1 where all would be held. On public cluster data better than :func:`fit`, as cpu and
    memory are seldom what runs out."""
    left = free_milli(seat) - seat.members * seat.demand.device_milli
    return 1.0 - part(left, seat.node.devices * WHOLE_DEVICE_MILLI)


def dot_product(seat: Seat) -> float:
    """Tetris (Grandl et al., SIGCOMM'14) as Weng et al. use it: where what is asked for and what is free
    point into different directions, by the smallest scalar product."""
    node, demand, members = seat.node, seat.demand, seat.members
    product = sum(
        part(asked, whole) * part(free, whole)
        for asked, free, whole in (
            (members * demand.device_milli, free_milli(seat), node.devices * WHOLE_DEVICE_MILLI),
            (members * demand.cpu_milli, seat.free.cpu_milli, node.cpu_milli),
            (members * demand.memory_mib, seat.free.memory_mib, node.memory_mib),
        )
    )
    return 1.0 - product / 3
