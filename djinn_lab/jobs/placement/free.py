"""Free capacity of one node, and how it changes. Pure functions of values, so that equal nodes share them.

A device is free as a whole or partly held: ``shares`` lists, for each partly held device, the thousandths
that jobs hold. Two shares of one size on one node are interchangeable. Where it matters which device is
meant, each device is a node of its own, as in the live pool."""

from __future__ import annotations

from typing import NamedTuple

from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, ComputeNode, Demand


class Free(NamedTuple):
    """The free capacity of one node. ``devices``: wholly free ones; negative where a node shrank below what
    it holds."""

    devices: int
    cpu_milli: int = 0
    memory_mib: int = 0
    shares: tuple[tuple[int, ...], ...] = ()


def empty(node: ComputeNode) -> Free:
    return Free(node.devices, node.cpu_milli, node.memory_mib)


def members_fitting(free: Free, demand: Demand) -> int:
    """Return how many members fit here now, at most ``demand.members``."""
    count = demand.members
    if demand.device_milli:
        count = min(count, _by_devices(free, demand.device_milli))
    if demand.cpu_milli:
        count = min(count, free.cpu_milli // demand.cpu_milli)
    if demand.memory_mib:
        count = min(count, free.memory_mib // demand.memory_mib)
    return max(0, count)


def taken(free: Free, demand: Demand, members: int) -> Free:
    """Return what is left, below nothing where there was not enough. Shares go where they fit most
    tightly."""
    devices, shares = free.devices, free.shares
    if demand.device_milli == WHOLE_DEVICE_MILLI:
        devices -= members
    elif demand.device_milli:
        devices, shares = _share(devices, shares, demand.device_milli, members)
    return Free(
        devices,
        free.cpu_milli - members * demand.cpu_milli,
        free.memory_mib - members * demand.memory_mib,
        shares,
    )


def given(free: Free, demand: Demand, members: int) -> Free:
    """Return what is free once the members are given back."""
    devices, shares = free.devices, free.shares
    if demand.device_milli == WHOLE_DEVICE_MILLI:
        devices += members
    elif demand.device_milli:
        devices, shares = _unshare(devices, shares, demand.device_milli, members)
    return Free(
        devices,
        free.cpu_milli + members * demand.cpu_milli,
        free.memory_mib + members * demand.memory_mib,
        shares,
    )


def _by_devices(free: Free, milli: int) -> int:
    if milli == WHOLE_DEVICE_MILLI:
        return free.devices
    partly = sum((WHOLE_DEVICE_MILLI - sum(held)) // milli for held in free.shares)
    return partly + max(0, free.devices) * (WHOLE_DEVICE_MILLI // milli)


def _share(
    devices: int, shares: tuple[tuple[int, ...], ...], milli: int, members: int
) -> tuple[int, tuple[tuple[int, ...], ...]]:
    held = list(shares)
    for _ in range(members):
        fitting = [one for one in held if sum(one) + milli <= WHOLE_DEVICE_MILLI]
        if fitting:
            chosen = max(fitting, key=lambda one: (sum(one), one))
            held.remove(chosen)
        else:
            devices, chosen = devices - 1, ()
        held.append(tuple(sorted((*chosen, milli))))
    return devices, tuple(sorted(held))


def _unshare(
    devices: int, shares: tuple[tuple[int, ...], ...], milli: int, members: int
) -> tuple[int, tuple[tuple[int, ...], ...]]:
    held = list(shares)
    for _ in range(members):
        chosen = min((one for one in held if milli in one), key=lambda one: (sum(one), one))
        held.remove(chosen)
        rest = list(chosen)
        rest.remove(milli)
        if rest:
            held.append(tuple(rest))
        else:
            devices += 1
    return devices, tuple(sorted(held))
