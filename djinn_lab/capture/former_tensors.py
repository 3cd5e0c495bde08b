"""What tensors were before a cell gave them other memory, another layout or a history.

An op that writes memory and does not run leaves what was there. But ``x.data = y`` (which is how
``model.half()`` changes parameters), ``x.set_(y)``, ``x.t_()`` and their kind change the tensor itself while
the cell is recorded. What it was is kept here until the pool has computed the part of the cell that this
belongs to, and put back where the pool has not.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.sending.segment import Place, paused
from djinn_lab.capture.torch_functions.replaced import Wanted

if TYPE_CHECKING:
    from djinn_lab.capture.recorders import Recorder

_OF_MODULES = torch.nn.Parameter, torch.nn.Buffer
Names = dict[str, Any]
"""Tensors, or None."""


class _FormerTensor:
    """A tensor, before its memory or layout was changed. ``place``: when it was that last. ``is_of_values``:
    each time it kept its shape and dtype."""

    def __init__(self, recorder: Recorder, tensor: torch.Tensor) -> None:
        self.place = 0, 0
        self.is_of_values = False
        self._tensor = tensor  # no weak reference, which torch.utils.swap_tensors refuses
        self._recorder = recorder
        self._lazy = is_lazy(tensor)
        self._was: Any = recorder.value_to_keep(tensor) if self._lazy else tensor.detach()
        self._given: object = None

    def leave(self) -> None:
        self._given = _identity(self._recorder, self._tensor)

    def put_back(self, lost_only: bool) -> None:
        tensor, recorder = self._tensor, self._recorder
        if self._given != _identity(recorder, tensor) or (lost_only and recorder.why_lost(tensor) is None):
            return
        if self._lazy:
            recorder.restore_value(tensor, self._was)
        else:
            recorder.replace(tensor, self._was)


class _FormerNames:
    """What a module's parameters and buffers were, before it named them anew at ``place``."""

    def __init__(self, recorder: Recorder, module: torch.nn.Module) -> None:
        self.place = 0, 0
        self._recorder = recorder
        self._tables: list[Names] = [module._parameters, module._buffers]
        self._was = [dict(table) for table in self._tables]
        self._given: list[Names] = []

    def leave(self) -> None:
        self._given = [dict(table) for table in self._tables]

    def put_back(self, lost_only: bool) -> None:
        for table, was, given in zip(self._tables, self._was, self._given, strict=True):
            for name, tensor in was.items():
                now = given.get(name)
                if now is tensor or table.get(name) is not now:
                    continue
                if not lost_only or (now is not None and self._recorder.why_lost(now) is not None):
                    table[name] = tensor


class FormerTensors:
    """Of the cell that is recorded, as a follower of its parts."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._kept: list[_FormerTensor | _FormerNames] = []
        self._open: dict[int, _FormerTensor] = {}
        """Of tensors that have memory from the part that is recorded now."""

    @contextmanager
    def changing(self, tensor: torch.Tensor) -> Iterator[None]:
        """Keep what a tensor is, whose memory or layout is changed inside; but not each of the values that it
        has in between, in memory that this part of the cell makes: a loop makes many."""
        recorder = self._recorder
        made_here = recorder.made_in_part(tensor)
        known = self._open.get(id(tensor)) if made_here else None
        if not recorder.capturing or not _has_memory(tensor) or (made_here and known is None):
            yield
            return
        recorder.segment.settle_launched()
        with paused():
            before, former = _form(tensor), _FormerTensor(recorder, tensor)
        recorder.remember_history(tensor)  # what is written from now on has memory of this part
        yield
        former.is_of_values = _form(tensor) == before
        if known is not None and known.is_of_values and former.is_of_values:
            former = known
        else:
            self._kept.append(former)
            self._open[id(tensor)] = former
        with paused():
            former.leave()
        former.place = recorder.segment.place

    def detaching(self, tensor: torch.Tensor) -> None:
        """Keep what a tensor is to autograd, which is about to be changed without an op."""
        recorder = self._recorder
        if _has_memory(tensor) and (id(tensor) in self._open or not recorder.made_in_part(tensor)):
            recorder.segment.settle_launched()
            recorder.remember_history(tensor)

    @contextmanager
    def naming(self, module: torch.nn.Module) -> Iterator[None]:
        """Keep what a module's parameters and buffers are, which are named anew inside."""
        self._recorder.segment.settle_launched()
        former = _FormerNames(self._recorder, module)
        yield
        former.leave()
        former.place = self._recorder.segment.place
        self._kept.append(former)

    def rehearse(self) -> None:
        """Forget nothing until all is put back: nothing of this cell is to run."""
        self._recorder.keeps_histories = True

    def sent(self) -> None:
        self._open.clear()
        self._recorder.begin_part()

    def computed(self, part: int) -> None:
        if not self._recorder.keeps_histories:
            self._kept = [former for former in self._kept if former.place[0] > part]

    def failed(self, place: Place) -> None:
        """Put back what the cell changed later, or gave memory that was not computed, and let go of gradients
        that were not."""
        with paused():
            for former in reversed(self._kept):
                former.put_back(lost_only=former.place <= place)
        self._open.clear()
        self._look_at_all()

    def put_back(self) -> None:
        """Put back all: nothing of the cell has run."""
        self._recorder.take_histories(True)
        with paused():
            for former in reversed(self._kept):
                former.put_back(lost_only=False)
        self._look_at_all()
        self._recorder.keeps_histories = False
        self.forget()

    def _look_at_all(self) -> None:
        """See to what nothing told of: gradients that were not computed, and views of what was put back."""
        with paused():
            tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
            tensors = [tensor for tensor in tensors if _has_memory(tensor)]
            for tensor in tensors:
                if tensor.is_leaf and tensor.grad is not None and self._recorder.why_lost(tensor.grad):
                    tensor.grad = None
            self._recorder.renew_views([tensor for tensor in tensors if tensor._is_view()])

    def leave(self) -> None:
        """The cell's code has ended: what is changed from now on stays."""
        self._recorder.leave_histories()

    def forget(self) -> None:
        """Forget what is kept: the cell stands as it is, and what is recorded now is the next one's."""
        if not self._recorder.keeps_histories:
            self._kept.clear()
            self._open.clear()
            self._recorder.take_histories(False)


def _form(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape


def _has_memory(tensor: torch.Tensor) -> bool:
    """Return whether it is a tensor of the user's, and none of torch's stand-ins for one."""
    if isinstance(tensor, (UninitializedBuffer, UninitializedParameter)):
        return False
    return is_lazy(tensor) or (type(tensor) in (torch.Tensor, *_OF_MODULES) and not tensor.is_meta)


def _identity(recorder: Recorder, tensor: torch.Tensor) -> object:
    """Return what tells the memory and the layout of a tensor from others."""
    if is_lazy(tensor):
        return recorder.identity_of(tensor)
    place = tensor.data_ptr() if tensor.layout is torch.strided else id(tensor)
    return place, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def kept_former(recorder: Recorder) -> list[Wanted]:
    """Keep, while a cell is captured, what functions of torch change without an op: ``half``, ``to`` and
    their kind give a module other buffers, and sometimes parameters; a tensor is detached, or is to require
    gradients."""

    def keeping(apply: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(apply)
        def kept(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not recorder.captures_here:
                return apply(module, *args, **kwargs)
            with recorder.former.naming(module):
                return apply(module, *args, **kwargs)

        return kept

    def remembering(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def remembered(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if recorder.captures_here:
                recorder.former.detaching(tensor)
            return method(tensor, *args, **kwargs)

        return remembered

    changing_itself = [(torch.Tensor, name, remembering) for name in ("detach_", "requires_grad_")]
    return [(torch.nn.Module, "_apply", keeping), *changing_itself]
