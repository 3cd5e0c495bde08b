"""Which values exist, which tensors hold them, and which are on the pool."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from djinn_lab.capture.python.assembly import PendingNode, PendingSource
from djinn_lab.capture.sending.backend import Backend
from djinn_lab.capture.values import Layout, LazyStorage, LazyValue


class ValueTable:
    """The values of one recorder. ``held``: values that are on the pool, or (with ``blob`` or ``inline``)
    will be as soon as a program needs them. ``live``: ids that something in the notebook still refers to.
    ``lost``: ids whose value does not exist, and why.

    Deaths are noticed by weak references whose callback is a list's own ``append``. A ``__del__`` in Python
    would swallow a KeyboardInterrupt that arrives while it runs, and one of ours would run all the time.
    """

    def __init__(self, dead: list[int]) -> None:
        self.held: dict[int, PendingSource] = {}
        self.live: dict[int, weakref.ref[LazyValue]] = {}
        self.lost: dict[int, str] = {}
        self._bases: dict[int, weakref.ref[LazyStorage]] = {}
        self._dead = dead
        self._fallen: list[weakref.ref[Any]] = []
        self._watched: dict[int, int | None] = {}
        self._last_id = 0

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def new_value(self, storage: LazyStorage, layout: Layout, offset: int) -> LazyValue:
        self._last_id = identifier = self._last_id + 1
        value = LazyValue(storage, identifier, layout, offset, storage.generation)
        self._watch(value)
        return value

    def _watch(self, value: LazyValue) -> None:
        self.live[value.id] = reference = weakref.ref(value, self._fallen.append)
        self._watched[id(reference)] = value.id

    def rename(self, value: LazyValue) -> None:
        """Give ``value`` a new id; the old one names memory that is out of date."""
        if value.owned:
            self._dead.append(value.id)
        value.id = self.new_id()
        value.owned = True
        self._watch(value)

    def give_to_storage(self, value: LazyValue) -> None:
        """The storage, not the value object, decides how long this id lives."""
        storage = value.storage
        value.owned = False
        self._watched[id(self.live[value.id])] = None
        self._bases[value.id] = reference = weakref.ref(storage, self._fallen.append)
        self._watched[id(reference)] = value.id
        storage.base_id, storage.base_layout = value.id, value.layout

    def take_dead(self) -> tuple[list[int], list[int]]:
        """Return all ids that died since the last call, and those of them that the pool must release."""
        dead = list(self._dead)
        self._dead.clear()
        while self._fallen:
            identifier = self._watched.pop(id(self._fallen.pop()), None)
            if identifier is not None:
                dead.append(identifier)
        for identifier in dead:
            self.lost.pop(identifier, None)
            for reference in (self.live.pop(identifier, None), self._bases.pop(identifier, None)):
                self._watched.pop(id(reference), None)
        return dead, [identifier for identifier in dead if self._is_on_pool(identifier)]

    def is_held(self, value: LazyValue) -> bool:
        """Return whether the pool has what ``value`` holds now, or gets it with the next program."""
        current = value.generation == value.storage.generation
        return current and value.id in self.held and value.id not in self.lost

    def _is_on_pool(self, identifier: int) -> bool:
        source = self.held.get(identifier)
        return source is not None and source.blob is None and source.inline is None

    def live_storages(self) -> set[int]:
        """Return the storages that something still looks at (a base outlives its value object)."""
        storages = set()
        for identifier, reference in self.live.items():
            value = reference()
            if value is not None:
                storages.add(value.storage.id)
            elif identifier in self.held:
                storages.add(self.held[identifier].storage)
        return storages

    def values(self) -> list[LazyValue]:
        found = (reference() for reference in self.live.values())
        return [value for value in found if value is not None]

    def settle(self, sent: Iterable[int], ran: Sequence[PendingNode], dead: Iterable[int]) -> None:
        """Note that a program went out: ``sent`` sources arrived and ``ran`` nodes made their outputs."""
        for identifier in sent:
            self.held[identifier] = self.held[identifier]._replace(blob=None, inline=None)
        for node in ran:
            for value, storage, layout in zip(node.outputs, node.storages, node.plan.layouts, strict=False):
                if value in self.live and value not in self.held:
                    assert value is not None
                    assert storage is not None
                    assert layout is not None
                    self.held[value] = PendingSource(storage, layout, "activation", None, None)
        for identifier in dead:
            self.held.pop(identifier, None)

    def keep_back(self, sent: Iterable[int]) -> None:
        """A program never reached a device, nor did its ``sent`` sources: they are taken from the host again
        when they are needed, and where an op that did not run was to overwrite the host's bytes, from what
        was staged."""
        for identifier in sent:
            base = self._bases.get(identifier)
            storage = base() if base is not None else None
            if storage is not None and storage.base_id == identifier and storage.host_is_current():
                self.held.pop(identifier, None)
                storage.forget_pool_copy()

    def lose(self, nodes: Iterable[PendingNode], reason: str) -> None:
        """Record that these nodes did not run: what they would have made does not exist (what they would have
        overwritten does)."""
        for node in nodes:
            for identifier in node.outputs:
                if identifier is not None and identifier not in node.inputs and identifier in self.live:
                    self.lost[identifier] = reason

    def _storage_of(self, identifier: int) -> LazyStorage | None:
        reference = self.live.get(identifier)
        value = reference() if reference is not None else None
        base = self._bases.get(identifier)
        return value.storage if value is not None else base() if base is not None else None

    def bytes_of(self, identifier: int) -> torch.UntypedStorage | None:
        """Return the host's memory with the bytes of this value. None where the host has them not, and for
        memory that the pool knows under several ids: sent again, they would no longer share it."""
        storage, source = self._storage_of(identifier), self.held.get(identifier)
        if storage is None or source is None or not storage.host_is_current() or storage.exposure is not None:
            return None
        layout = source.layout
        whole = layout.dense and layout.in_memory is layout and layout.nbytes == storage.nbytes
        names = sum(other.storage == source.storage for other in self.held.values())
        return storage.host if whole and names == 1 else None

    def lose_held(self, values: Iterable[int], reason: str) -> None:
        """Record that the pool has these no longer; what the host has can be sent again."""
        for identifier in values:
            storage = self._storage_of(identifier)
            if storage is not None and storage.host_is_current():
                storage.forget_pool_copy()
            elif identifier in self.live:
                self.lost[identifier] = reason

    def lose_pool(self) -> None:
        """Record that every pool copy is gone. What the host has can be sent again; the rest raises ValueLost
        when used."""
        self.held.clear()
        for value in self.values():
            if value.generation == value.storage.generation:
                value.storage.forget_pool_copy()
        self._dead.clear()


class ValueTableCheckpoint:
    """A :class:`~djinn_lab.capture.recorders.Checkpoint` of the Python recorder."""

    def __init__(self, table: ValueTable, backend: Backend, end_cell: Callable[[], None]) -> None:
        self._table = table
        self._backend = backend
        self._end_cell = end_cell
        self._held, self._lost, self._known = dict(table.held), dict(table.lost), set(table.live)
        self._storages: dict[LazyStorage, tuple[int, torch.UntypedStorage | None, int | None]] = {}

    def remember_write(self, tensor: Any) -> None:
        storage = tensor._value.storage
        self._storages.setdefault(storage, (storage.version, storage.host, storage.host_version))

    def restore(self, reason: str) -> None:
        """The pool holds what it held, except for unreferenced values. Other values come from the
        host's bytes, or do not exist."""
        for storage, (version, host, host_version) in self._storages.items():
            storage.version, storage.host, storage.host_version = version, host, host_version
        self._end_cell()
        table = self._table
        held = {value: source for value, source in self._held.items() if value in table.live}
        lost = {value: why for value, why in self._lost.items() if value in table.live}
        table.held.clear()
        table.held.update(held)
        table.lost.clear()
        table.lost.update(lost)
        died = [
            value
            for value, source in self._held.items()
            if value not in table.live and source.blob is None and source.inline is None
        ]
        if died:
            self._backend.release(died)
        for value in table.values():
            if value.id in self._known:
                continue
            storage = value.storage
            if storage.base_id is not None and storage.base_id not in table.held:
                storage.forget_pool_copy()
            if storage.host_is_current():
                value.generation = -1
            else:
                table.lost[value.id] = reason
