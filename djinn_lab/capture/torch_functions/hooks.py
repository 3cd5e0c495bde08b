"""Torch's own hooks: the global ones, used to know modules, optimizers and data loaders while a cell is
captured, and the base of our dispatch modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from djinn_lab.capture.host.forked import fetch_for_workers
from djinn_lab.capture.host.interrupts import locked, whole
from djinn_lab.capture.python.tensor import LazyTensor
from djinn_lab.capture.torch_functions.replaced import Wanted
from djinn_lab.srg.program import Residency

if TYPE_CHECKING:
    from djinn_lab.capture.python.recorder import PythonRecorder as PythonRecorder
    from djinn_lab.capture.recorders import Recorder


class ModulePaths:
    """Qualified names below the module that was called first, e.g. ``GPT2LMHeadModel.transformer.h.0``."""

    def __init__(self) -> None:
        self._roots: WeakKeyDictionary[torch.nn.Module, dict[int, str]] = WeakKeyDictionary()
        self._current: dict[int, str] = {}

    def path(self, module: torch.nn.Module, is_root: bool) -> str:
        if is_root:
            self._current = self.of_root(module)
        name = self._current.get(id(module))
        return type(module).__name__ if name is None else name

    def of_root(self, root: torch.nn.Module) -> dict[int, str]:
        names = self._roots.get(root)
        if names is None:
            top = type(root).__name__
            names = {id(child): f"{top}.{name}" if name else top for name, child in root.named_modules()}
            self._roots[root] = names
        return names


@contextmanager
def module_hooks(recorder: PythonRecorder) -> Iterator[None]:
    """Name the module that runs, and make its parameters and buffers lazy before a graph is built on them."""
    paths = ModulePaths()
    scopes = recorder.scopes

    @whole
    def enter(module: torch.nn.Module, inputs: object) -> None:
        if not recorder.captures_here:
            return
        scopes.push_module(paths.path(module, scopes.depth == 0))
        if torch._C._functorch.peek_interpreter_stack() is None:  # vmap and grad wrap tensors of their own
            make_module_lazy(recorder, module)

    @whole
    def leave(module: torch.nn.Module, inputs: object, output: object) -> None:
        if recorder.captures_here:
            scopes.pop_module()

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def make_module_lazy(recorder: PythonRecorder, module: torch.nn.Module) -> None:
    for parameter in module._parameters.values():
        if parameter is not None and not isinstance(parameter, LazyTensor):
            _make_lazy(recorder, parameter, "weight")
    for buffer in module._buffers.values():
        if buffer is not None and type(buffer) is not LazyTensor:
            _make_lazy(recorder, buffer, "weight")


def _make_lazy(recorder: PythonRecorder, tensor: torch.Tensor, residency: Residency) -> None:
    plain = type(tensor) in (torch.nn.Parameter, torch.Tensor, torch.nn.Buffer)
    if plain and tensor.layout is torch.strided and tensor.device.type == "cpu":
        with locked(recorder.lock), torch._C.DisableTorchFunction():
            recorder.host.make_lazy_in_place(tensor, residency)


@contextmanager
def optimizer_hooks(recorder: Recorder) -> Iterator[None]:
    scopes = recorder.scopes

    @whole
    def begin(optimizer: Optimizer, args: object, kwargs: object) -> None:
        if recorder.captures_here:
            scopes.begin_optimizer()
            recorder.optimizers.add(optimizer)

    @whole
    def end(optimizer: Optimizer, args: object, kwargs: object) -> None:
        if recorder.captures_here:
            scopes.end_optimizer()

    handles = [register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        scopes.end_optimizer()


def kept_on_host(recorder: Recorder) -> list[Wanted]:
    """Keep fetching and collating batches, and printing plain tensors, in the notebook process while a cell
    is captured."""

    def on_host(function: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **kwargs: object) -> object:
            if not recorder.captures_here:
                return function(*args, **kwargs)
            outer, recorder.host_only = recorder.host_only, True
            try:
                return function(*args, **kwargs)
            finally:
                recorder.host_only = outer

        return wrapper

    def starting_workers(start: Callable[..., object]) -> Callable[..., object]:
        def start_workers(loader: DataLoader[object]) -> object:
            fetch_for_workers(recorder, loader)
            return start(loader)

        return on_host(start_workers)

    def printing(function: Callable[..., object]) -> Callable[..., object]:
        def show(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
            if recorder.captures_here:  # torch switches modes off while it prints, so that no op would do it
                recorder.settle_plain(tensor)
            return function(tensor, *args, **kwargs)

        return on_host(show)

    return [
        (_BaseDataLoaderIter, "__next__", on_host),
        (DataLoader, "__iter__", starting_workers),
        (torch._tensor_str, "_str", printing),
    ]


class UnwrappedDispatchMode(TorchDispatchMode):
    """The base of our dispatch modes. Torch calls ``__torch_dispatch__`` as it is, and does not wrap it
    against dynamo, which costs a microsecond an op and two frames in every traceback."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
