"""How lazy tensors behave where torch would not ask the dispatcher: numpy, printing, pickling, ``.data``,
``.cpu()``.

They are ordinary tensors, so these are methods of :class:`torch.Tensor`, replaced once. For any other tensor
each does what it did.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeGuard

import torch
from torch.utils._python_dispatch import _disable_current_modes

from djinn_lab.capture.host.interrupts import whole
from djinn_lab.capture.lazy import NO_LEAF, present
from djinn_lab.capture.native.extension import native
from djinn_lab.capture.native.memory import all_of
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.torch_functions.cuda_answers import FetchToHost
from djinn_lab.capture.torch_functions.replaced import (
    ask_when_data_is_set,
    forget_type,
    set_data_of_torch,
)

if TYPE_CHECKING:
    from djinn_lab.capture.native.recorder import NativeRecorder

Method = Callable[..., object]
_is_lazy: Callable[[object], TypeGuard[torch.Tensor]] = native.is_lazy
_COPIED_MEMORIES = object()
"""Names them in a deep copy's memo: by the serial number of each, itself and a lazy tensor over its copy."""


def _recorder(tensor: torch.Tensor) -> NativeRecorder:
    recorder: NativeRecorder | None = native.owner_of(tensor)()
    return present(recorder)


def _plain(tensor: torch.Tensor, cause: str) -> torch.Tensor:
    """The values in host memory, fetched when they are not there. Not to be written to."""
    fetched: torch.Tensor = _recorder(tensor).fetch_tensors([tensor], cause)[0]
    return fetched


def _cpu(tensor: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format) -> object:
    """The values as a plain tensor (differentiable where this one is)."""
    return FetchToHost.apply(tensor, _plain)  # type: ignore[no-untyped-call]


def _numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
    if tensor.requires_grad and not force and torch.is_grad_enabled():
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    if tensor.is_conj() or tensor.is_neg():
        with paused():
            return _plain(tensor, "numpy").numpy(force=force)
    with paused():
        return _recorder(tensor).window(tensor, "numpy").numpy()


def _array(tensor: torch.Tensor, dtype: object = None, copy: bool | None = None) -> Any:
    array = _numpy(tensor)
    if dtype is not None and array.dtype != dtype:
        return array.astype(dtype)
    return array.copy() if copy else array


def _tolist(tensor: torch.Tensor) -> object:
    with paused():
        return _plain(tensor.detach(), "tolist").tolist()


def _repr(tensor: torch.Tensor, *, tensor_contents: str | None = None) -> str:
    recorder = _recorder(tensor)
    if not recorder.may_display():
        return (
            f"Tensor(shape={tuple(tensor.shape)}, dtype={tensor.dtype}, on the pool; print it to see values)"
        )
    with paused():
        shown = _plain(tensor.detach(), "print")
        if tensor.grad_fn is not None:
            suffix = f"grad_fn=<{type(tensor.grad_fn).__name__}>"
            return str(torch._tensor_str._add_suffixes(repr(shown)[:-1], [suffix], len("tensor("), False))
        shown = shown.detach().requires_grad_(tensor.requires_grad)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            shown = shown.as_subclass(type(tensor))
        return str(torch._tensor_str._str(shown, tensor_contents=tensor_contents))


def _parameter_repr(tensor: torch.Tensor) -> str:
    return f"Parameter containing:\n{_repr(tensor)}"


def _format(tensor: torch.Tensor, spec: str) -> str:
    return format(tensor.item(), spec) if tensor.dim() == 0 else format(repr(tensor), spec)


def _deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(NO_LEAF)
    copied = _in_copied_memory(tensor, memo)
    if type(tensor) is not torch.Tensor:
        copied = torch.Tensor._make_subclass(type(tensor), copied, tensor.requires_grad)
    copied.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        copied.grad = tensor.grad.__deepcopy__(memo)
    copied.__dict__ = copy.deepcopy(tensor.__dict__, memo)
    memo[id(tensor)] = copied
    return copied


def _parameter_deepcopy(parameter: torch.nn.Parameter, memo: dict[int, Any]) -> Any:
    """As torch copies one: its values alone, in memory of their own."""
    if id(parameter) not in memo:
        with torch.no_grad():
            values = _recorder(parameter).clone(parameter.detach())
        memo[id(parameter)] = type(parameter)(values, parameter.requires_grad)
    return memo[id(parameter)]


def _in_copied_memory(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
    """The same view of a copy of the tensor's memory, which is copied once for all that share it."""
    value = native.value_of(tensor)
    old, dtype = value.storage, value.layout.dtype
    if old.nbytes == 0 or old.nbytes % dtype.itemsize:
        with torch.no_grad():
            return _recorder(tensor).clone(tensor.detach())
    copies = memo.setdefault(id(_COPIED_MEMORIES), {})
    if old.serial not in copies:
        copies[old.serial] = old, _recorder(tensor).clone(native.wrap(all_of(old, dtype)))
    return native.wrap(native.Value(native.storage_of(copies[old.serial][1]), value.layout, value.offset))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Another object on the same memory."""
    copied = tensor.detach()
    if type(tensor) is not torch.Tensor:
        copied = torch.Tensor._make_subclass(type(tensor), copied, tensor.requires_grad)
    copied.requires_grad_(tensor.requires_grad)
    copied.__dict__ = dict(tensor.__dict__)
    return copied


def _copy_plain(tensor: torch.Tensor) -> object:
    """Copy as :func:`copy.copy` does without a method of the class."""
    return copy._reconstruct(tensor, None, *tensor.__reduce_ex__(4))  # type: ignore[attr-defined]


def _reduce(tensor: torch.Tensor, protocol: SupportsIndex) -> object:
    """Pickled as a plain tensor; views of one memory stay views of one memory."""
    recorder = _recorder(tensor)
    with _disable_current_modes(), paused():
        recorder.fetch_whole([tensor], "save")
        host = _plain(tensor.detach(), "save")
        if type(tensor) is not torch.Tensor:
            host = torch.Tensor._make_subclass(type(tensor), host, tensor.requires_grad)
        host.__dict__.update(tensor.__dict__)
        return host.requires_grad_(tensor.requires_grad).__reduce_ex__(protocol)


def _untyped_storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The host's copy of the memory; while a user holds it, ops that write it run here."""
    memory: torch.UntypedStorage = _recorder(tensor).window(tensor, "address").untyped_storage()
    return memory


def _data_ptr(tensor: torch.Tensor) -> int:
    """Return the address of the host's copy, for code that reads memory by address. Valid until the next
    captured cell."""
    window = _recorder(tensor).window(tensor, "address")
    exposure = native.storage_of(tensor).exposure
    if exposure is not None:
        exposure.pinned = window
    with paused():
        return int(window.data_ptr())


def _on_window(name: str) -> Method:
    """A method that is called on a plain tensor that shares the lazy one's memory."""

    def call(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
        window = _recorder(tensor).window(tensor.detach(), name)
        with paused():
            return getattr(window, name)(*args, **kwargs)

    return call


def _new_tensor(
    tensor: torch.Tensor,
    data: object,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    return torch.tensor(
        data, dtype=dtype or tensor.dtype, device=device or "cpu", requires_grad=requires_grad
    )


def _new(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    with paused():
        return torch.empty(0, dtype=tensor.dtype).new(*args, **kwargs)


def _applied(name: str) -> Method:
    """``apply_`` and its kind: a Python function over the elements, on the host's copy."""

    def call(tensor: torch.Tensor, *args: object) -> torch.Tensor:
        recorder = _recorder(tensor)
        plain = [_plain(item, name) if _is_lazy(item) else item for item in args]
        window = recorder.window(tensor.detach(), name)
        with paused():
            getattr(window, name)(*plain)
        return tensor

    return call


def _share_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Other processes see the host's copy from now on, and ops that write it run here."""
    _recorder(tensor).share_between_processes(tensor)
    return tensor


def _is_shared(tensor: torch.Tensor) -> bool:
    host = native.storage_of(tensor).host
    return host is not None and host.is_shared()


def _same(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    return tensor


def _never(tensor: torch.Tensor, *args: object, **kwargs: object) -> bool:
    return False


@whole
def _settle(tensor: torch.Tensor) -> None:
    recorder = native.capturing_owner()()
    recorder.plain.settle(tensor)
    recorder.plain.forget(tensor)


def _settling(name: str, original: Method) -> Method:
    """On a plain tensor: it shows what captured ops wrote, and may be written unseen from now on."""

    @wraps(original)
    def call(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
        if native.is_captured_here() and tensor.layout is torch.strided and tensor.device.type == "cpu":
            _settle(tensor)
            if name == "share_memory_":  # torch copies the bytes to the new memory by an op
                with paused():
                    return original(tensor, *args, **kwargs)
        return original(tensor, *args, **kwargs)

    return call


@whole
def _set_data(tensor: torch.Tensor, new: torch.Tensor) -> bool:
    if not native.is_captured_here():
        return _share_data(tensor, new)
    recorder = native.capturing_owner()()
    recorder.plain.write_back("a tensor's data was replaced")
    with recorder.former.changing(tensor):
        if not _share_data(tensor, new):
            set_data_of_torch(tensor, new)
    return True


def _share_data(tensor: torch.Tensor, new: torch.Tensor) -> bool:
    """Set the data where one of the two is lazy, and return whether it is set."""
    if _is_lazy(new):
        if tensor.dtype != new.dtype:
            forget_type(tensor, new.dtype)
        native.look_at(tensor, native.value_of(new))
        return True
    if _is_lazy(tensor) and new.layout is torch.strided and type(new) is torch.Tensor:
        set_data_of_torch(tensor, _recorder(tensor).share(new.detach()))
        return True
    return False


_LAZY: dict[str, Method] = {
    "cpu": _cpu,
    "numpy": _numpy,
    "__array__": _array,
    "tolist": _tolist,
    "__repr__": _repr,
    "__format__": _format,
    "__deepcopy__": _deepcopy,
    "__reduce_ex__": _reduce,
    "untyped_storage": _untyped_storage,
    "data_ptr": _data_ptr,
    "__dlpack__": _on_window("__dlpack__"),
    "apply_": _applied("apply_"),
    "map_": _applied("map_"),
    "map2_": _applied("map2_"),
    "new": _new,
    "new_tensor": _new_tensor,
    "share_memory_": _share_memory,
    "is_shared": _is_shared,
    "pin_memory": _same,
    "is_pinned": _never,
}
_SETTLED = (
    *("numpy", "tolist", "__array__", "data_ptr", "untyped_storage", "__dlpack__", "apply_", "map_"),
    "share_memory_",
)


def _choosing(name: str, lazy: Method, original: Method) -> Method:
    lazy = whole(lazy)

    @wraps(original)
    def method(self: torch.Tensor, *args: object, **kwargs: object) -> object:
        return lazy(self, *args, **kwargs) if _is_lazy(self) else original(self, *args, **kwargs)

    return method


@cache
def _empty(dtype: torch.dtype, conjugate: bool, negative: bool) -> torch.Tensor:
    with paused():
        made = torch.empty(0, dtype=dtype, device="cpu")
        made = torch._conj(made) if conjugate else made
        return torch._neg_view(made) if negative else made


def _legacy_types() -> None:
    """Make ``isinstance(tensor, torch.FloatTensor)`` and its kind see a lazy tensor as one on the CPU. They
    compare the highest key of a tensor, which is the recorder's, with their own."""
    metaclass: Any = type(torch.FloatTensor)
    original = metaclass.__instancecheck__

    @wraps(original)
    def instancecheck(cls: type, item: object) -> object:
        if _is_lazy(item):
            item = _empty(item.dtype, item.is_conj(), item.is_neg())
        return original(cls, item)

    native.set_in_type(metaclass, "__instancecheck__", instancecheck)


def _fake_tensors() -> None:
    """Keep lazy tensors apart from torch's fake ones, which it knows from 2.14 on by the recorder's key."""
    core: Any = torch._C
    original = getattr(core, "_is_fake_tensor", None)
    if original is None:
        return

    @wraps(original)
    def is_fake(tensor: torch.Tensor) -> object:
        return not _is_lazy(tensor) and original(tensor)

    core._is_fake_tensor = is_fake


def install() -> None:
    """Replace the methods. Once in a process."""
    for name, lazy in _LAZY.items():
        original = getattr(torch.Tensor, name)
        if name in _SETTLED:
            original = _settling(name, original)
        setattr(torch.Tensor, name, _choosing(name, lazy, original))
    torch.Tensor.__copy__ = _choosing("__copy__", _copy, _copy_plain)  # type: ignore[attr-defined]
    parameter: Any = torch.nn.Parameter
    for name, lazy in (
        ("__repr__", _parameter_repr),
        ("__deepcopy__", _parameter_deepcopy),
        ("__reduce_ex__", _reduce),
    ):
        setattr(parameter, name, _choosing(name, lazy, getattr(parameter, name)))
    ask_when_data_is_set(_set_data)
    _legacy_types()
    _fake_tensors()
