"""Tensors that change shape in place: ``t_`` and its kind, ``resize_``, ``out=`` of another shape.

A plain tensor does so on the host. A lazy one comes to name another view of its memory, or new memory where
it had none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from djinn_lab.capture.former_tensors import FormerTensors
from djinn_lab.capture.python.host_tensors import HostTensors
from djinn_lab.capture.python.tensor import LazyTensor, become
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.shapes.signature import Signature, signature_of
from djinn_lab.capture.shapes.stand_ins import changed_shape, on_meta, resized_layout
from djinn_lab.capture.values import Layout
from djinn_lab.errors import CaptureError

_aten = torch.ops.aten
_AS_STRIDED = signature_of(_aten.as_strided.default)
_EMPTY_STRIDED = signature_of(_aten.empty_strided.default)
_RESIZE = ("aten.resize_.default", "aten.resize_as_.default")


class Resizing:
    """``record``: records one op of the graph."""

    def __init__(
        self,
        record: Callable[[Signature, tuple[Any, ...], dict[str, Any]], Any],
        host: HostTensors,
        former: FormerTensors,
    ) -> None:
        self._record = record
        self._host = host
        self._former = former

    def change(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op that changes the layout of its first argument, and return that."""
        tensor = args[0]
        if type(tensor) is not LazyTensor:
            with self._former.changing(tensor):
                self._change_plain(signature, args, kwargs)
        elif signature.as_view is not None:
            made = self._record(signature_of(signature.as_view), args, kwargs)
            with self._former.changing(tensor):
                become(tensor, made)
        elif signature.name in _RESIZE:
            self._resize(tensor, resized_layout(signature, args, kwargs))
        else:
            raise changed_shape(signature)
        return tensor

    def fit(
        self,
        resized: Sequence[tuple[str, int, Layout]],
        signature: Signature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Give ``out=`` tensors the layout that torch would give them."""
        for name, place, layout in resized:
            argument = signature.argument(name, args, kwargs)
            tensor = argument[place] if isinstance(argument, (list, tuple)) else argument
            if type(tensor) is LazyTensor:
                self._resize(tensor, layout)
                continue
            self._leave_pool(tensor)
            with self._former.changing(tensor), paused(), torch.no_grad():
                tensor.resize_(layout.shape).as_strided_(layout.shape, layout.stride)

    def _change_plain(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensor = args[0]
        if signature.name not in _RESIZE and any(type(item) is LazyTensor for item in args):
            raise changed_shape(signature)
        self._leave_pool(tensor)
        on_meta(signature, args, kwargs)

    def _leave_pool(self, tensor: torch.Tensor) -> None:
        if self._host.is_dirty(tensor):
            self._host.write_back("a tensor written in this cell changed its shape")
        self._host.forget(tensor)

    def _resize(self, tensor: LazyTensor, layout: Layout) -> None:
        value = tensor._value
        if layout is value.layout:
            return
        end = value.offset * layout.dtype.itemsize + layout.span_bytes
        if end <= value.storage.nbytes:
            arguments = (tensor, list(layout.shape), list(layout.stride), value.offset)
            made = self._record(_AS_STRIDED, arguments, {})
        elif value.storage.nbytes == 0:
            made = self._new(layout)
        else:
            raise CaptureError(
                f"a resized tensor of {layout.shape} needs more memory than this lazy tensor has.",
                "Make a new tensor of that shape and copy into it.",
            )
        with self._former.changing(tensor):
            become(tensor, made)

    def _new(self, layout: Layout) -> LazyTensor:
        arguments = (list(layout.shape), list(layout.stride))
        made = self._record(_EMPTY_STRIDED, arguments, {"dtype": layout.dtype, "device": torch.device("cpu")})
        assert type(made) is LazyTensor
        return made


def _meta(layout: Layout) -> torch.Tensor:
    return torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device="meta")
