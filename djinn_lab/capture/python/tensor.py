"""The lazy tensor: claims to be a CPU tensor, holds no memory, names a value on the pool."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils._python_dispatch import _disable_current_modes

from djinn_lab.capture.host.interrupts import whole
from djinn_lab.capture.lazy import NO_LEAF, LazyKind, register
from djinn_lab.capture.torch_functions.cuda_answers import FetchToHost
from djinn_lab.capture.torch_functions.pool_devices import is_pool
from djinn_lab.capture.values import LazyValue, StorageOwner

_make_wrapper = torch.Tensor._make_wrapper_subclass


class LazyTensor(torch.Tensor):
    """Made by :func:`wrap`. Shape, stride, dtype and autograd are local; values come when they are asked
    for them."""

    _value: LazyValue

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        recorder = find_recorder(args, kwargs or {})
        return recorder.run_outside(func, args, kwargs or {})

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        """The values as a plain tensor (differentiable where this one is)."""
        return FetchToHost.apply(self, plain)  # type: ignore[no-any-return, no-untyped-call]

    def numpy(self, *, force: bool = False) -> Any:
        if self.requires_grad and not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
            )
        value = self._value
        return value.storage.recorder.array(value, "numpy")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self.requires_grad:
            return self.numpy()  # raises
        if dtype is None and not copy:
            return self.numpy()
        array = plain(self.detach(), "numpy").numpy()
        return array.copy() if dtype is None else array.astype(dtype)

    def tolist(self) -> Any:
        return plain(self.detach(), "tolist").tolist()

    def cuda(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Already on the pool."""
        is_pool(args[0] if args else kwargs.get("device"))
        return self

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        recorder = self._value.storage.recorder
        if not recorder.may_display():
            shape = tuple(self.shape)
            return f"LazyTensor(shape={shape}, dtype={self.dtype}, on the pool; print it to see values)"
        shown = plain(self.detach(), "print")
        if self.grad_fn is not None:
            suffix = f"grad_fn=<{type(self.grad_fn).__name__}>"
            return str(torch._tensor_str._add_suffixes(repr(shown)[:-1], [suffix], len("tensor("), False))
        text = repr(shown.detach().requires_grad_(self.requires_grad))
        return f"Parameter containing:\n{text}" if getattr(self, "_is_param", False) else text

    def __float__(self) -> float:
        return _number(self, torch.Tensor.__float__)

    def __int__(self) -> int:
        return _number(self, torch.Tensor.__int__)

    def __index__(self) -> int:
        return _number(self, torch.Tensor.__index__)

    def __bool__(self) -> bool:
        return _number(self, torch.Tensor.__bool__)

    def __complex__(self) -> complex:
        return _number(self, torch.Tensor.__complex__)

    def __format__(self, spec: str) -> str:
        if self.dim() == 0:
            return format(self.item(), spec)
        return format(repr(self), spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        if not self.is_leaf:
            raise RuntimeError(NO_LEAF)
        with torch.no_grad():
            copied = self._value.storage.recorder.clone(self).requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copied._is_param = True  # torch copies the values of a parameter, and nothing else of it
        elif self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: object) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            host = plain(self.detach(), "save").clone().requires_grad_(self.requires_grad)
            if getattr(self, "_is_param", False):
                return torch.nn.Parameter(host, self.requires_grad).__reduce_ex__(protocol)
            return host.__reduce_ex__(protocol)

    def untyped_storage(self) -> torch.UntypedStorage:
        """The host's copy of the memory; while a user holds it, ops that write it run here."""
        value = self._value
        return value.storage.recorder.window(value, "address").untyped_storage()

    def data_ptr(self) -> int:
        """Return the address of the host's copy, for code that reads memory by address. Valid until the next
        captured cell."""
        value = self._value
        window = value.storage.recorder.window(value, "address")
        if value.storage.exposure is not None:
            value.storage.exposure.pinned = window
        return window.data_ptr()

    def apply_(self, function: Callable[[Any], Any]) -> LazyTensor:
        """A Python function over the elements, on the host's copy."""
        return self._on_host("apply_", function)

    def map_(self, other: torch.Tensor, function: Callable[[Any, Any], Any]) -> LazyTensor:
        """A Python function over the elements of two tensors, on the host's copy."""
        return self._on_host("map_", other, function)

    def map2_(
        self, one: torch.Tensor, other: torch.Tensor, function: Callable[[Any, Any, Any], Any]
    ) -> LazyTensor:
        """A Python function over the elements of three tensors, on the host's copy."""
        return self._on_host("map2_", one, other, function)

    def _on_host(self, name: str, *args: object) -> LazyTensor:
        known = [plain(item, name) if type(item) is LazyTensor else item for item in args]
        window = self._value.storage.recorder.window(self._value, name)
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            getattr(window, name)(*known)
        return self

    def share_memory_(self) -> LazyTensor:
        """Other processes see the host's copy from now on, and ops that write it run here."""
        self._value.storage.recorder.share_between_processes(self._value)
        return self

    def is_shared(self) -> bool:
        host = self._value.storage.host
        return host is not None and host.is_shared()

    @property
    def data(self) -> torch.Tensor:
        return wrap(self._value)  # writes to it do not count as changes of this tensor

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        recorder = self._value.storage.recorder
        recorder.look_at(self, new) if type(new) is LazyTensor else recorder.make_lazy_share(self, new)


def _reduce_to_shared(tensor: LazyTensor) -> Any:
    """What a queue between processes gets of a lazy tensor: the memory, which both share from now on."""
    value = tensor.share_memory_()._value
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        window = value.storage.recorder.window(value, "shared memory")
        if getattr(tensor, "_is_param", False):
            window = torch.nn.Parameter(window, tensor.requires_grad)
        return reduce_tensor(window)


ForkingPickler.register(LazyTensor, _reduce_to_shared)
T = TypeVar("T")


def _number(tensor: LazyTensor, convert: Callable[[torch.Tensor], T]) -> T:
    """A Python number. Inside ``torch.tensor([x])`` torch's C++ has switched dispatch to Python off and would
    read memory that is not here."""
    off = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)
    return convert(plain(tensor, "item") if off else tensor)


@whole
def become(tensor: LazyTensor, other: LazyTensor) -> None:
    """Make ``tensor`` name what ``other`` names, layout included, keeping its identity."""
    if tensor._value.layout is not other._value.layout or tensor._value.offset != other._value.offset:
        with torch._C.DisableTorchFunction():
            torch._C.TensorBase.data.__set__(tensor, wrap(other._value))  # type: ignore[attr-defined]
    tensor._value = other._value


def wrap(value: LazyValue) -> LazyTensor:
    layout = value.layout
    tensor = _make_wrapper(LazyTensor, layout.shape, layout.stride, value.offset, None, layout.dtype)
    if layout.in_memory is not layout:
        torch._C._set_conj(tensor, layout.conjugate)
        torch._C._set_neg(tensor, layout.negative)
    tensor._value = value
    return tensor


def overrides_torch(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return ``torch.overrides.has_torch_function`` for a cell: layers with a fast path ask it, and our own
    mode, which every function is shown to, is no reason against that."""

    def ask(arguments: Any) -> bool:
        with torch._C.DisableTorchFunction():  # modes only: what a type overrides is asked all the same
            return original(arguments)

    return ask


def plain(tensor: torch.Tensor, cause: str) -> torch.Tensor:
    """Return the values of ``tensor`` in host memory, fetched if needed. Not to be written to."""
    assert isinstance(tensor, LazyTensor)
    return tensor._value.storage.recorder.fetch([tensor._value], cause)[0]


def find_recorder(args: tuple[object, ...], kwargs: dict[str, object]) -> StorageOwner:
    """Return the recorder that the first lazy tensor among the arguments belongs to."""
    for argument in (*args, *kwargs.values()):
        for item in argument if isinstance(argument, (list, tuple)) else (argument,):
            if type(item) is LazyTensor:
                return item._value.storage.recorder
    raise AssertionError("dispatched without a lazy tensor")


register(
    LazyKind(
        is_lazy=lambda item: type(item) is LazyTensor,
        recorder_of=lambda tensor: tensor._value.storage.recorder,
        memory_of=lambda tensor: tensor._value.storage,
    )
)
