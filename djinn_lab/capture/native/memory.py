"""Keeps the pool's copy and the host's copy of each lazy storage in step.

Before a node reads a storage, :meth:`HostMemory.ready` makes sure that the pool has it as it is now; before
the host reads one, :meth:`HostMemory.fetch` does the same for the host. Each moves bytes only when the other
side has newer ones. A storage that others look at (numpy arrays, plain tensors) is *exposed*: ops that write
it run here, and its bytes are compared before each use on the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from djinn_lab.capture.host.exposure import Exposures, is_seen_by_others
from djinn_lab.capture.host.memory_bytes import bytes_of_storage
from djinn_lab.capture.native.extension import NativeCore, NativeStorage, NativeValue, native
from djinn_lab.capture.sending.backend import INLINE_SOURCE_BYTES_MAX, Backend, Cut
from djinn_lab.capture.sending.segment import POOL_LOST, Segment, paused
from djinn_lab.capture.values import Layout, read_as
from djinn_lab.errors import CaptureError, ValueLost
from djinn_lab.srg.lost_values import RUN_AGAIN

_EMPTY = torch.ops.aten.empty.memory_format
_CPU = torch.device("cpu")
WHOLE_STORAGE_BYTES_MAX = 2**20
"""A view of a storage up to this size is fetched with the whole storage, which then serves its other
views."""

INTEGERS_BESIDE_MAX = 16
"""So many 0-dim integers come along with a number that is read: one is often the end of the same slice."""


def all_of(storage: NativeStorage, dtype: torch.dtype) -> NativeValue:
    """Return the value that is all of a storage, as elements of ``dtype``."""
    made: NativeValue = native.Value(storage, Layout.of(dtype, (storage.nbytes // dtype.itemsize,), (1,)), 0)
    return made


def whole(storage: NativeStorage) -> NativeValue:
    """Return all elements of a storage as one row; as bytes, where they fill it only in part."""
    return all_of(storage, _dtype_of(storage))


def host_view(value: NativeValue) -> torch.Tensor:
    """Return a plain tensor over the storage's host bytes, which must be current."""
    return view_of(value, value.storage.host)


def view_of(value: NativeValue, memory: torch.UntypedStorage) -> torch.Tensor:
    """Return a plain tensor over memory that is laid out like the storage of ``value``."""
    layout = value.layout
    tensor = torch.empty(0, dtype=layout.dtype)
    return read_as(tensor.set_(memory, value.offset, layout.shape, layout.stride), layout)


def _current_view(value: NativeValue) -> torch.Tensor | None:
    memory = value.storage.current_host
    return None if memory is None else view_of(value, memory)


class HostMemory:
    def __init__(self, core: NativeCore, segment: Segment) -> None:
        self._core = core
        self._segment = segment
        self.exposures = Exposures(native.WeakStorage, _is_held)

    # ---------------------------------------------------------------- to the pool

    def ready(self, storage: NativeStorage) -> None:
        """Give the pool a current copy. Raises ValueLost when no copy of the bytes exists."""
        if storage.lost is not None:
            raise ValueLost(storage.lost, RUN_AGAIN)
        if storage.covered != storage.nbytes:
            self._grow(storage)
        self.exposures.refresh(storage)
        if storage.base_id is not None:
            return
        if not storage.host_is_current():
            raise ValueLost(POOL_LOST, RUN_AGAIN)
        held = bytes_of_storage(storage.host)[: storage.nbytes]  # others may have let the host's grow
        self.stage(storage, self._base_layout(storage), held)

    def _grow(self, storage: NativeStorage) -> None:
        """Follow torch in making the storage larger, as it does with an empty ``out=``."""
        if storage.covered:
            raise CaptureError(
                f"a resized tensor needs {storage.nbytes} bytes, and this lazy tensor has {storage.covered}.",
                "Make a new tensor of that shape and copy into it.",
            )
        dtype = storage.layout.dtype
        made = native.record(_EMPTY, ([storage.nbytes // dtype.itemsize],), {"dtype": dtype, "device": _CPU})
        storage.take_base(native.storage_of(made))

    def _base_layout(self, storage: NativeStorage) -> Layout:
        known: Layout = storage.layout
        if known.in_memory is known and known.dense and known.nbytes == storage.nbytes:
            return known
        layout: Layout = all_of(storage, known.dtype).layout
        return layout

    def stage(self, storage: NativeStorage, layout: Layout, data: memoryview) -> None:
        """Send these bytes as the beginning of the pool's copy of ``storage``, laid out like ``layout``."""
        if data.nbytes <= INLINE_SOURCE_BYTES_MAX:
            storage.send(layout, None, bytes(data))
        else:
            storage.send(layout, self._segment.backend.stage(data), None)

    def adopt_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a lazy copy of a plain tensor's present contents (what ``.to("cuda")`` gives)."""
        with paused(), torch.no_grad():
            return self.adopt(tensor.detach().clone(), "input")

    def adopt(self, plain: torch.Tensor, residency: str) -> torch.Tensor:
        """Return a lazy tensor on a plain tensor's memory; the pool gets a copy when it needs one."""
        layout = Layout.of_tensor(plain)
        memory = plain.untyped_storage()
        storage = self._core.new_storage(memory.nbytes(), layout, residency)
        storage.host = memory
        made: torch.Tensor = native.wrap(native.Value(storage, layout, int(plain.storage_offset())))
        return made

    # ---------------------------------------------------------------- to the host

    def fetch(self, values: Sequence[NativeValue], cause: str) -> list[torch.Tensor]:
        """Return plain tensors over the host's copy of each value, fetched where it is not current. Not to be
        written to. Another thread's cell may write them meanwhile: then they are what they were before or
        after one of its parts, and the host's copy is not current afterwards."""
        with paused():
            found = {value.key(): _current_view(value) for value in values}
            wanted = {value.key(): value for value in values if found[value.key()] is None}
            if wanted:
                self._segment.settle_launched()
            targets = [self._target(value, False) for value in wanted.values()]
            fetched = self._bring(targets, cause)
            for (key, value), target, tensor in zip(wanted.items(), targets, fetched, strict=True):
                found[key] = tensor if target is value else view_of(value, tensor.untyped_storage())
            return [view for value in values if (view := found[value.key()]) is not None]

    def fetch_whole(self, storages: Sequence[NativeStorage], cause: str) -> None:
        """Make the host's copy of these storages current, all of them."""
        with paused():
            while wanted := {s.serial: s for s in storages if s.nbytes and not s.host_is_current()}:
                self._segment.settle_launched()
                self._bring([self._target(whole(s), True) for s in wanted.values()], cause)
            for storage in storages:
                if not storage.nbytes and not storage.host_is_current():
                    storage.host = torch.UntypedStorage(0)

    def _target(self, value: NativeValue, whole: bool) -> NativeValue:
        """Return ``value`` itself, or all of its storage where that is small or mostly wanted anyway."""
        storage = value.storage
        self.ready(storage)
        small = storage.nbytes <= max(WHOLE_STORAGE_BYTES_MAX, 4 * value.layout.nbytes)
        if value.covers_storage() or not (whole or small) or storage.nbytes % value.layout.dtype.itemsize:
            return value
        return all_of(storage, value.layout.dtype)

    def _bring(self, targets: Sequence[NativeValue], cause: str) -> list[torch.Tensor]:
        """Fetch, and keep what is all of a storage, also what comes along."""
        if not targets:
            return []
        cut = Cut(cause, self._core.line)
        self._segment.before_cut(cut)
        beside = [] if cause != "item" else self._core.pending_integers(INTEGERS_BESIDE_MAX)
        asked = {target.storage.serial for target in targets}
        more = [whole(storage) for storage in beside if storage.serial not in asked]
        all_of_them = [*targets, *more]
        versions = [value.storage.version for value in all_of_them]
        fetched = self._segment.flush(cut, self._core.ids(all_of_them))
        kept = [_kept(*one) for one in zip(all_of_them, fetched, versions, strict=True)]
        return kept[: len(targets)]

    # ---------------------------------------------------------------- shared with others

    def window(self, value: NativeValue, cause: str) -> torch.Tensor:
        """Return a plain tensor that shares memory with ``value``, as long as it lives."""
        self.fetch_whole([value.storage], cause)
        self.exposures.expose(value.storage)
        with paused():
            return host_view(value)

    def show(self, storage: NativeStorage) -> None:
        """Fetch the bytes for C++ code that takes their address: torch's own fills small tensors so."""
        if storage.just_allocated:
            storage.host = torch.UntypedStorage(storage.nbytes)
            storage.written_on_host()
        else:
            self.fetch_whole([storage], "memory read")
            self.exposures.expose(storage)

    def share_between_processes(self, storage: NativeStorage) -> None:
        """Move the host's copy to memory that processes share; they may write it unseen."""
        self.fetch_whole([storage], "share_memory_")
        with paused():
            storage.host.share_memory_()
            self.exposures.expose(storage)
        storage.exposure.for_good = True

    def share(self, plain: torch.Tensor) -> torch.Tensor:
        """A lazy tensor that shares memory with a plain one."""
        with paused():
            lazy = self.adopt(plain, "input")
        storage = native.storage_of(lazy)
        self.exposures.expose(storage)
        storage.exposure.for_good = is_seen_by_others(plain)
        return lazy


def _is_held(storage: NativeStorage) -> bool:
    return storage.exposure.pinned is not None or storage.host_users > 0


def _dtype_of(storage: NativeStorage) -> torch.dtype:
    dtype: torch.dtype = storage.layout.dtype
    return dtype if storage.nbytes % dtype.itemsize == 0 else torch.uint8


def _kept(value: NativeValue, tensor: torch.Tensor, version: int) -> torch.Tensor:
    """Return fetched bytes laid out like ``value``. They are the storage's host copy from now on when they
    are all of the storage, as it was at ``version`` and is still."""
    if not value.covers_storage():
        return tensor
    layout = value.layout
    if tensor.stride() != layout.stride:
        if tensor.dtype is torch.bool:
            tensor = tensor.view(torch.uint8)  # a copy of bools would make each byte 0 or 1
        with torch.no_grad():
            tensor = torch.empty_strided(layout.shape, layout.stride, dtype=tensor.dtype).copy_(tensor)
    memory = native.resizable(tensor.untyped_storage())  # a mapped file would stay as it is
    value.storage.keep_host(memory, version)
    return view_of(value, memory)


class _Was(NamedTuple):
    storage: NativeStorage
    base_id: int | None
    version: int
    host: Any
    lost: str | None


class NativeCheckpoint:
    """A :class:`~djinn_lab.capture.recorders.Checkpoint` of the native recorder."""

    def __init__(self, core: NativeCore, backend: Backend, end_cell: Callable[[], None]) -> None:
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
        died = sorted(base_id for base_id in self._known - alive if base_id is not None)
        if died:
            self._backend.release(died)
