"""What an offloading worker moves while a program runs that needs more memory than its device has.

The rule is the worker's (:mod:`djinn_lab.worker.offloading`): the storage goes whose next use lies farthest
ahead (L. A. Belady, A study of replacement algorithms for a virtual-storage computer, 1966). What one of the
next ops reads comes back ahead of time, while the ops before it run, where it fits beside what these make:
storages may leave for it that are stored on the host already and are used later than that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

NEVER = 2**62
"""The next use of what no op to come reads."""
AHEAD = 8
"""So many ops ahead of its reader a storage may come back."""
Key = TypeVar("Key")


class NextUses:
    """The positions at which values, or storages, are used. ``used``: by position."""

    def __init__(self, used: Iterable[Iterable[int | None]]) -> None:
        self._uses: dict[int, list[int]] = {}
        for position, keys in enumerate(used):
            for key in keys:
                if key is not None:
                    self._uses.setdefault(key, []).append(position)

    def after(self, key: int, position: int) -> int:
        """Return the first use at ``position`` or later, NEVER where there is none."""
        uses = self._uses.get(key, ())
        place = bisect_left(uses, position)
        return uses[place] if place < len(uses) else NEVER


class OffloadPlan(msgspec.Struct, frozen=True):
    """Bytes that go to the host while the program runs, and come back."""

    out_bytes: int
    in_bytes: int

    @property
    def moved_bytes(self) -> int:
        """Return the bytes that go over the link."""
        return self.out_bytes + self.in_bytes


class Step(NamedTuple):
    """What an op does to a device's memory: bytes that it makes, and bytes that are free after it."""

    made_bytes: int
    freed_bytes: int


def leave_ahead(
    nbytes: int,
    free_bytes: int,
    steps: Iterable[Step],
    candidates: Iterable[tuple[int, int, Key]],
) -> list[Key] | None:
    """Return what leaves so that ``nbytes`` may come back while these ops run; None: it does not fit beside
    what they make. ``candidates``: next use, bytes and name of what is stored, and what none of the ops looks
    at."""
    least_bytes = now_bytes = free_bytes
    for step in steps:
        least_bytes = min(least_bytes, now_bytes - step.made_bytes)
        now_bytes += step.freed_bytes - step.made_bytes
    leaving: list[Key] = []
    order = sorted(candidates, key=lambda one: one[:2])
    while least_bytes < nbytes:
        if not order:
            return None
        _, freed_bytes, key = order.pop()
        leaving.append(key)
        least_bytes += freed_bytes
    return leaving


class PlannedOp(NamedTuple):
    """Storages that an op reads or writes, in their order, those that it makes, those that it writes in
    place, and those that nothing needs after it."""

    touched: Sequence[int]
    made: Collection[int]
    written: Collection[int]
    freed: Collection[int]


def plan_offload(
    ops: Sequence[PlannedOp],
    fetched: Sequence[int],
    loaded: Iterable[int],
    sizes: Mapping[int, int],
    capacity_bytes: int,
) -> OffloadPlan | None:
    """Plan a program that begins on an empty device. ``loaded``: what is there before the first op, in the
    order in which it comes. ``fetched``: read by the client after the last op. None: the tiers must hold some
    of it, but an op needs more than ``capacity_bytes`` by itself."""
    device = _Device(ops, fetched, sizes, capacity_bytes)
    try:
        for storage in loaded:
            device.add([storage], 0, ())
        for position, op in enumerate(ops):
            device.bring_in(op.touched, position)
            device.bring_in_ahead(position)
            device.add(op.made, position, op.touched)
            device.clean.difference_update(op.written)
            device.free(op.freed)
        for storage in fetched:
            device.bring_in([storage], len(ops))
    except _Full:
        return None
    return OffloadPlan(device.out_bytes, device.in_bytes)


class _Full(Exception):
    """Nothing is left that may leave."""


class _Device:
    """``resident``: storages on the device. ``offloaded``: on the host alone. ``clean``: of those on the
    device, with a copy on the host. ``coming``: whether one is on its way, ahead of its reader."""

    def __init__(
        self,
        ops: Sequence[PlannedOp],
        fetched: Sequence[int],
        sizes: Mapping[int, int],
        capacity_bytes: int,
    ) -> None:
        self._ops = ops
        self._uses = NextUses([*(op.touched for op in ops), fetched])
        self._sizes = sizes
        self._free_bytes = capacity_bytes
        self.resident: set[int] = set()
        self.offloaded: set[int] = set()
        self.clean: set[int] = set()
        self.coming: int | None = None
        self.out_bytes = self.in_bytes = 0

    def add(self, storages: Collection[int], position: int, wanted: Collection[int]) -> None:
        """Make these, while those ``wanted`` stay."""
        self._make_room(sum(self._sizes.get(one, 0) for one in storages), position, wanted)
        for storage in storages:
            self.resident.add(storage)
            self._free_bytes -= self._sizes.get(storage, 0)

    def bring_in(self, storages: Collection[int], position: int) -> None:
        for storage in storages:
            if storage == self.coming:
                self.coming = None
            elif storage in self.offloaded:
                self.add([storage], position, storages)
                self._come(storage)

    def bring_in_ahead(self, position: int) -> None:
        """Before the op at ``position``, which has all that it reads: bring in what a later one reads."""
        reader = self._next_reader(position)
        if self.coming is not None or reader is None:
            return
        storage = next(one for one in self._ops[reader].touched if one in self.offloaded)
        ops = self._ops[position:reader]
        touched = {one for op in (*ops, self._ops[reader]) for one in op.touched}
        leaving = leave_ahead(
            self._sizes.get(storage, 0),
            self._free_bytes,
            (Step(self._sum(op.made), self._sum(op.freed)) for op in ops),
            (
                (use, size, one)
                for one in sorted(self.clean - touched)
                if (size := self._sizes.get(one, 0)) and (use := self._uses.after(one, position)) > reader
            ),
        )
        if leaving is None:
            return
        for one in leaving:
            self._leave(one)
        self.resident.add(storage)
        self._free_bytes -= self._sizes.get(storage, 0)
        self._come(storage)
        self.coming = storage

    def _next_reader(self, position: int) -> int | None:
        ahead = range(position + 1, min(position + 1 + AHEAD, len(self._ops)))
        return next((at for at in ahead if not self.offloaded.isdisjoint(self._ops[at].touched)), None)

    def _sum(self, storages: Iterable[int]) -> int:
        return sum(self._sizes.get(one, 0) for one in storages)

    def _come(self, storage: int) -> None:
        self.offloaded.remove(storage)
        self.clean.add(storage)
        self.in_bytes += self._sizes.get(storage, 0)

    def free(self, storages: Iterable[int]) -> None:
        for storage in storages:
            if storage in self.resident:
                self.resident.remove(storage)
                self._free_bytes += self._sizes.get(storage, 0)
            self.offloaded.discard(storage)
            self.clean.discard(storage)

    def _make_room(self, nbytes: int, position: int, wanted: Collection[int]) -> None:
        if nbytes <= self._free_bytes:
            return
        self.coming = None
        leaving = [one for one in self.resident if one not in wanted and self._sizes.get(one, 0)]
        leaving.sort(key=lambda one: (self._uses.after(one, position), one in self.clean, self._sizes[one]))
        while nbytes > self._free_bytes:
            if not leaving:
                raise _Full
            self._leave(leaving.pop())

    def _leave(self, storage: int) -> None:
        self.resident.remove(storage)
        self.offloaded.add(storage)
        self._free_bytes += self._sizes[storage]
        if storage not in self.clean:
            self.out_bytes += self._sizes[storage]
        self.clean.discard(storage)
