"""Plain tensors that captured ops read or write.

Reading: the bytes are snapshotted at that moment and sent by content, so later writes on the host change
nothing. A snapshot is reused within a cell while the tensor's version counter stands still; memory that
torch does not own (numpy's) can change without it and is snapshotted at every use.

Writing: a plain tensor that a captured op writes has its truth on the pool until the cell ends; then (or
as soon as anything on the host is about to look) the new bytes are copied back into its own memory, where
every alias and numpy array sees them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from djinn_lab.capture.host.exposure import is_seen_by_others
from djinn_lab.capture.host.memory_bytes import bytes_of, travelling
from djinn_lab.capture.python.identity import is_in_a_graph, take_over
from djinn_lab.capture.python.pool_copies import PoolCopies
from djinn_lab.capture.python.tensor import LazyTensor, wrap
from djinn_lab.capture.python.value_table import ValueTable
from djinn_lab.capture.refusals import refuse_unsupported
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.values import Layout, LazyStorage, LazyValue, StorageOwner, read_as
from djinn_lab.srg.program import Residency


class Twin:
    """The pool's copy of a plain tensor, valid while its version counter is ``version``."""

    __slots__ = ("reference", "value", "version")

    def __init__(self, tensor: torch.Tensor, value: LazyValue) -> None:
        self.reference = weakref.ref(tensor)
        self.value = value
        self.version = tensor._version


class HostTensors:
    def __init__(self, owner: StorageOwner, copies: PoolCopies, table: ValueTable) -> None:
        self._owner = owner
        self._copies = copies
        self._table = table
        self._twins: dict[int, dict[int, Twin]] = {}
        self.dirty: dict[int, tuple[torch.Tensor, LazyTensor]] = {}

    def value_of(self, tensor: torch.Tensor) -> LazyValue:
        """The pool's value for a plain tensor as it is now."""
        refuse_unsupported(tensor)
        if self.dirty:
            entry = self.dirty.get(_storage_address(tensor))
            if entry is not None and entry[0] is tensor:
                return entry[1]._value
            if entry is not None:
                self.write_back("a view of a written tensor was read")
        twins = self._twins.setdefault(_storage_address(tensor), {})
        twin = twins.get(id(tensor))
        if twin is not None and twin.reference() is tensor and twin.version == tensor._version:
            return twin.value
        value = self._snapshot(tensor)
        if not is_seen_by_others(tensor):
            twins[id(tensor)] = Twin(tensor, value)
        return value

    def mark_written(self, tensor: torch.Tensor, value: LazyValue) -> None:
        """A captured op wrote ``tensor``, whose pool copy is ``value``."""
        self.dirty[_storage_address(tensor)] = (tensor, wrap(value))
        self.forget(tensor)

    def is_dirty(self, tensor: torch.Tensor) -> bool:
        return bool(self.dirty) and _storage_address(tensor) in self.dirty

    def settle_views(self, tensors: Sequence[torch.Tensor]) -> None:
        """Write back to other views of tensors written in this cell, before an op that writes."""
        for tensor in tensors:
            if type(tensor) is not LazyTensor:
                entry = self.dirty.get(_storage_address(tensor))
                if entry is not None and entry[0] is not tensor:
                    self.write_back("a view of a written tensor was read")

    def settle(self, tensor: torch.Tensor) -> None:
        """The host is about to read or replace the memory of ``tensor``."""
        if self.dirty and type(tensor) is not LazyTensor:
            with paused():
                dirty = self.is_dirty(tensor)
            if dirty:
                self.write_back("a tensor written in this cell was read on the host")

    def must_write(self, tensor: torch.Tensor) -> bool:
        """A plain tensor that the host itself has to write: others see its memory, or its elements share
        it."""
        shown = is_seen_by_others(tensor) or self._copies.exposures.covers(tensor)
        return shown or Layout.of_tensor(tensor).overlaps

    def share_memory(self, written: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether a plain tensor among ``written`` is another view of one of ``tensors``. Snapshots
        would not be."""
        plain = [tensor for tensor in written if type(tensor) is not LazyTensor]
        if not plain or len(tensors) < 2:
            return False
        others = [tensor for tensor in tensors if type(tensor) is not LazyTensor]
        addresses = {_storage_address(tensor) for tensor in plain}
        return len({id(tensor) for tensor in others if _storage_address(tensor) in addresses}) > len(
            addresses
        )

    def forget(self, tensor: torch.Tensor) -> None:
        """This tensor's memory is about to change, also for other tensors that share it."""
        self._twins.pop(_storage_address(tensor), None)

    def end_cell(self) -> None:
        self._twins.clear()

    def _snapshot(self, tensor: torch.Tensor) -> LazyValue:
        """A new pool value with the tensor's present contents."""
        layout = Layout.of_tensor(tensor)
        storage = LazyStorage(self._owner, self._table.new_id(), layout.span_bytes, "input")
        value = self._table.new_value(storage, layout.in_memory, 0)
        held = travelling(read_as(tensor.detach(), layout), layout)  # either bit twice is none
        self._copies.add_source(value, bytes_of(held, layout))
        return self._copies.read_as(value, layout)

    def write_back(self, cause: str) -> None:
        """Copy what captured ops wrote to plain tensors into their own memory."""
        if not self.dirty:
            return
        self._copies.before_cut(cause)
        dirty, self.dirty = list(self.dirty.values()), {}
        self.end_cell()
        fetched = self._copies.fetch([lazy._value for _, lazy in dirty], cause)
        with paused(), torch.no_grad():
            for (tensor, _), new in zip(dirty, fetched, strict=True):
                tensor.detach().copy_(new)

    def make_lazy_in_place(self, tensor: torch.Tensor, residency: Residency) -> bool:
        """Turn a plain tensor into a lazy one, keeping its identity (parameters and buffers of modules).
        False when torch refuses: something else shares its memory or a graph is built on it; it then
        stays plain, which is as right."""
        storage = tensor.untyped_storage()
        layout = Layout.of_tensor(tensor)
        whole = (
            layout.dense
            and layout.in_memory is layout
            and tensor.storage_offset() == 0
            and layout.nbytes == storage.nbytes()
        )
        shared = torch._C._storage_Use_Count(storage._cdata) > 2 or is_seen_by_others(tensor)
        if not whole or shared or layout.nbytes == 0 or _storage_address(tensor) in self.dirty:
            return False
        if is_in_a_graph(tensor) and _storage_address(tensor) in self._twins:
            return False  # a graph of this cell: backward is to come
        own = LazyStorage(self._owner, self._table.new_id(), layout.nbytes, residency)
        own.host, own.host_version = storage, 0
        return self.become(tensor, wrap(self._copies.not_sent(own, layout, 0)))

    def become(self, tensor: torch.Tensor, lazy: LazyTensor) -> bool:
        """Turn a plain tensor into a lazy one, keeping its identity. False when torch refuses."""
        self.forget(tensor)
        return take_over(tensor, lazy)


def _storage_address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
