"""Runs torch code for real and writes down every op as a program."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from djinn_lab.srg.program import (
    Atom,
    NodeRecord,
    Phase,
    Program,
    Residency,
    Scope,
    Source,
    Template,
    TensorHole,
    TensorMeta,
)


class Recording(TorchDispatchMode):
    """``phase``, ``module`` and ``call`` may be set between ops. Tensors are kept alive, so that ids stay
    unique."""

    def __init__(self, phase: Phase = "forward") -> None:
        super().__init__()
        self.phase: Phase = phase
        self.module = ""
        self.call = 1
        self._alive: list[Any] = []
        self._values: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._metas: list[TensorMeta] = []
        self._templates: list[Template] = []
        self._scopes: list[Scope] = []
        self._sources: list[Source] = []
        self._nodes: list[NodeRecord] = []

    def program(self, keep: tuple[torch.Tensor, ...] = (), fetch: tuple[torch.Tensor, ...] = ()) -> Program:
        return Program(
            metas=self._metas,
            templates=self._templates,
            scopes=self._scopes,
            sources=self._sources,
            nodes=self._nodes,
            keep=[self._values[id(tensor)] for tensor in keep],
            fetch=[self._values[id(tensor)] for tensor in fetch],
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "aten":
            return func(*args, **kwargs)
        inputs = [self._input(leaf) for leaf in tree_iter((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        template = Template(
            str(func),
            [_argument(item) for item in args],
            {name: _argument(item) for name, item in kwargs.items()},
        )
        returned = func(*args, **kwargs)
        items = returned if isinstance(returned, (list, tuple)) else (returned,)
        outputs = [item if isinstance(item, torch.Tensor) else None for item in items]
        self._templates.append(template)
        self._scopes.append(Scope(self.module, self.call, "cell", len(self._nodes) + 1, self.phase))
        self._nodes.append(
            NodeRecord(
                template=len(self._templates) - 1,
                inputs=tuple(inputs),
                outputs=tuple(None if item is None else self._value(item) for item in outputs),
                output_metas=tuple(None if item is None else self._meta(item) for item in outputs),
                storages=tuple(None if item is None else self._storage(item) for item in outputs),
                scope=len(self._scopes) - 1,
            )
        )
        return returned

    def _input(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._values:
            residency: Residency = "weight" if isinstance(tensor, torch.nn.Parameter) else "input"
            value, meta = self._value(tensor), self._meta(tensor)
            self._sources.append(Source(value, self._storage(tensor), meta, residency, None))
        return self._values[id(tensor)]

    def _value(self, tensor: torch.Tensor) -> int:
        self._alive.append(tensor)
        return self._values.setdefault(id(tensor), len(self._values))

    def _storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        return self._storages.setdefault(storage._cdata, len(self._storages))

    def _meta(self, tensor: torch.Tensor) -> int:
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._metas.append(TensorMeta(dtype, tuple(tensor.shape), tensor.stride()))
        return len(self._metas) - 1


def _argument(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_argument(item) for item in argument]
    if isinstance(argument, torch.Tensor):
        return TensorHole()
    for kind, name in (
        (torch.dtype, "dtype"),
        (torch.layout, "layout"),
        (torch.memory_format, "memory_format"),
    ):
        if isinstance(argument, kind):
            return Atom(name, str(argument).removeprefix("torch."))
    return Atom("device", str(argument)) if isinstance(argument, torch.device) else argument
