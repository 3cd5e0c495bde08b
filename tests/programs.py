"""Programs of one session, written op by op; values outlive the program that made them."""

from __future__ import annotations

from typing import Any

import torch

from djinn_lab.srg.program import (
    NodeRecord,
    Program,
    Residency,
    ScalarHole,
    Scope,
    Source,
    Template,
    TensorHole,
    TensorMeta,
    row_major,
)

HOLE = TensorHole()
CELL = Scope("", 0, "cell", 1, "other")
LAYER = Scope("Net.layer", 1, "cell", 3, "forward")


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride())


def contiguous(*shape: int, dtype: str = "float32") -> TensorMeta:
    return TensorMeta(dtype, shape, row_major(shape))


class Script:
    """Every method that makes a value returns its id; :meth:`program` ends a program, and the next one
    begins. ``scope``: of all ops."""

    def __init__(self, first_id: int = 1, scope: Scope = CELL) -> None:
        self.scope = scope
        self._first_id = first_id
        self.metas: dict[int, TensorMeta] = {}
        self._storages: dict[int, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._layouts: list[TensorMeta] = []
        self._templates: list[Template] = []
        self._sources: list[Source] = []
        self._nodes: list[NodeRecord] = []
        self._known: set[int] = set()

    def load(self, tensor: torch.Tensor, blob: str | None = None) -> int:
        """A contiguous tensor that the client has: sent inline, or as a blob by its name."""
        value = self._new(meta_of(tensor), None)
        inline = (
            None if blob is not None else tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
        self._sources.append(Source(value, value, self._layout(value), "weight", blob, inline))
        return value

    def source(
        self,
        shape: tuple[int, ...],
        residency: Residency = "input",
        blob: str | None = None,
        dtype: str = "float32",
    ) -> int:
        """A value that the session holds, or that lies in a blob."""
        value = self._new(contiguous(*shape, dtype=dtype), None)
        self._sources.append(Source(value, value, self._layout(value), residency, blob, None))
        return value

    def op(
        self,
        name: str,
        *inputs: int,
        shape: tuple[int, ...] | None = None,
        meta: TensorMeta | None = None,
        args: list[Any] | None = None,
        scalars: tuple[Any, ...] = (),
        view: bool = False,
    ) -> int:
        """``meta`` defaults to ``shape``, or the first input's, contiguous; ``args`` to holes for all inputs
        and scalars."""
        self._hold(inputs)
        if meta is None and shape is None:
            shape = self.metas[inputs[0]].shape
        if meta is None:
            assert shape is not None
            meta = contiguous(*shape, dtype=self.metas[inputs[0]].dtype)
        value = self._new(meta, self._storages[inputs[0]] if view else None)
        self._node(name, inputs, value, args, scalars)
        return value

    def write(
        self,
        name: str,
        *inputs: int,
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        scalars: tuple[Any, ...] = (),
    ) -> int:
        """An in-place op on its first input."""
        self._hold(inputs)
        self._node(name, inputs, inputs[0], args, scalars, kwargs)
        return inputs[0]

    def append(self, past: int, tokens: int) -> int:
        """A key-value cache with more tokens behind."""
        shape = self.metas[tokens].shape
        before = self.metas[past].shape
        count = shape[2] + (before[2] if len(before) == 4 else 0)
        meta = contiguous(shape[0], shape[1], count, shape[3])
        return self.op("aten.cat.default", past, tokens, meta=meta, args=[[HOLE, HOLE], -2])

    def dynamic(self, name: str, source: int) -> int:
        """An op whose result's shape depends on data: a program's last."""
        self._hold((source,))
        value = self._new(contiguous(0), None)
        self._templates.append(Template(name, [HOLE], {}))
        self._nodes.append(
            NodeRecord(len(self._templates) - 1, (source,), (value,), (), (value,), 0, dynamic=True)
        )
        return value

    def program(
        self,
        keep: tuple[int, ...] = (),
        fetch: tuple[int, ...] = (),
        release: tuple[int, ...] = (),
        rng_state: bytes | None = None,
    ) -> Program:
        self._hold(fetch)
        scopes = [self.scope]
        made = Program(
            self._layouts,
            self._templates,
            scopes,
            self._sources,
            self._nodes,
            keep,
            fetch,
            release,
            rng_state,
        )
        self._begin()
        return made

    def _new(self, meta: TensorMeta, storage: int | None) -> int:
        value = self._first_id + len(self.metas)
        self.metas[value] = meta
        self._storages[value] = value if storage is None else storage
        self._known.add(value)
        return value

    def _hold(self, values: tuple[int, ...]) -> None:
        for value in values:
            if value not in self._known:
                self._known.add(value)
                self._sources.append(
                    Source(value, self._storages[value], self._layout(value), "input", None, None)
                )

    def _layout(self, value: int) -> int:
        self._layouts.append(self.metas[value])
        return len(self._layouts) - 1

    def _node(
        self,
        name: str,
        inputs: tuple[int, ...],
        output: int,
        args: list[Any] | None,
        scalars: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        default: list[Any] = [HOLE] * len(inputs) + [ScalarHole()] * len(scalars)
        self._templates.append(Template(name, default if args is None else args, kwargs or {}))
        self._nodes.append(
            NodeRecord(
                len(self._templates) - 1,
                inputs,
                (output,),
                (self._layout(output),),
                (self._storages[output],),
                0,
                scalars,
            )
        )
