"""Tensors that change shape or memory in place: ``t_`` and its kind, ``resize_``, ``set_``, ``out=`` of
another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from djinn_lab.capture.host.ops import tensors_in
from djinn_lab.capture.native.extension import NativeValue, native
from djinn_lab.capture.native.memory import all_of
from djinn_lab.capture.refusals import refuse_resized_input
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.shapes.inference import OpPlan
from djinn_lab.capture.shapes.signature import Signature, signature_of
from djinn_lab.capture.shapes.stand_ins import changed_shape, on_meta, resized_layout
from djinn_lab.capture.values import Layout, read_as
from djinn_lab.errors import CaptureError

if TYPE_CHECKING:
    from djinn_lab.capture.native.recorder import NativeRecorder

_EMPTY = torch.ops.aten.empty.memory_format
_COPY = torch.ops.aten.copy_.default
_RESIZE = ("aten.resize_.default", "aten.resize_as_.default")


class LayoutChanges:
    def __init__(self, recorder: NativeRecorder) -> None:
        self._recorder = recorder

    def change(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op that changes the layout or the memory of its first argument, and return that."""
        tensor, former = args[0], self._recorder.former
        if signature.sets_storage:
            with former.changing(tensor):
                self._set(signature, args, kwargs)
        elif not native.is_lazy(tensor):
            with former.changing(tensor):
                self._change_plain(signature, args, kwargs)
        elif signature.as_view is not None:
            made = self._recorder.view(signature_of(signature.as_view), args, kwargs)
            with former.changing(tensor):
                native.look_at(tensor, native.value_of(made))
        elif signature.name in _RESIZE:
            self._resize(tensor, resized_layout(signature, args, kwargs))
        else:
            raise changed_shape(signature)
        return tensor

    def fit(self, plan: OpPlan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Give ``out=`` tensors the layout that torch would give them."""
        signature = signature_of(func)
        for name, place, layout in plan.resized:
            argument = signature.argument(name, args, kwargs)
            tensor = argument[place] if isinstance(argument, (list, tuple)) else argument
            refuse_resized_input(signature.name, tensor, tensors_in(args, kwargs))
            if native.is_lazy(tensor):
                self._resize(tensor, layout)
            else:
                self._leave_pool(tensor)
                with self._recorder.former.changing(tensor), paused(), torch.no_grad():
                    tensor.resize_(layout.shape).as_strided_(layout.shape, layout.stride)
        self._recorder.bring_all(signature, args, kwargs)  # a resized plain one may have sent others home

    def _set(self, signature: Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Run ``tensor.set_(...)``: put other memory behind the same object."""
        tensor, source = args[0], args[1] if len(args) > 1 else kwargs.get("source")
        if not native.is_lazy(tensor):
            self._leave_pool(tensor)
        if isinstance(source, torch.Tensor) and native.is_lazy(source):
            value = native.value_of(source)
            shape, stride, offset = value.layout.shape, value.layout.stride, value.offset
            if len(args) > 2:
                shape, stride, offset = tuple(args[3]), tuple(args[4]) if len(args) > 4 else (), args[2]
            layout = Layout.of(source.dtype, shape, stride, tensor.is_conj(), tensor.is_neg())
            native.look_at(tensor, native.Value(value.storage, layout, offset))
        elif native.is_lazy(tensor):
            with torch.no_grad():
                plain = read_as(torch.empty(0, dtype=tensor.dtype), Layout.of_tensor(tensor))
                signature.func(plain, *args[1:], **kwargs)
            native.become(tensor, plain)
        else:
            signature.func(*args, **kwargs)

    def _change_plain(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if signature.name not in _RESIZE and any(native.is_lazy(item) for item in args):
            raise changed_shape(signature)
        self._leave_pool(args[0])
        on_meta(signature, args, kwargs)

    def _leave_pool(self, tensor: torch.Tensor) -> None:
        if self._recorder.plain.is_dirty(tensor):
            self._recorder.plain.write_back("a tensor written in this cell changed its shape")
        self._recorder.plain.forget(tensor)

    def _resize(self, tensor: torch.Tensor, layout: Layout) -> None:
        shared = native.storage_users(tensor) > 1  # before the value below holds it, too
        value = native.value_of(tensor)
        shared = shared or value.storage.exposure is not None
        if layout is value.layout:
            return
        end = value.offset * layout.dtype.itemsize + layout.span_bytes
        grows = bool(layout.numel) and end > value.storage.nbytes
        if grows and shared:
            raise CaptureError(
                f"a tensor resized to {layout.shape} needs more memory, which it shares with others.",
                "Make a new tensor of that shape and copy into it.",
            )
        with self._recorder.former.changing(tensor):
            if grows:
                self._grow(tensor, value, layout)
            else:
                native.look_at(tensor, native.Value(value.storage, layout, value.offset))

    def _grow(self, tensor: torch.Tensor, value: NativeValue, layout: Layout) -> None:
        """Give a lazy tensor new memory, which begins with what it had."""
        old, memory = value.storage, self._recorder.memory
        held = old.nbytes // layout.dtype.itemsize
        elements = value.offset + layout.span_bytes // layout.dtype.itemsize
        if self._recorder.capturing:
            options = {"dtype": layout.dtype, "device": torch.device("cpu")}
            made = native.record(_EMPTY, ([elements],), options)
            if held:
                memory.ready(old)
                flat = Layout.of(layout.dtype, (held,), (1,))
                begins = native.wrap(native.Value(native.storage_of(made), flat, 0))
                native.record(_COPY, (begins, native.wrap(all_of(old, layout.dtype))), {})
        else:
            with paused():
                [plain] = memory.fetch([all_of(old, layout.dtype)], "resize")
                made = memory.adopt(plain.clone().resize_(elements), "activation")
        native.look_at(tensor, native.Value(native.storage_of(made), layout, value.offset))
