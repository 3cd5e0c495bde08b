"""The members of a gang near each other: of places that are equally good, those on one NUMA node, as their
labels tell (``numa=0``). Only ties are broken, so where fewer than two nodes are known all is as without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Protocol, TypeVar

NUMA = "numa"


class Labelled(Protocol):
    """A device as :class:`djinn_lab.jobs.tables.Device` has it."""

    device: str
    running: list[str]

    @property
    def labels(self) -> frozenset[str]: ...


class Place(Protocol):
    """``room``: members that each of these ``nodes`` can take; ``numa``: where they are, if that is known."""

    @property
    def room(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    @property
    def numa(self) -> str | None: ...


Somewhere = TypeVar("Somewhere", bound=Place)


def numa_of(labels: Iterable[str]) -> str | None:
    """What they say; the first in order where operators gave several."""
    return min((label for label in labels if label.startswith(f"{NUMA}=")), default=None)


def near_first(
    ranked: Sequence[tuple[float, Somewhere]], members: int, near: str | None = None
) -> list[Somewhere]:
    """Places in the order to fill them with so many members. ``ranked``: the best, with the smallest number,
    first. ``near``: where one member is already.

    Between places of different rank there is no choice, so it is made among the last that are needed: NUMA
    nodes in use go first, then the one into which the rest fits most tightly, else the largest; unknown ones
    last. That is the fewest nodes."""
    if len({place.numa for _, place in ranked} - {None}) < 2:
        return [place for _, place in ranked]
    order: list[Somewhere] = []
    used = {near}
    for _, group in groupby(ranked, key=lambda one: one[0]):
        equal = [place for _, place in group]
        room = sum(place.room * place.nodes for place in equal)
        order += equal if room <= members else _by_node(equal, members, used)
        members -= room
        if members <= 0:
            break
        used |= {place.numa for place in equal}
    return order


def _by_node(equal: Sequence[Somewhere], members: int, used: set[str | None]) -> list[Somewhere]:
    room: Counter[str | None] = Counter()
    for place in equal:
        room[place.numa] += place.room * place.nodes

    def key(node: str | None) -> tuple[bool, bool, bool, int]:
        enough = room[node] >= members
        return node is None, node not in used, not enough, room[node] if enough else -room[node]

    order: list[Somewhere] = []
    while room and members > 0:
        node = min(room, key=key)  # the first of equals, as they were ranked
        order += [place for place in equal if place.numa == node]
        members -= room.pop(node)
    return order


def company(members: int, devices: Sequence[Labelled]) -> Mapping[str, int]:
    """By device, how many of a gang could lie on its NUMA node now; empty where that decides nothing."""
    if members < 2:
        return {}
    numa = {device.device: numa_of(device.labels) for device in devices}
    if len(set(numa.values()) - {None}) < 2:
        return {}
    free = Counter(numa[device.device] for device in devices if not device.running)
    return {name: min(members, free[node]) if node else 0 for name, node in numa.items()}
