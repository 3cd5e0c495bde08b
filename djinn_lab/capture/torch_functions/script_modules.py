"""Saving what ``torch.jit`` made of captured tensors: it writes their memory, and asks nothing before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.python.tensor import LazyTensor
from djinn_lab.errors import CaptureError

_SAVING: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        torch._C.ScriptModule,
        ("save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile"),
    ),
    (torch._C.ScriptFunction, ("save", "save_to_buffer")),
)


def install() -> None:
    """Let scripted and traced modules and functions bring their tensors here before they are saved."""
    for owner, names in _SAVING:
        for name in names:
            save = getattr(owner, name)
            if not hasattr(save, "__wrapped__"):
                setattr(owner, name, _fetching(save))


def _fetching(save: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(save)
    def fetch_and_save(scripted: Any, *args: Any, **kwargs: Any) -> Any:
        for tensor in _tensors(scripted):
            _bring(tensor)
        return save(scripted, *args, **kwargs)

    return fetch_and_save


def _bring(tensor: torch.Tensor) -> None:
    """Let the memory of a tensor hold its values."""
    if isinstance(tensor, LazyTensor):
        raise CaptureError(
            "the recorder in Python cannot save a scripted module that holds captured tensors.",
            "Script and save the module in a cell with %%local, after session.pull(module), or build the "
            "C++ recorder: python -m djinn_lab.native build.",
        )
    if is_lazy(tensor):
        tensor.data_ptr()  # who asks where it is gets it


def _tensors(scripted: Any) -> Iterator[torch.Tensor]:
    """Return the tensors of a script module with its submodules, or of a script function: parameters,
    buffers, and constants of their graphs."""
    binding: Any = torch._C
    if isinstance(scripted, torch._C.ScriptFunction):
        yield from _constants(scripted.graph)
        return
    for slots in (binding.ParameterDict(scripted), binding.BufferDict(scripted)):
        yield from (tensor for _, tensor in slots.items())
    for name in scripted._method_names():
        yield from _constants(scripted._get_method(name).graph)
    for _, child in binding.ModuleDict(scripted).items():
        yield from _tensors(child)


def _constants(graph: Any) -> Iterator[torch.Tensor]:
    for node in graph.findAllNodes("prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node.t("value")
