"""A :class:`~djinn_lab.capture.recorders.Checkpoint` of the Python recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from djinn_lab.capture.python.value_table import ValueTable
from djinn_lab.capture.sending.backend import Backend
from djinn_lab.capture.values import LazyStorage


class ValueTableCheckpoint:
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
