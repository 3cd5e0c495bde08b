"""Which ops have other sizes in one program than in another of the same structure.

Such programs differ in their tables alone (:class:`djinn_lab.srg.plan_key.ResizableProgram`), as the steps of
a decode loop do whose cache, mask or list of tokens grows."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.srg.program import Program
from djinn_lab.srg.region_ops import may_grow_cache
from djinn_lab.srg.wiring import Wiring, trace_wiring
from djinn_lab.units import counted

STATIC_CACHE = 'cache_implementation="static"'
"""How transformers' generate() is asked for one."""


def resized_calls(wiring: Wiring, other: Program) -> set[int]:
    """Return the calls of a program that the other one makes with other sizes."""
    metas = _differences(wiring.program.metas, other.metas)
    templates = _differences(wiring.program.templates, other.templates)
    if not metas and not templates:
        return set()
    return {
        place
        for place, call in enumerate(wiring.calls)
        if call.template in templates or not metas.isdisjoint((*call.inputs, *call.outputs))
    }


class Resized:
    """The nodes of a program that have had other sizes in others of its structure."""

    def __init__(self, program: Program) -> None:
        self._wiring = trace_wiring(program)
        self._calls: set[int] = set()

    def add(self, other: Program) -> None:
        self._calls |= resized_calls(self._wiring, other)

    @property
    def nodes(self) -> set[int]:
        return {index for index, call in enumerate(self._wiring.call_of) if call in self._calls}

    def sentence(self) -> str:
        """Say what runs op by op for its sizes, and what would help, as the end of a sentence for people."""
        nodes, wiring = self.nodes, self._wiring
        ops = sum(not wiring.views[index] for index in nodes)
        if not ops:
            return ""
        said = f"; {counted(ops, 'op')} of other sizes in each run {'run' if ops > 1 else 'runs'} op by op"
        grows = any(may_grow_cache(wiring, wiring.program.nodes[index]) for index in nodes)
        return f"{said} (a key-value cache of fixed size, {STATIC_CACHE}, leaves fewer)" if grows else said


def _differences(some: Sequence[object], others: Sequence[object]) -> set[int]:
    return {place for place, (one, other) in enumerate(zip(some, others, strict=True)) if one != other}
