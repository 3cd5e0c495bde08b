"""Which offloaded value comes back while the ops before its reader run: what they make and free is gone
through on paper, and the rule of :func:`djinn_lab.srg.offload.leave_ahead` decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from djinn_lab.srg.offload import AHEAD, Step, leave_ahead
from djinn_lab.srg.program import NodeRecord, Program
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.parked import ParkedStorage
from djinn_lab.worker.preparation import Products
from djinn_lab.worker.storages import Storage
from djinn_lab.worker.values import SessionValues

Departures = Callable[[int, Collection[int | None]], Mapping[Storage, int]]


class Ahead(NamedTuple):
    """``item`` may come back now, once those of ``leaving`` are gone, which are all stored."""

    item: ParkedStorage
    leaving: list[Storage]


class LookAhead:
    """For one run. ``products``, ``frees``: of every op, as in
    :class:`~djinn_lab.worker.preparation.Preparation`. ``departures``: the storages that may leave before an
    op that reads certain values, with their next use."""

    def __init__(
        self,
        program: Program,
        values: SessionValues,
        account: MemoryAccount,
        products: Sequence[Products],
        frees: Sequence[Sequence[int]],
        departures: Departures,
    ) -> None:
        self._nodes = program.nodes
        self._values = values
        self._account = account
        self._products = products
        self._frees = frees
        self._departures = departures
        self._storages = {source.value: source.storage for source in program.sources}
        for node in program.nodes:
            for value, storage in zip(node.outputs, node.storages, strict=True):
                if value is not None and storage is not None:
                    self._storages.setdefault(value, storage)

    def from_op(self, position: int) -> Ahead | None:
        """Return what comes back before the op at ``position`` runs; None for nothing."""
        found = self._next_reader(position)
        if found is None:
            return None
        reader, item = found
        walk = _Walk(self._values, self._storages)
        steps = [
            walk.run(self._nodes[index], self._products[index], self._frees[index])
            for index in range(position, reader)
        ]
        candidates = self._candidates(position, reader, walk)
        leaving = leave_ahead(item.nbytes, self._account.free_bytes, steps, candidates)
        return None if leaving is None else Ahead(item, leaving)

    def _next_reader(self, position: int) -> tuple[int, ParkedStorage] | None:
        offloaded = self._values.offloaded.values
        for index in range(position, min(position + 1 + AHEAD, len(self._nodes))):
            node = self._nodes[index]
            for value in node.inputs if index > position else ():
                item = offloaded.get(value, (None, None))[1] if value is not None else None
                if item is not None:
                    return index, item
            if node.dynamic:  # what it makes is not known before
                return None
        return None

    def _candidates(self, position: int, reader: int, walk: _Walk) -> Iterator[tuple[int, int, Storage]]:
        for storage, use in self._departures(position, self._nodes[reader].inputs).items():
            if use > reader and storage.stored_bytes == storage.nbytes and storage not in walk.touched:
                yield use, storage.nbytes, storage


class _Walk:
    """Goes through ops on paper. ``touched``: storages on the device that they look at."""

    def __init__(self, values: SessionValues, storages: Mapping[int, int]) -> None:
        self._values, self._storages = values, storages
        self.touched: set[Storage] = set()
        self._alive: dict[int, int] = {}
        self._bytes: dict[int, int] = {}

    def run(self, node: NodeRecord, products: Products, frees: Sequence[int]) -> Step:
        for value in node.inputs:
            self._look_at(value)
        for place, expected, is_new in products.made:
            self._make(node.outputs[place], expected.span_bytes if is_new else 0)
        touched = (*node.inputs, *node.outputs)
        return Step(products.nbytes, sum(self._drop(touched[place]) for place in frees))

    def _look_at(self, value: int | None) -> None:
        storage = None if value is None else self._values.storage_of.get(value)
        if value is not None and storage is not None:
            self.touched.add(storage)
            name = self._storages.get(value)
            if name is not None and name not in self._alive:
                self._alive[name] = storage.references
                self._bytes[name] = 0 if storage.shared is not None else storage.nbytes

    def _make(self, value: int | None, nbytes: int) -> None:
        name = None if value is None else self._storages.get(value)
        if name is not None:
            self._alive[name] = 1 + self._alive.get(name, 0)
            self._bytes.setdefault(name, nbytes)

    def _drop(self, value: int | None) -> int:
        """Return the bytes that are free when the value is needed no more."""
        name = None if value is None else self._storages.get(value)
        if name is None or name not in self._alive:
            return 0
        self._alive[name] -= 1
        return 0 if self._alive[name] else self._bytes.pop(name, 0)
