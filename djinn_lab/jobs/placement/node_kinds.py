"""Equal nodes are decided on once. A *kind* is the nodes that differ in their names only; in it, nodes
with the same free capacity make a *group*. Ten thousand devices are a few dozen groups."""

from __future__ import annotations

import heapq

from msgspec.structs import replace

from djinn_lab.jobs.placement.free import Free, empty
from djinn_lab.jobs.placement.nearness import host_of, numa_of
from djinn_lab.jobs.request import ComputeNode


class NodeGroup:
    """Nodes by their numbers; the lowest go first. A node that left stays in the heap until it comes to
    the top."""

    __slots__ = ("_heap", "_queued", "members")

    def __init__(self) -> None:
        self.members: set[int] = set()
        self._heap: list[int] = []
        self._queued: set[int] = set()

    def add(self, number: int) -> None:
        self.members.add(number)
        if number not in self._queued:
            self._queued.add(number)
            heapq.heappush(self._heap, number)

    def first(self, count: int, without: int | None = None) -> list[int]:
        found: list[int] = []
        popped: list[int] = []
        while self._heap and len(found) < count:
            number = heapq.heappop(self._heap)
            if number not in self.members:
                self._queued.discard(number)
                continue
            popped.append(number)
            if number != without:
                found.append(number)
        for number in popped:
            heapq.heappush(self._heap, number)
        return found


class NodeKind:
    """Nodes that differ in their names only. ``node``: any of them, without its name. ``free_devices``:
    wholly free ones of all together. ``usable``: requests may start on them. ``numa``, ``host``: the
    labels of their NUMA node and host."""

    __slots__ = ("empty", "free_devices", "groups", "host", "node", "numa", "number", "size", "usable")

    def __init__(self, node: ComputeNode, number: int) -> None:
        self.node = nameless(node)
        self.number = number
        self.empty = empty(node)
        self.usable = node.ready and not node.cordoned
        self.numa = numa_of(node.labels)
        self.host = host_of(node.labels)
        self.groups: dict[Free, NodeGroup] = {}
        self.size = 0
        self.free_devices = 0

    def add(self, number: int, free: Free) -> None:
        group = self.groups.get(free)
        if group is None:
            group = self.groups[free] = NodeGroup()
        group.add(number)
        self.size += 1
        self.free_devices += free.devices

    def drop(self, number: int, free: Free) -> None:
        group = self.groups[free]
        group.members.remove(number)
        if not group.members:
            del self.groups[free]
        self.size -= 1
        self.free_devices -= free.devices


def nameless(node: ComputeNode) -> ComputeNode:
    return replace(node, node="")
