"""Keeps the pool's copy and the host's copy of each storage in step.

Before a node reads a value, :meth:`PoolCopies.ready` makes sure that the pool has it as it is now; before
the host reads one, :meth:`PoolCopies.fetch` does the same for the host. Each moves bytes only when the
other side has newer ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from djinn_lab.capture.arguments import Arguments
from djinn_lab.capture.host.exposure import Exposures, is_seen_by_others
from djinn_lab.capture.host.memory_bytes import bytes_of_storage
from djinn_lab.capture.python.assembly import PendingSource
from djinn_lab.capture.python.nodes import PythonNodes
from djinn_lab.capture.python.tensor import LazyTensor, wrap
from djinn_lab.capture.sending.backend import INLINE_SOURCE_BYTES_MAX, Cut
from djinn_lab.capture.sending.segment import POOL_LOST, Segment, paused
from djinn_lab.capture.shapes.signature import signature_of
from djinn_lab.capture.values import Layout, LazyStorage, LazyValue, StorageOwner
from djinn_lab.errors import ValueLost
from djinn_lab.srg.lost_values import RUN_AGAIN

_AS_STRIDED = torch.ops.aten.as_strided.default
_VIEW_DTYPE = torch.ops.aten.view.dtype
_BITS = (
    ("conjugate", torch.ops.aten._conj.default),
    ("negative", torch.ops.aten._neg_view.default),
)
WHOLE_STORAGE_BYTES_MAX = 2**20
"""A view of a storage up to this size is fetched with the whole storage, which then serves its other
views."""


def _is_held(storage: LazyStorage) -> bool:
    assert storage.host is not None
    return torch._C._storage_Use_Count(storage.host._cdata) > 1


class PoolCopies:
    def __init__(self, owner: StorageOwner, segment: Segment, nodes: PythonNodes) -> None:
        self._owner = owner
        self._segment = segment
        self._nodes = nodes
        self._table = nodes.table
        self.exposures = Exposures(weakref.ref, _is_held)

    # ---------------------------------------------------------------- to the pool

    def ready(self, value: LazyValue) -> None:
        """Derive ``value`` again from the host's bytes, when the pool has no current copy of its memory.
        Raises ValueLost when no copy is left."""
        reason = self._table.lost.get(value.id)
        if reason is not None:
            raise ValueLost(reason, RUN_AGAIN)
        storage = value.storage
        self.exposures.refresh(storage)
        if value.generation == storage.generation:
            return
        self._table.rename(value)
        if storage.base_id is None:
            self._send_base(value)
        if value.id != storage.base_id:
            assert storage.base_layout is not None
            assert storage.base_id is not None
            base = LazyValue(storage, storage.base_id, storage.base_layout, 0, storage.generation)
            base.owned = False
            self._record_view(base, value)
        value.generation = storage.generation

    def _send_base(self, value: LazyValue) -> None:
        storage = value.storage
        if not storage.host_is_current():
            raise ValueLost(POOL_LOST, RUN_AGAIN)
        assert storage.host is not None
        storage.id = self._table.new_id()
        base = value
        if not value.covers_storage():
            base = self._table.new_value(storage, _all_of(storage, value.layout.dtype), 0)
        self._table.give_to_storage(base)
        self.add_source(base, bytes_of_storage(storage.host))

    def _record_view(self, base: LazyValue, view: LazyValue) -> None:
        """Record ``view`` as the strided view of ``base``'s storage that it is."""
        base = self.read_as(base, base.layout.in_memory)
        if base.layout.dtype != view.layout.dtype:
            base = self._retyped(base, view.layout.dtype)
        shape, stride = list(view.layout.shape), list(view.layout.stride)
        if view.layout.in_memory is view.layout:
            self._push_view(_AS_STRIDED, base, view, shape, stride, view.offset)
            return
        strided = self._table.new_value(view.storage, view.layout.in_memory, view.offset)
        self._push_view(_AS_STRIDED, base, strided, shape, stride, view.offset)
        self.read_as(strided, view.layout, view)

    def _retyped(self, base: LazyValue, dtype: torch.dtype) -> LazyValue:
        """Return all of the storage behind ``base``, as elements of another dtype."""
        storage, old = base.storage, base.layout.dtype
        flat = self._table.new_value(storage, _all_of(storage, old), 0)
        self._push_view(_AS_STRIDED, base, flat, [storage.nbytes // old.itemsize], [1], 0)
        retyped = self._table.new_value(storage, _all_of(storage, dtype), 0)
        self._push_view(_VIEW_DTYPE, flat, retyped, dtype)
        return retyped

    def read_as(self, value: LazyValue, layout: Layout, found: LazyValue | None = None) -> LazyValue:
        """Return the value with the lazy bits of ``layout`` over the same memory; ``found``: the value to
        define as that."""
        for bit, func in _BITS:
            if getattr(value.layout, bit) == getattr(layout, bit):
                continue
            now = value.layout
            bits = {"conjugate": now.conjugate, "negative": now.negative, bit: getattr(layout, bit)}
            turned = Layout.of(now.dtype, now.shape, now.stride, **bits)
            last = found is not None and turned is layout
            view = found if last else self._table.new_value(value.storage, turned, value.offset)
            assert view is not None
            self._push_view(func, value, view)
            value = view
        return value

    def _push_view(self, func: OpOverload, base: LazyValue, view: LazyValue, *more: object) -> None:
        signature = signature_of(func)
        args = (wrap(base), *more)
        call = Arguments(lambda tensor: base, signature, args, {})
        plan = self._nodes.plan(signature, call, args, {})
        self._nodes.push(plan, call, (view.id,), (view.storage.id,), (), False)

    def add_source(self, value: LazyValue, data: memoryview) -> None:
        """Send these bytes as the beginning of ``value``."""
        inline = bytes(data) if data.nbytes <= INLINE_SOURCE_BYTES_MAX else None
        blob = self._segment.backend.stage(data) if inline is None else None
        storage = value.storage
        self._table.held[value.id] = PendingSource(storage.id, value.layout, storage.residency, blob, inline)

    def adopt_copy(self, tensor: torch.Tensor) -> LazyTensor:
        """Return a lazy tensor with a copy of a tensor's present contents (what ``.to("cuda")`` gives)."""
        with paused(), torch.no_grad():
            copied = tensor.detach().clone()
        layout = Layout.of_tensor(copied)
        memory = copied.untyped_storage()
        storage = LazyStorage(self._owner, self._table.new_id(), memory.nbytes(), "input")
        storage.host, storage.host_version = memory, 0
        return wrap(self.not_sent(storage, layout, int(copied.storage_offset())))

    def not_sent(self, storage: LazyStorage, layout: Layout, offset: int) -> LazyValue:
        """Make a value that only the host has so far."""
        value = self._table.new_value(storage, layout, offset)
        value.generation = -1
        return value

    # ---------------------------------------------------------------- to the host

    def fetch(self, values: Sequence[LazyValue], cause: str) -> list[torch.Tensor]:
        """Return plain tensors over the host's copy of each value, fetched where it is not current."""
        with paused():
            wanted = {value.id: value for value in values if not value.storage.host_is_current()}
            if wanted:
                self._segment.settle_launched()
            direct: dict[int, torch.Tensor] = {}
            targets = [self._target(value, False) for value in wanted.values()]
            fetched = self._bring(targets, cause)
            for value, target, tensor in zip(wanted.values(), targets, fetched, strict=True):
                if not _cache(target, tensor):
                    direct[value.id] = tensor
            return [direct[value.id] if value.id in direct else value.host_view() for value in values]

    def array(self, value: LazyValue, cause: str) -> Any:
        """Return a numpy array that shares memory with ``value``."""
        with paused():
            return self.window(value, cause).numpy()

    def window(self, value: LazyValue, cause: str) -> torch.Tensor:
        """Return a plain tensor that shares memory with ``value``."""
        self.fetch_whole([value], cause)
        self.exposures.expose(value.storage, for_good=False)
        with paused():
            return value.host_view()

    def share_between_processes(self, value: LazyValue) -> None:
        """Move the host's copy to memory that processes share; they may write it unseen."""
        self.fetch_whole([value], "share_memory_")
        with paused():
            assert value.storage.host is not None
            value.storage.host.share_memory_()
            self.exposures.expose(value.storage, for_good=True)

    def shared(self, plain: torch.Tensor) -> LazyTensor:
        """Return a lazy tensor that shares memory with a plain one."""
        with paused():
            layout = Layout.of_tensor(plain)
            memory = plain.untyped_storage()
            storage = LazyStorage(self._owner, self._table.new_id(), memory.nbytes(), "input")
            storage.host, storage.host_version = memory, 0
            self.exposures.expose(storage, for_good=is_seen_by_others(plain))
            return wrap(self.not_sent(storage, layout, int(plain.storage_offset())))

    def fetch_whole(self, values: Sequence[LazyValue], cause: str) -> None:
        """Make the host's copy of the storages behind ``values`` current, all of them."""
        with paused():
            wanted = {value.storage: value for value in values if not value.storage.host_is_current()}
            if wanted:
                self._segment.settle_launched()
            targets = [self._target(value, True) for value in wanted.values()]
            for target, tensor in zip(targets, self._bring(targets, cause), strict=True):
                cached = _cache(target, tensor)
                assert cached

    def before_cut(self, cause: str) -> None:
        """Raise when a cut for this cause is forbidden."""
        self._segment.before_cut(Cut(cause, self._nodes.line()))

    def _bring(self, targets: Sequence[LazyValue], cause: str) -> list[torch.Tensor]:
        if not targets:
            return []
        cut = Cut(cause, self._nodes.line())
        return self._segment.flush(cut, [target.id for target in targets])

    def _target(self, value: LazyValue, whole: bool) -> LazyValue:
        """Return ``value`` itself, or all of its storage where that is small or mostly wanted anyway."""
        self.ready(value)
        storage = value.storage
        small = storage.nbytes <= max(WHOLE_STORAGE_BYTES_MAX, 4 * value.layout.nbytes)
        if value.covers_storage() or not (whole or small) or storage.nbytes % value.layout.dtype.itemsize:
            return value
        everything = self._table.new_value(storage, _all_of(storage, value.layout.dtype), 0)
        self._record_view(value, everything)
        return everything


def _all_of(storage: LazyStorage, dtype: torch.dtype) -> Layout:
    return Layout.of(dtype, (storage.nbytes // dtype.itemsize,), (1,))


def _cache(value: LazyValue, tensor: torch.Tensor) -> bool:
    """Keep fetched bytes as the storage's host copy, when they are the whole storage."""
    if not value.covers_storage():
        return False
    layout, storage = value.layout, value.storage
    if tensor.stride() != layout.stride:
        with torch.no_grad():
            tensor = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype).copy_(tensor)
    storage.host, storage.host_version = tensor.untyped_storage(), storage.version
    return True
