"""Chains of tiny ops, as a worker gets them and as eager torch calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from djinn_lab.srg.program import (
    NodeRecord,
    Program,
    ScalarHole,
    Scope,
    Source,
    Template,
    TensorHole,
    TensorMeta,
)

META = TensorMeta("float32", (8,), (1,))
SCOPE = Scope("", 0, "cell", 1, "other")


@dataclass(frozen=True)
class Chain:
    """``step``: one op of it, on the result of the one before."""

    name: str
    count: int
    step: Callable[[torch.Tensor], torch.Tensor]
    program: Program

    def steps(self, value: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(self.count):
            value = self.step(value)
            yield value

    def eager(self, value: torch.Tensor) -> torch.Tensor:
        step = self.step
        for _ in range(self.count):
            value = step(value)
        return value


def chains(count: int) -> list[Chain]:
    add = Template("aten.add.Tensor", [TensorHole(), ScalarHole()], {})
    write = Template("aten.add_.Tensor", [TensorHole(), ScalarHole()], {})
    view = Template("aten.view.default", [TensorHole(), [8]], {})
    return [
        Chain("adds", count, lambda value: value + 1, _program(count, add, (1,), fresh=True)),
        Chain("adds in place", count, lambda value: value.add_(1), _program(count, write, (1,), fresh=False)),
        Chain("views", count, lambda value: value.view(8), _program(count, view, (), fresh=True)),
    ]


def _program(count: int, template: Template, scalars: tuple[int, ...], fresh: bool) -> Program:
    inline = torch.zeros(8).numpy().tobytes()
    outputs = [number + 1 if fresh else 0 for number in range(count)]
    inputs = [number if fresh else 0 for number in range(count)]
    storage = template.op.startswith("aten.view")
    nodes = [
        NodeRecord(0, (given,), (made,), (0,), (0 if storage or not fresh else made,), 0, scalars)
        for given, made in zip(inputs, outputs, strict=True)
    ]
    return Program(
        metas=(META,),
        templates=(template,),
        scopes=(SCOPE,),
        sources=(Source(0, 0, 0, "input", None, inline),),
        nodes=nodes,
        keep=(outputs[-1],),
        fetch=(),
        release=(),
        rng_state=None,
    )
