"""What is worked out once for programs that differ only in the numbers of their values and in scalars."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from djinn_lab.srg.program import NodeRecord, Program, Template, TensorMeta
from djinn_lab.worker.executor import ExecutionPlan, Executor
from djinn_lab.worker.templates import OpCall
from djinn_lab.worker.transfer import zeros_strided

NODES_KEPT_MAX = 1_000_000


class Expected:
    """The layout that the client expects of a result. The client's later nodes rely on it, so the worker
    produces that layout or fails."""

    __slots__ = ("dtype", "meta", "shape", "span_bytes", "stride")

    def __init__(self, meta: TensorMeta) -> None:
        self.meta = meta
        self.dtype: torch.dtype = getattr(torch, meta.dtype)
        self.shape = torch.Size(meta.shape)
        self.stride = meta.stride
        self.span_bytes = meta.span_bytes

    def check(self, tensor: torch.Tensor, fresh: bool, op: str) -> torch.Tensor:
        if tensor.shape != self.shape or tensor.dtype != self.dtype:
            raise AssertionError(
                f"{op} returned {tuple(tensor.shape)} {tensor.dtype} where capture predicted "
                f"{self.meta}; nothing after it ran."
            )
        if not fresh:
            return tensor
        if tensor.stride() == self.stride and tensor.storage_offset() == 0:
            return tensor
        return zeros_strided(self.shape, self.stride, self.dtype, tensor.device).copy_(tensor)


Made = tuple[int, Expected, bool]
"""A place among a node's outputs, what is expected there, and whether it is new memory."""


class Products(NamedTuple):
    """Values that a node adds to the session, and the ``nbytes`` reserved for them."""

    nbytes: int
    made: Sequence[Made]


@dataclass(frozen=True)
class Preparation:
    """``products``, ``frees``: per node, what it makes, and the places among its inputs and outputs of values
    that no later node needs. With a ``plan``, for the extension, it knows these and they are empty."""

    calls: Sequence[OpCall]
    expected: Sequence[Expected]
    metas: Sequence[TensorMeta]
    templates: Sequence[Template]
    node_count: int
    products: Sequence[Products] = ()
    frees: Sequence[Sequence[int]] = ()
    plan: ExecutionPlan | None = None

    @classmethod
    def of(cls, program: Program, calls: Sequence[OpCall], executor: Executor | None) -> Preparation:
        expected = [Expected(meta) for meta in program.metas]
        metas, templates, count = program.metas, program.templates, len(program.nodes)
        if executor is None:
            products = [products_of_node(node, calls[node.template], expected) for node in program.nodes]
            return cls(calls, expected, metas, templates, count, products, last_uses(program))
        plan = executor.Plan(
            program.nodes,
            program.sources,
            program.keep,
            program.fetch,
            expected,
            [call.native for call in calls],
        )
        return cls(calls, expected, metas, templates, count, plan=plan)


def products_of_node(node: NodeRecord, call: OpCall, expected: Sequence[Expected]) -> Products:
    """Nothing for a node whose shapes depend on data."""
    fresh = call.fresh
    flags = fresh if len(fresh) == len(node.outputs) else (fresh[0] if fresh else True,) * len(node.outputs)
    made: list[Made] = []
    for place, (value, meta) in enumerate(zip(node.outputs, node.output_metas, strict=False)):
        if value is not None and value not in node.inputs:
            assert meta is not None
            made.append((place, expected[meta], flags[place]))
    return Products(sum(item.span_bytes for _, item, is_new in made if is_new), made)


class Preparations:
    """By key, least recently used first; bounded by the nodes that they are for."""

    def __init__(self, nodes_max: int = NODES_KEPT_MAX) -> None:
        self._nodes_max = nodes_max
        self._nodes = 0
        self._kept: OrderedDict[bytes, Preparation] = OrderedDict()

    def find(self, key: bytes | None) -> Preparation | None:
        if key is None or key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def keep(self, key: bytes | None, preparation: Preparation) -> None:
        if key is None:
            return
        self._kept[key] = preparation
        self._nodes += preparation.node_count
        while self._nodes > self._nodes_max:
            _, gone = self._kept.popitem(last=False)
            self._nodes -= gone.node_count


def last_uses(program: Program) -> list[tuple[int, ...]]:
    """Return, for each node, the values that it uses last: produced or loaded here, neither kept nor
    fetched."""
    held = {source.value for source in program.sources if source.held}
    needed: set[int | None] = {None, *program.keep, *program.fetch, *held}
    frees: list[tuple[int, ...]] = []
    for node in reversed(program.nodes):
        places = []
        for place, value in enumerate((*node.inputs, *node.outputs)):
            if value not in needed:
                needed.add(value)
                places.append(place)
        frees.append(tuple(places))
    frees.reverse()
    return frees
