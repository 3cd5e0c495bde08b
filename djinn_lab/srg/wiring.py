"""Which nodes produce, write and share which values in a program, the basis of every analysis.

Nodes that do the same are the same :class:`Call`: what an op costs, and whether it only looks at memory, is
found once for each call and holds for every node that makes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat, starmap
from typing import NamedTuple, cast

from djinn_lab.srg.ops import base_name, written_holes
from djinn_lab.srg.program import Program, TensorMeta

BEFORE = -1
"""In place of a node: it was there before the first one."""
_SHARED, _OWN = (True,), (False,)
Lookup = Callable[[int | None], int | None]
_Call = tuple[int, tuple[int | None, ...], tuple[int | None, ...], tuple[bool | None, ...]]


class Call(NamedTuple):
    """A template with the layouts of its tensors; the numbers are places in the program's tables. ``inputs``,
    ``outputs``: metas, None where there is no tensor or its sizes depend on data. ``shared``: for each
    output, whether it lies in the memory of an input, None where there is no output."""

    template: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    shared: tuple[bool | None, ...]


def present(values: tuple[int | None, ...]) -> tuple[int, ...]:
    """Return the values without the places that have none."""
    if None in values:
        return tuple(value for value in values if value is not None)
    return cast(tuple[int, ...], values)


def is_view(shared: tuple[bool | None, ...], written: tuple[int, ...]) -> bool:
    """Return whether all results of a call alias its inputs, of which it writes none."""
    return bool(shared) and False not in shared and not written


@dataclass(frozen=True)
class Wiring:
    """Which nodes and values of a program belong together. ``names``: base op name per template. ``written``:
    the inputs that an op changes in place, by position, per template. ``layouts``: place of the meta of each
    value (None while data-dependent). ``storages``: storage of each value. ``origins``: of
    each storage, the node that names it first, or BEFORE, and the place of the meta that it says.
    ``sources``: values that exist before the first node. ``calls``: the different calls by first use;
    ``call_of``: per node, which of them it is. ``touched``: per node, the storages of its inputs and then of
    its outputs, None where there is none."""

    program: Program
    names: tuple[str, ...]
    written: tuple[tuple[int, ...], ...]
    layouts: Mapping[int, int | None]
    storages: Mapping[int, int]
    origins: Mapping[int, tuple[int, int | None]]
    sources: frozenset[int]
    calls: tuple[Call, ...]
    call_of: list[int]
    touched: list[tuple[int | None, ...]]

    @cached_property
    def metas(self) -> dict[int, TensorMeta | None]:
        """By value, None while data-dependent."""
        table = self.program.metas
        return {value: None if meta is None else table[meta] for value, meta in self.layouts.items()}

    def shape(self, value: int) -> tuple[int, ...] | None:
        """Return the shape of a value, None while data-dependent."""
        meta = self.layouts[value]
        return None if meta is None else self.program.metas[meta].shape

    @cached_property
    def views(self) -> list[bool]:
        """Per node, whether it only looks at its inputs' memory."""
        views = [is_view(call.shared, self.written[call.template]) for call in self.calls]
        return [views[call] for call in self.call_of]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Per call, how many nodes make it."""
        counted = Counter(self.call_of)
        return tuple(counted[call] for call in range(len(self.calls)))

    @cached_property
    def writes(self) -> list[tuple[int, ...]]:
        """Per node, the inputs that it changes in place."""
        written = self.written
        return [
            tuple(value for hole in holes if (value := node.inputs[hole]) is not None)
            if (holes := written[node.template])
            else ()
            for node in self.program.nodes
        ]


def trace_wiring(program: Program) -> Wiring:
    """Walk the program once, in order."""
    sources = program.sources
    layouts: dict[int, int | None] = {source.value: source.meta for source in sources}
    storages = {source.value: source.storage for source in sources}
    origins: dict[int, tuple[int, int | None]] = {
        source.storage: (BEFORE, source.meta) for source in reversed(sources)
    }
    numbers: dict[_Call, int] = {}
    call_of: list[int] = []
    touched: list[tuple[int | None, ...]] = []
    layout_of: Lookup = layouts.get  # type: ignore[assignment]  # of None: None
    storage_of: Lookup = storages.get  # type: ignore[assignment]
    number_of, begins = numbers.setdefault, origins.setdefault
    for position, node in enumerate(program.nodes):
        inputs, outputs, made, metas = node.inputs, node.outputs, node.storages, node.output_metas
        read = tuple(map(storage_of, inputs))
        layout = tuple(map(layout_of, inputs))
        if len(made) == 1 == len(metas) and (storage := made[0]) is not None:  # most nodes
            shared: tuple[bool | None, ...] = _SHARED
            if storage not in read:
                shared = _OWN
                begins(storage, (position, metas[0]))
            storages[outputs[0]], layouts[outputs[0]] = storage, metas[0]  # type: ignore[index]
        else:
            shared = tuple(None if storage is None else storage in read for storage in made)
            for value, storage, meta in zip(outputs, made, metas or repeat(None), strict=False):
                if value is not None and storage is not None:
                    storages[value], layouts[value] = storage, meta
                    begins(storage, (position, meta))
        call_of.append(number_of((node.template, layout, metas, shared), len(numbers)))
        touched.append(read + made)
    return Wiring(
        program=program,
        names=tuple(base_name(template.op) for template in program.templates),
        written=tuple(written_holes(template) for template in program.templates),
        layouts=layouts,
        storages=storages,
        origins=origins,
        sources=frozenset(source.value for source in sources),
        calls=tuple(starmap(Call, numbers)),
        call_of=call_of,
        touched=touched,
    )
