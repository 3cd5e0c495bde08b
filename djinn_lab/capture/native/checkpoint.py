"""A :class:`~djinn_lab.capture.recorders.Checkpoint` of the native recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from djinn_lab.capture.native.extension import native
from djinn_lab.capture.sending.backend import Backend


class _Was(NamedTuple):
    storage: Any
    base_id: int | None
    version: int
    host: Any
    lost: str | None


class NativeCheckpoint:
    def __init__(self, core: Any, backend: Backend, end_cell: Callable[[], None]) -> None:
        self._core = core
        self._backend = backend
        self._end_cell = end_cell
        self._known = {storage.base_id for storage in core.storages()}
        self._written: dict[int, _Was] = {}

    def remember_write(self, tensor: torch.Tensor) -> None:
        storage = native.storage_of(tensor)
        if storage.serial in self._written:
            return
        host = storage.host if storage.host_is_current() else None
        if host is not None and storage.exposure is not None:
            host = host.clone()  # ops write these very bytes
        self._written[storage.serial] = _Was(storage, storage.base_id, storage.version, host, storage.lost)

    def restore(self, reason: str) -> None:
        """The pool holds what it held. Other values come from the host's bytes, or do not exist."""
        for was in self._written.values():
            if was.storage.exposure is not None and was.host is not None:
                was.storage.host.copy_(was.host)
            else:
                was.storage.restore_host(was.host, was.version)
            was.storage.lost = was.lost
        self._end_cell()
        alive = set()
        for storage in self._core.storages():
            alive.add(storage.base_id)
            if storage.base_id in self._known:
                continue
            if storage.host_is_current():
                storage.forget_pool_copy()
            else:
                storage.lose(reason)
        died = sorted(self._known - alive)
        if died:
            self._backend.release(died)
