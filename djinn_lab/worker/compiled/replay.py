"""A region's ops, one after the other: to trace it, and to compare with what was compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from djinn_lab.srg.program import Program, Scalar
from djinn_lab.srg.wiring import trace_wiring
from djinn_lab.worker.preparation import Expected, last_uses

NONE: Mapping[int, Sequence[Scalar]] = MappingProxyType({})
RunOp = Callable[[Sequence[torch.Tensor | None], Sequence[Scalar]], Any]


class RegionReplay:
    """Run a region (:mod:`djinn_lab.srg.region_programs`) on its inputs, and return what it keeps.
    ``calls``: by template. ``expected``: by meta, the layouts of new memory; None: as the ops return them.
    ``own``: by template, the places of results that look as the device's kernel has them."""

    def __init__(
        self,
        region: Program,
        calls: Sequence[RunOp],
        expected: Sequence[Expected] | None = None,
        own: Sequence[Sequence[int]] = (),
    ) -> None:
        self._region = region
        self._calls = calls
        self._expected = expected
        self._own = own
        self._views = trace_wiring(region).views
        self._frees = last_uses(region)

    def __call__(
        self, inputs: Sequence[torch.Tensor], numbers: Mapping[int, Sequence[Scalar]] = NONE
    ) -> list[torch.Tensor]:
        """``numbers``: of nodes that have others than when the region was found."""
        region = self._region
        known: dict[int | None, Any] = {
            source.value: tensor for source, tensor in zip(region.sources, inputs, strict=True)
        }
        for index, node in enumerate(region.nodes):
            tensors = [known[value] for value in node.inputs if value is not None]
            returned = self._calls[node.template](tensors, numbers.get(index, node.scalars))
            items: Sequence[Any] = returned if isinstance(returned, (list, tuple)) else (returned,)
            for place, item in enumerate(items[: len(node.outputs)]):
                if node.outputs[place] is not None:
                    known[node.outputs[place]] = self._as_expected(index, place, item)
            touched = (*node.inputs, *node.outputs)
            for place in self._frees[index]:
                del known[touched[place]]
        return [known[value] for value in region.keep]

    def _as_expected(self, index: int, place: int, item: Any) -> Any:
        node = self._region.nodes[index]
        meta = node.output_metas[place]
        if self._expected is None or meta is None or item is None:
            return item
        if self._own and place in self._own[node.template]:
            return item
        op = self._region.templates[node.template].op
        return self._expected[meta].check(item, not self._views[index], op)
