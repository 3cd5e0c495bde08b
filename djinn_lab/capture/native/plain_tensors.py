"""Plain tensors that captured ops read or write.

Reading: a parameter or buffer turns lazy in place. Of any other tensor the bytes are taken at that moment
and sent by content, so later writes on the host change nothing; that snapshot serves the cell while the
tensor's version counter stands still. Memory that others see (numpy, other processes) can change without it
and is taken at every use.

Writing: the tensor turns lazy in place, unless others share its memory. Then its truth is on the pool until
the cell ends, or until anything on the host is about to look; the new bytes go back into its own memory,
where every alias and numpy array sees them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from djinn_lab.capture.host.exposure import is_seen_by_others
from djinn_lab.capture.host.memory_bytes import bytes_of, travelling
from djinn_lab.capture.native.extension import NativeCore, NativeStorage, NativeValue, native
from djinn_lab.capture.native.memory import HostMemory
from djinn_lab.capture.refusals import refuse_unsupported
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.values import Layout, read_as


def _address(tensor: torch.Tensor) -> int:
    """Return where a tensor's memory is; no address for a sparse one, which has several."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else -1


def _is_as_written(entry: tuple[torch.Tensor, NativeStorage, torch.Tensor], tensor: torch.Tensor) -> bool:
    return entry[0] is tensor and Layout.of_tensor(tensor) is Layout.of_tensor(entry[2])


class PlainTensors:
    """Plain tensors that a cell reads or writes. ``dirty``: by address, those whose truth is on the pool, the
    pool's storage, and a view of the home memory: torch may give the tensor itself another shape meanwhile,
    without asking."""

    def __init__(self, core: NativeCore, memory: HostMemory) -> None:
        self._core = core
        self._memory = memory
        self.dirty: dict[int, tuple[torch.Tensor, NativeStorage, torch.Tensor]] = {}

    def read(self, tensor: torch.Tensor) -> None:
        """Get a plain tensor ready to be read by the next node."""
        refuse_unsupported(tensor)
        entry = self.dirty.get(_address(tensor)) if self.dirty else None
        if entry is not None and _is_as_written(entry, tensor):
            self._core.add_twin(tensor, entry[1], True)
            return
        if entry is not None:
            self.write_back("a view of a written tensor was read")
        if isinstance(tensor, torch.nn.Parameter) and self.make_lazy(tensor, "weight"):
            return
        changes_unseen = is_seen_by_others(tensor) or self._memory.exposures.covers(tensor)
        if changes_unseen or not self._core.has_twin(tensor):
            self._core.add_twin(tensor, self._snapshot(tensor), changes_unseen)

    def write(self, tensor: torch.Tensor) -> None:
        """Get a plain tensor ready to be written by the next node."""
        refuse_unsupported(tensor)
        if self.dirty and _address(tensor) in self.dirty:
            self.read(tensor)
        elif self.make_lazy(tensor, "input") or not tensor.numel():
            if not native.is_lazy(tensor):
                self.read(tensor)
            return
        storage = self._storage_for_writing(tensor)
        self.dirty[_address(tensor)] = (tensor, storage, tensor.detach())
        self._core.forget_twin(tensor)
        self._core.add_twin(tensor, storage, True)
        self._core.host_dirty = True

    def _storage_for_writing(self, tensor: torch.Tensor) -> NativeStorage:
        entry = self.dirty.get(_address(tensor))
        return entry[1] if entry is not None and _is_as_written(entry, tensor) else self._snapshot(tensor)

    def is_dirty(self, tensor: torch.Tensor) -> bool:
        return bool(self.dirty) and _address(tensor) in self.dirty

    def settle(self, tensor: torch.Tensor) -> None:
        """Bring ``tensor``'s memory up to date, since the host is about to read or replace it."""
        with paused():
            dirty = self.is_dirty(tensor)
        if dirty:
            self.write_back("a tensor written in this cell was read on the host")

    def must_write(self, tensor: torch.Tensor) -> bool:
        """Return whether the host itself has to write a plain tensor: others see its memory, its elements
        share it, or it is sparse."""
        if tensor.layout is not torch.strided:
            return True
        shown = is_seen_by_others(tensor) or self._memory.exposures.covers(tensor)
        return shown or Layout.of_tensor(tensor).overlaps

    def share_memory(self, written: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether a plain tensor among ``written`` is another view of one of ``tensors``. Snapshots
        would not be."""
        plain = [tensor for tensor in written if not native.is_lazy(tensor)]
        if not plain or len(tensors) < 2:
            return False
        others = [tensor for tensor in tensors if not native.is_lazy(tensor)]
        addresses = {_address(tensor) for tensor in plain}
        return len({id(tensor) for tensor in others if _address(tensor) in addresses}) > len(addresses)

    def forget(self, tensor: torch.Tensor) -> None:
        """Forget this tensor's memory, which is about to change, also for other tensors that share it."""
        self._core.forget_twin(tensor)

    def end_cell(self) -> None:
        self._core.clear_twins()

    def write_back(self, cause: str) -> None:
        """Copy what captured ops wrote to plain tensors into their own memory."""
        if not self.dirty:
            return
        dirty, self.dirty = list(self.dirty.values()), {}
        try:
            values = [native.Value(storage, Layout.of_tensor(home), 0) for _, storage, home in dirty]
            fetched = self._memory.fetch(values, cause)
        except BaseException:
            self.dirty = {_address(home): (tensor, storage, home) for tensor, storage, home in dirty}
            raise
        self._core.host_dirty = False
        self.end_cell()
        with paused(), torch.no_grad():
            for (_, _, home), new in zip(dirty, fetched, strict=True):
                home.copy_(new)

    def drop_dirty(self) -> list[NativeValue]:
        """Forget what captured ops wrote to plain tensors; return the values that hold it on the pool."""
        dirty, self.dirty = self.dirty, {}
        self._core.host_dirty = False
        return [native.Value(storage, Layout.of_tensor(home), 0) for _, storage, home in dirty.values()]

    def make_lazy(self, tensor: torch.Tensor, residency: str) -> bool:
        """Turn a plain tensor into a lazy one, keeping its identity and its graph. False when something else
        shares its memory; it then stays plain, which is as right."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return False
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            return False
        layout = Layout.of_tensor(tensor)
        whole = layout.dense and layout.in_memory is layout and tensor.storage_offset() == 0
        memory = tensor.untyped_storage()
        if not whole or layout.nbytes != memory.nbytes() or layout.nbytes == 0 or is_seen_by_others(tensor):
            return False
        del memory
        if native.storage_users(tensor) > 1 or self.is_dirty(tensor):
            return False
        self.forget(tensor)
        native.look_at(tensor, native.value_of(self._memory.adopt(tensor, residency)))
        return True

    def _snapshot(self, tensor: torch.Tensor) -> NativeStorage:
        """Return a new storage of the pool's with the tensor's present contents."""
        layout = Layout.of_tensor(tensor)
        storage = self._core.new_storage(layout.span_bytes, layout.in_memory, "input")
        held = travelling(read_as(tensor.detach(), layout), layout)  # either bit twice is none
        self._memory.stage(storage, layout.in_memory, bytes_of(held, layout))
        return storage
