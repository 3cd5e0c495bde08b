"""What tensors were before a cell gave them other memory, another layout or a history.

An op that writes memory and does not run leaves what was there. But ``x.data = y`` (which is how
``model.half()`` changes parameters), ``x.set_(y)``, ``x.t_()`` and their kind change the tensor itself while
the cell is recorded. What it was is kept here until the pool has computed the part of the cell that this
belongs to, and put back where the pool has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.torch_functions.replaced import Wanted

if TYPE_CHECKING:
    from djinn_lab.capture.recorders import Recorder

_OF_MODULES = torch.nn.Parameter, torch.nn.Buffer
Names = dict[str, Any]
"""Tensors, or None."""


class _FormerTensor:
    """A tensor, before its memory or layout was changed."""

    def __init__(self, recorder: Recorder, tensor: torch.Tensor) -> None:
        self.part: int | None = None
        self._tensor = tensor  # no weak reference, which torch.utils.swap_tensors refuses
        self._recorder = recorder
        self._lazy = is_lazy(tensor)
        self._was: Any = recorder.value_to_keep(tensor) if self._lazy else tensor.detach()
        self._given: object = None

    def leave(self) -> None:
        self._given = _identity(self._recorder, self._tensor)

    def put_back(self, lost_only: bool) -> None:
        tensor, recorder = self._tensor, self._recorder
        if self._given != _identity(recorder, tensor):
            return
        if lost_only and not (is_lazy(tensor) and recorder.why_lost(tensor) is not None):
            return
        if self._lazy:
            recorder.restore_value(tensor, self._was)
        else:
            recorder.replace(tensor, self._was)


class _FormerNames:
    """What a module's parameters and buffers were, before it named them anew."""

    def __init__(self, recorder: Recorder, module: torch.nn.Module) -> None:
        self.part: int | None = None
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
                lost = now is not None and is_lazy(now) and self._recorder.why_lost(now) is not None
                if lost or not lost_only:
                    table[name] = tensor


class FormerTensors:
    """Of the cell that is recorded. ``rehearsed``: nothing of it is to run, so nothing is forgotten until all
    is put back."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._kept: list[_FormerTensor | _FormerNames] = []
        self._open: dict[int, _FormerTensor] = {}
        """Tensors whose former selves the part has that is recorded now."""
        self._sent = self._computed = 0
        self.rehearsed = False

    @contextmanager
    def changing(self, tensor: torch.Tensor) -> Iterator[None]:
        """Keep what a tensor is, whose memory or layout is changed inside."""
        recorder = self._recorder
        if not recorder.capturing or not _has_memory(tensor) or recorder.made_in_cell(tensor):
            yield
            return
        recorder.segment.settle_launched()
        with paused():
            known = self._open.get(id(tensor))
            former = known or _FormerTensor(recorder, tensor)
        yield
        with paused():
            former.leave()
        if known is None:
            self._kept.append(former)
            self._open[id(tensor)] = former

    @contextmanager
    def naming(self, module: torch.nn.Module) -> Iterator[None]:
        """Keep what a module's parameters and buffers are, which are named anew inside."""
        self._recorder.segment.settle_launched()
        former = _FormerNames(self._recorder, module)
        yield
        former.leave()
        self._kept.append(former)

    def sent(self) -> None:
        """Note that what was recorded so far is a part of the cell, and goes to the pool."""
        self._sent += 1
        self._open.clear()
        for former in reversed(self._kept):
            if former.part is not None:
                break
            former.part = self._sent

    def computed(self) -> None:
        """Note that the pool has computed the oldest part that was sent."""
        self._computed += 1
        if not self.rehearsed:
            late = (former.part is None or former.part > self._computed for former in self._kept)
            self._kept = [former for former, is_late in zip(self._kept, late, strict=True) if is_late]
            self._recorder.begin_histories(False)

    def leave(self) -> None:
        """The cell's code has ended: what is changed from now on stays."""
        self._recorder.leave_histories()

    def put_back_lost(self) -> None:
        """Put back what the cell replaced by something that was not computed. Nothing is under way."""
        self._computed = self._sent
        self._put_back(lost_only=True)

    def put_back(self) -> None:
        """Put back all: nothing of the cell has run."""
        self._put_back(lost_only=False)
        self._recorder.put_back_histories()
        self.rehearsed = False
        self.forget()

    def _put_back(self, lost_only: bool) -> None:
        with paused():
            for former in reversed(self._kept):
                former.put_back(lost_only)

    def forget(self) -> None:
        """Forget what is kept: the cell stands as it is, and what is recorded now is the next one's."""
        if not self.rehearsed:
            self._kept.clear()
            self._open.clear()
            self._recorder.begin_histories(self._recorder.capturing)


def _has_memory(tensor: torch.Tensor) -> bool:
    """Return whether it is a tensor of the user's, and none of torch's stand-ins for one."""
    return is_lazy(tensor) or (type(tensor) in (torch.Tensor, *_OF_MODULES) and not tensor.is_meta)


def _identity(recorder: Recorder, tensor: torch.Tensor) -> object:
    """Return what tells the memory and the layout of a tensor from others."""
    if is_lazy(tensor):
        return recorder.identity_of(tensor)
    place = tensor.data_ptr() if tensor.layout is torch.strided else id(tensor)
    return place, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def former_modules(recorder: Recorder) -> list[Wanted]:
    """Keep what modules name while a cell is captured: ``half``, ``to`` and their kind give buffers, and some
    parameters, other tensors."""

    def keeping(apply: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(apply)
        def kept(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not recorder.captures_here:
                return apply(module, *args, **kwargs)
            with recorder.former.naming(module):
                return apply(module, *args, **kwargs)

        return kept

    return [(torch.nn.Module, "_apply", keeping)]
