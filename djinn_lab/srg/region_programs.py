"""Regions as programs by themselves: what a compiler gets to see, and what the ops are that it replaces.

Values are numbered anew, so that equal regions are equal programs, and nothing in them was named by a user:
no module, cell or session. They receive what the region reads, and keep its roots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from djinn_lab.errors import Refused
from djinn_lab.srg.liveness import live_bytes
from djinn_lab.srg.program import NodeRecord, Program, Scalar, Scope, Source, Template, TensorMeta, row_major
from djinn_lab.srg.region_ops import is_eligible, with_number_as_tensor
from djinn_lab.srg.regions import Region
from djinn_lab.srg.validation import validate_program
from djinn_lab.srg.wiring import present, trace_wiring

Key = TypeVar("Key", int, TensorMeta)
Values = tuple[int | None, ...]
NUMBER = TensorMeta("float64", (), ())
"""Layout of a number that is another one in each run."""


def region_ops(program: Program, region: Region) -> Program:
    """Return the ops of a region as they were recorded."""
    return _Extract(program, region).program(numbers=False)


def compilable(program: Program, region: Region) -> Program:
    """Return what a compiler gets of a region: as :func:`region_ops`, and each of :attr:`Region.numbers` is
    an input of its own, behind the others."""
    return _Extract(program, region).program(numbers=True)


def validate_region(region: Program) -> None:
    """Raise :class:`Refused` unless a region may be compiled, which a worker is not trusted to say."""
    validate_program(region)
    wiring = trace_wiring(region)
    for index, node in enumerate(region.nodes):
        if not is_eligible(wiring, index, varies=False):
            raise Refused(f"{region.templates[node.template].op}, as it is called, may not be in a region.")


def region_peak_bytes(region: Program) -> int:
    """Return the most that a region's ops have in memory besides what they read."""
    wiring = trace_wiring(region)
    given = {source.storage for source in region.sources}
    made = [
        [storage for storage in node.storages if storage is not None and storage not in given]
        for node in region.nodes
    ]
    sizes: dict[int, int] = {}
    for value, storage in wiring.storages.items():
        meta = wiring.metas[value]
        if storage not in given and meta is not None:
            sizes[storage] = max(sizes.get(storage, 0), meta.span_bytes)
    read = [[wiring.storages[value] for value in present(node.inputs)] for node in region.nodes]
    lasting = {wiring.storages[value] for value in region.keep}
    return max(live_bytes(read, made, sizes, (), lasting).during, default=0)


class _Extract:
    """Collects a region's ops, with the tables that they need."""

    def __init__(self, program: Program, region: Region) -> None:
        self._program = program
        self._region = region
        self._wiring = trace_wiring(program)
        self._metas: dict[TensorMeta, int] = {}
        self._templates: list[Template] = []
        self._template_numbers: dict[int, int] = {}
        self._values: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._new = -1
        """Of a value that the program does not have; these count downwards."""
        self._sources: list[Source] = []
        self._nodes: list[NodeRecord] = []

    def program(self, numbers: bool) -> Program:
        program, region = self._program, self._region
        for place in region.inputs:
            value = program.nodes[place.node].inputs[place.position]
            assert value is not None
            meta = self._wiring.metas[value]
            assert meta is not None
            self._source(value, self._wiring.storages[value], meta)
        varying = {place.node: self._number() for place in region.numbers} if numbers else {}
        for index in range(region.first, region.end):
            if index in varying:
                self._with_number(program.nodes[index], varying[index])
            else:
                self._recorded(program.nodes[index])
        roots = [program.nodes[place.node].outputs[place.position] for place in region.roots]
        return Program(
            metas=list(self._metas),
            templates=self._templates,
            scopes=[Scope("", 0, "", 0, "other")],
            sources=self._sources,
            nodes=self._nodes,
            keep=[self._values[value] for value in roots if value is not None],
        )

    def _source(self, value: int, storage: int, meta: TensorMeta) -> None:
        number, memory = _number(self._values, value), _number(self._storages, storage)
        self._sources.append(Source(number, memory, _number(self._metas, meta), "activation", None))

    def _number(self) -> int:
        value = self._fresh()
        self._source(value, value, NUMBER)
        return value

    def _fresh(self) -> int:
        self._new -= 1
        return self._new

    def _recorded(self, node: NodeRecord) -> None:
        template = node.template
        if template not in self._template_numbers:
            self._template_numbers[template] = len(self._templates)
            self._templates.append(self._program.templates[template])
        metas = (None if meta is None else self._program.metas[meta] for meta in node.output_metas)
        self._add(
            self._template_numbers[template], node.inputs, node.outputs, metas, node.storages, node.scalars
        )

    def _with_number(self, node: NodeRecord, number: int) -> None:
        """Add ops that read the number as a tensor, in place of the node."""
        result = self._wiring.metas[node.outputs[0]] if node.outputs[0] is not None else None
        assert result is not None
        between = TensorMeta(result.dtype, result.shape, row_major(result.shape))
        first, others = node.inputs[0], node.inputs[1:]
        *steps, last = with_number_as_tensor(self._program.templates[node.template])
        scaled = number
        for step in steps:
            made = self._fresh()
            read = others if len(others) == len(step.args) else (others[0], number)
            self._step(step, read, made, made, between)
            others, scaled = (made,), made
        output, storage = node.outputs[0], node.storages[0]
        assert output is not None
        assert storage is not None
        self._step(last, (first, scaled), output, storage, result)

    def _step(self, template: Template, read: Values, made: int, storage: int, meta: TensorMeta) -> None:
        self._templates.append(template)
        self._add(len(self._templates) - 1, read, (made,), (meta,), (storage,), ())

    def _add(
        self,
        template: int,
        inputs: Values,
        outputs: Values,
        metas: Iterable[TensorMeta | None],
        storages: Values,
        scalars: tuple[Scalar, ...],
    ) -> None:
        self._nodes.append(
            NodeRecord(
                template,
                tuple(None if value is None else _number(self._values, value) for value in inputs),
                tuple(None if value is None else _number(self._values, value) for value in outputs),
                tuple(None if meta is None else _number(self._metas, meta) for meta in metas),
                tuple(None if one is None else _number(self._storages, one) for one in storages),
                0,
                scalars,
            )
        )


def _number(table: dict[Key, int], key: Key) -> int:
    return table.setdefault(key, len(table))
