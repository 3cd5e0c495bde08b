"""What is switched on while a cell is captured, and off again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import unwrap
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from djinn_lab.capture.host.interrupts import locked, whole
from djinn_lab.capture.host.random_stream import settled_generator
from djinn_lab.capture.python.autocast import cuda_rules
from djinn_lab.capture.python.composites import COMPOSITES, record_composite, record_whole
from djinn_lab.capture.python.identity import WHOLE_TENSOR_CALLS
from djinn_lab.capture.python.tensor import LazyTensor, plain
from djinn_lab.capture.refusals import from_own_device, has_other_memory, refuse_tracing, refuse_unsupported
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.shapes.signature import signature_of
from djinn_lab.capture.torch_functions.cuda_answers import ToPool
from djinn_lab.capture.torch_functions.hooks import (
    UnwrappedDispatchMode,
    module_hooks,
    optimizer_hooks,
)
from djinn_lab.capture.torch_functions.packed_sequences import pad
from djinn_lab.capture.torch_functions.pool_devices import is_pool

if TYPE_CHECKING:
    from djinn_lab.capture.python.recorder import PythonRecorder


class RecordingMode(UnwrappedDispatchMode):
    """Every op of the cell, whatever tensors it is on."""

    def __init__(self, recorder: PythonRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        __tracebackhide__ = True
        if self._recorder.aside:
            return func(*args, **(kwargs or {}))
        refuse_tracing()
        try:
            if signature_of(func).taken_apart:  # torch does so itself, but in inference mode
                with self:
                    return func.decompose(*args, **(kwargs or {}))
            return self._recorder.dispatch(func, args, kwargs or {})
        except BaseException as error:  # noqa: BLE001 - re-raised as it is
            raise error.with_traceback(None) from None  # the frames above are the user's; ours say nothing


class DeviceMapping(TorchFunctionMode):
    """``cuda`` means the pool: lazy tensors claim to be on the CPU, so device arguments are mapped before
    torch sees them."""

    def __init__(self, recorder: PythonRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        __tracebackhide__ = True
        if self._recorder.aside:
            return func(*args, **(kwargs or {}))
        refuse_tracing()
        special = _SPECIAL.get(getattr(func, "__wrapped__", func))  # a native recorder wraps methods
        if special is not None:
            return special(self._recorder, func, args, kwargs or {})
        if kwargs and kwargs.get("out") is not None:
            return record_whole(func, args, kwargs)
        if kwargs and "device" in kwargs and is_pool(kwargs["device"]):
            kwargs = {**kwargs, "device": _CPU}
        if kwargs and "pin_memory" in kwargs:
            kwargs = {name: item for name, item in kwargs.items() if name != "pin_memory"}
        try:
            return func(*args, **(kwargs or {}))
        except KeyboardInterrupt as stop:  # Python can stop between two lines, which IPython cannot show
            raise stop.with_traceback(None) from None


_CPU = torch.device("cpu")


@whole
def _on_pool(recorder: PythonRecorder, tensor: torch.Tensor) -> torch.Tensor:
    """Return what ``tensor.cuda()`` returns: itself when lazy, a parameter made lazy in place, else a
    differentiable copy."""
    if type(tensor) is LazyTensor:
        return tensor
    if has_other_memory(tensor):
        refuse_unsupported(tensor)
        return tensor
    if tensor.device.type != "cpu":
        return _on_pool(recorder, from_own_device(tensor))
    with locked(recorder.lock):
        if isinstance(tensor, torch.nn.Parameter) and recorder.host.make_lazy_in_place(tensor, "weight"):
            return tensor
    return ToPool.apply(tensor, recorder)  # type: ignore[no-any-return, no-untyped-call]


def _cuda(recorder: PythonRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    is_pool(args[1] if len(args) > 1 else kwargs.get("device"))
    return _on_pool(recorder, args[0])


def _to(recorder: PythonRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, rest = args[0], list(args[1:])
    moves = "device" in kwargs and is_pool(kwargs["device"])
    if moves:
        kwargs = {name: value for name, value in kwargs.items() if name != "device"}
    elif rest and is_pool(rest[0]):
        moves = True
        rest = rest[1:]
    elif rest and type(rest[0]) is LazyTensor and type(tensor) is not LazyTensor:
        moves = True
    if not moves:
        return func(*args, **kwargs)
    moved = _on_pool(recorder, tensor)
    kwargs.pop("non_blocking", None)
    rest = [item for item in rest if item is not None and not isinstance(item, bool)]
    return func(moved, *rest, **kwargs) if rest or kwargs else moved


def _split(recorder: PythonRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``tensor_split`` at places that a tensor holds: torch reads them from its memory."""
    return func(
        *args[:1], *map(_on_host, args[1:]), **{name: _on_host(item) for name, item in kwargs.items()}
    )


def _on_host(item: object) -> object:
    return plain(item, "tensor_split") if type(item) is LazyTensor else item


def _host_memory(recorder: PythonRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``.numpy()`` and the like on a plain tensor: it shows what captured ops wrote, and may be written
    unseen from now on."""
    if type(args[0]) is not LazyTensor:
        _settle(recorder, args[0])
    return func(*args, **kwargs)


@whole
def _settle(recorder: PythonRecorder, tensor: torch.Tensor) -> None:
    recorder.host.settle(tensor)
    with paused():
        recorder.host.forget(tensor)


def _as_array(recorder: PythonRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``asarray`` of a storage, as safetensors reads files: torch knows one only where no mode is on."""
    if is_pool(kwargs.get("device")):
        kwargs = {**kwargs, "device": _CPU}
    if not isinstance(args[0], torch.UntypedStorage):
        return func(*args, **kwargs)
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return func(*args, **kwargs)


def _pad_packed(recorder: PythonRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not isinstance(args[0], LazyTensor):
        return func(*args, **kwargs)
    return pad(recorder, *args, **kwargs)


_SPECIAL: dict[Any, Callable[..., Any]] = {
    torch.Tensor.cuda: _cuda,
    torch.Tensor.to: _to,
    torch.Tensor.numpy: _host_memory,
    torch.Tensor.tolist: _host_memory,
    torch.Tensor.__array__: _host_memory,
    torch.asarray: _as_array,
    torch.tensor_split: _split,
    torch.Tensor.tensor_split: _split,
    unwrap(torch.Tensor.data_ptr): _host_memory,
    torch._VF._pad_packed_sequence: _pad_packed,
    **{unwrap(method): whole(special) for method, special in WHOLE_TENSOR_CALLS.items()},
    **dict.fromkeys(COMPOSITES, record_composite),
}


@contextmanager
def captured_cell(recorder: PythonRecorder, cell: str, file: str) -> Iterator[None]:
    """Record everything inside. What is pending at the end stays pending: the caller flushes."""
    if recorder.capturing:
        yield
        return
    recorder.scopes.enter_cell(cell, file)
    recorder.begin_cell()
    with locked(recorder.lock):
        recorder.capturing, recorder.thread = True, get_ident()
        recorder.host_only = False  # an exception may have left a data loader where Python cannot say so
    try:
        with ExitStack() as stack:
            stack.enter_context(module_hooks(recorder))
            stack.enter_context(optimizer_hooks(recorder))
            stack.enter_context(recorder.replacements.inside())
            stack.enter_context(settled_generator(recorder))
            stack.enter_context(cuda_rules())
            stack.enter_context(DeviceMapping(recorder))
            stack.enter_context(RecordingMode(recorder))
            yield
    finally:
        with locked(recorder.lock):
            recorder.capturing = False
            recorder.host.end_cell()
