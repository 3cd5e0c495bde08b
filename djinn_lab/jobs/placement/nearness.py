"""How near nodes are: to the one with a request's state, and to each other.

Members of a gang are placed near each other: of equally good places, those on one NUMA node, as their
labels give it (``numa=0``). Only ties are broken, so where fewer than two nodes are known nothing changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

NUMA = "numa"
HOST = "host"
SAME_HOST = 0.5


class Labelled(Protocol):
    """A device as :class:`djinn_lab.jobs.machine.tables.QueueDevice` has it."""

    device: str
    running: list[str]

    @property
    def labels(self) -> frozenset[str]: ...


class PlacementOption(Protocol):
    """Nodes that are equally good for a gang. ``fits``: members that each of these ``nodes`` can take;
    ``numa``: their NUMA node, if known."""

    @property
    def fits(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    @property
    def numa(self) -> str | None: ...


class OnHost(Protocol):
    """Nodes of one host. ``host``: its label, if known."""

    @property
    def host(self) -> str | None: ...


AnyOption = TypeVar("AnyOption", bound=PlacementOption)


def numa_of(labels: Iterable[str]) -> str | None:
    """Return the NUMA label; the first in order where operators gave several."""
    return _first_label(labels, NUMA)


class Nearness(NamedTuple):
    """How near nodes are to ``home``, the node with a request's state, on ``host``."""

    home: str | None
    host: str | None

    def of(self, node: str, kind: OnHost) -> float:
        """Return 1 for the home, :data:`SAME_HOST` for another node of its host, else 0."""
        return 1.0 if node == self.home else self.of_others(kind)

    def of_others(self, kind: OnHost) -> float:
        """Return the same of a node that is not the home."""
        return SAME_HOST if self.host is not None and kind.host == self.host else 0.0


def host_of(labels: Iterable[str]) -> str | None:
    """Return the label of the host; the first in order where operators gave several."""
    return _first_label(labels, HOST)


def _first_label(labels: Iterable[str], key: str) -> str | None:
    return min((label for label in labels if label.startswith(f"{key}=")), default=None)


def near_first(
    ranked: Sequence[tuple[float, AnyOption]], members: int, near: str | None = None
) -> list[AnyOption]:
    """Return the options in the order to fill them with so many members. ``ranked``: the best, with the
    smallest number, first. ``near``: the NUMA node of a member that is placed already.

    Between options of different rank there is no choice, so it is made among the last that are needed.
    NUMA nodes in use go first, then the one into which the rest fits most tightly, else the largest;
    unknown ones last. That is the fewest nodes."""
    if len({place.numa for _, place in ranked} - {None}) < 2:
        return [place for _, place in ranked]
    order: list[AnyOption] = []
    used = {near}
    for _, group in groupby(ranked, key=lambda one: one[0]):
        equal = [place for _, place in group]
        fits = sum(place.fits * place.nodes for place in equal)
        order += equal if fits <= members else _by_node(equal, members, used)
        members -= fits
        if members <= 0:
            break
        used |= {place.numa for place in equal}
    return order


def _by_node(equal: Sequence[AnyOption], members: int, used: set[str | None]) -> list[AnyOption]:
    fits: Counter[str | None] = Counter()
    for place in equal:
        fits[place.numa] += place.fits * place.nodes

    def key(node: str | None) -> tuple[bool, bool, bool, int]:
        enough = fits[node] >= members
        return node is None, node not in used, not enough, fits[node] if enough else -fits[node]

    order: list[AnyOption] = []
    while fits and members > 0:
        node = min(fits, key=key)  # the first of equals, as they were ranked
        order += [place for place in equal if place.numa == node]
        members -= fits.pop(node)
    return order


def company(members: int, devices: Sequence[Labelled]) -> Mapping[str, int]:
    """Return, by device, how many members of a gang could lie on its NUMA node now; empty where that
    decides nothing."""
    if members < 2:
        return {}
    numa = {device.device: numa_of(device.labels) for device in devices}
    if len(set(numa.values()) - {None}) < 2:
        return {}
    free = Counter(numa[device.device] for device in devices if not device.running)
    return {name: min(members, free[node]) if node else 0 for name, node in numa.items()}
