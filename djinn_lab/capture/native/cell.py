"""What is switched on around a cell that the native recorder captures, and off again afterwards.

``cuda`` means the pool: lazy tensors claim to be on the CPU, so device arguments are mapped before torch
sees them. A mode for torch functions would do that for every call; replacing the few functions that take a
device costs the others nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator
from torch.jit import _builtins

from djinn_lab.capture.former_tensors import kept_former
from djinn_lab.capture.host.interrupts import whole
from djinn_lab.capture.native.extension import native
from djinn_lab.capture.refusals import from_own_device, has_other_memory, kernel_of_parts
from djinn_lab.capture.torch_functions.cuda_answers import ToPool, cuda_answers
from djinn_lab.capture.torch_functions.hooks import kept_on_host, optimizer_hooks
from djinn_lab.capture.torch_functions.packed_sequences import pad
from djinn_lab.capture.torch_functions.pool_devices import is_pool
from djinn_lab.capture.torch_functions.refused_modules import REFUSED_MODULES
from djinn_lab.capture.torch_functions.replaced import Replacements, Wanted

if TYPE_CHECKING:
    from djinn_lab.capture.native.recorder import NativeRecorder

_CPU = torch.device("cpu")
_KEY = "FPGA" if native.variant == "backend" else "???"
"""What torch's Python calls the recorder's dispatch key."""
_ALSO = (
    "tensor",
    "as_tensor",
    "asarray",
    "sparse_coo_tensor",
    "sparse_csr_tensor",
    "frombuffer",
    "from_file",
)


@whole
def _on_pool(recorder: NativeRecorder, tensor: torch.Tensor) -> torch.Tensor:
    """Return what ``tensor.cuda()`` returns: itself when lazy, a parameter made lazy in place, else a
    differentiable copy."""
    if native.is_lazy(tensor) or tensor.is_meta:
        return tensor
    if has_other_memory(tensor):
        return tensor.clone()  # it stays here, as what meets it does
    if tensor.device.type != "cpu":
        return _on_pool(recorder, from_own_device(tensor))
    if isinstance(tensor, torch.nn.Parameter) and recorder.put_on_pool(tensor):
        return tensor
    recorder.plain.settle(tensor)
    return ToPool.apply(tensor, recorder)  # type: ignore[no-any-return, no-untyped-call]


def _cuda(recorder: NativeRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def cuda(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        is_pool(args[0] if args else kwargs.get("device"))
        return _on_pool(recorder, tensor) if recorder.captures_here else original(tensor, *args, **kwargs)

    return cuda


def _to(recorder: NativeRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        first = args[0] if args else kwargs.get("device", kwargs.get("other"))
        other = first if isinstance(first, torch.Tensor) and native.is_lazy(first) else None
        moves = is_pool(first) or (other is not None and not native.is_lazy(tensor))
        if not moves or not recorder.captures_here:
            returned: torch.Tensor = original(tensor, *args, **kwargs)
            return returned
        moved = _on_pool(recorder, tensor)
        if other is not None and moved.dtype is not other.dtype:
            return original(moved, other.dtype)  # type: ignore[no-any-return]
        kwargs = {
            name: item for name, item in kwargs.items() if name not in ("device", "other", "non_blocking")
        }
        rest = [item for item in args[1:] if isinstance(item, torch.dtype)]
        copies = any(item is True for item in args[3:4]) or kwargs.pop("copy", False)
        moved = original(moved, *rest, **kwargs) if rest or kwargs else moved
        return moved.clone() if copies and moved is tensor else moved

    return to


@cache
def _mapped(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its ``device`` argument mapped to the pool; torch.jit wants the result to live
    for good."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None and is_pool(kwargs["device"]):
            kwargs["device"] = _CPU
        kwargs.pop("pin_memory", None)
        return original(*args, **kwargs)

    known = _builtins._find_builtin(original)
    if known is not None:  # or torch.jit.script would look for the wrapper's source
        _builtins._register_builtin(call, known)
    return call


def _pad_packed(recorder: NativeRecorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(data: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if native.is_lazy(data) and recorder.captures_here:
            return pad(recorder, data, *args, **kwargs)
        return original(data, *args, **kwargs)

    return call


def _by_parts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of ``HigherOrderOperator.dispatch``: the key of the recorder has no kernel of such an operator."""

    @wraps(original)
    def dispatch(operator: Any, key: Any, /, *args: Any, **kwargs: Any) -> Any:
        if key.name == _KEY and key not in operator.py_kernels:
            return kernel_of_parts(operator)(*args, **kwargs)
        return original(operator, key, *args, **kwargs)

    return dispatch


@cache
def _device_functions() -> list[tuple[object, str]]:
    """Functions of torch and methods of tensors that take a device."""
    names = set(_ALSO)
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::") and any(
            argument.name == "device" for argument in schema.arguments
        ):
            names.add(schema.name.removeprefix("aten::"))
    named = [(name, getattr(torch, name, None)) for name in sorted(names)]
    found: list[tuple[Any, str]] = [
        (torch, name) for name, item in named if callable(item) and not isinstance(item, type)
    ]
    return (
        found
        + [(torch.Tensor, name) for name in sorted(names) if name.startswith("new_")]
        + [(torch.Tensor, "new_tensor")]
        + [(torch.nested, name) for name in ("nested_tensor", "as_nested_tensor")]
    )


class _CompiledCode:
    """Functions that ``torch.compile`` made run in a cell as they were written, so that their ops are
    recorded; torch's compiler is only imported (which takes seconds) when the cell compiles something
    itself."""

    def __init__(self) -> None:
        self._in_cell = False
        self._stance: Any = None

    @contextmanager
    def records(self) -> Iterator[None]:
        """Switch it on."""
        self._in_cell = True
        try:
            if "torch._dynamo" in sys.modules:
                self._run_eagerly()
            yield
        finally:
            self._in_cell = False
            stance, self._stance = self._stance, None
            if stance is not None:
                stance.__exit__(None, None, None)

    @whole
    def _run_eagerly(self) -> None:
        if self._in_cell and self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")
            self._stance.__enter__()

    def compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``torch.compile`` as it is in a cell."""

        @wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            self._run_eagerly()
            return original(*args, **kwargs)

        return compile_


class CellSurroundings:
    """Switch everything around a captured cell but recording itself. One per recorder."""

    def __init__(self, recorder: NativeRecorder) -> None:
        self._recorder = recorder
        self._compiled = _CompiledCode()
        wanted: list[Wanted] = [
            *kept_on_host(recorder),
            *cuda_answers(recorder),
            *kept_former(recorder),
            *REFUSED_MODULES,
            (torch, "compile", self._compiled.compile),
            (torch.nn.Module, "__call__", native.module_call),
            *((owner, name, _mapped) for owner, name in _device_functions()),
            (HigherOrderOperator, "dispatch", _by_parts),
            (torch.Tensor, "cuda", partial(_cuda, recorder)),
            (torch.Tensor, "to", partial(_to, recorder)),
            (torch._VF, "_pad_packed_sequence", partial(_pad_packed, recorder)),
        ]
        self._replacements = Replacements(wanted, native.Places)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Switch it on."""
        native.module_call(torch.nn.Module.__call__)  # another recorder may have prepared for another one
        with optimizer_hooks(self._recorder), self._compiled.records(), self._replacements.inside():
            yield
