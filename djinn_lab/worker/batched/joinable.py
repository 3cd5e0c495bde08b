"""Which nodes of a program may run once for several sessions: a pure function of the program's structure.

A node qualifies that multiplies rows by a 2-D weight, where the weight is memory that the program finds and
does not write: a weight of another session may then be the same. Whether it is, the run itself compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from djinn_lab.srg.ops import written_holes
from djinn_lab.srg.program import NodeRecord, Program, Template, TensorHole, TensorMeta

WEIGHT_ELEMENTS_MIN = 2**12
"""Smaller weights are read as fast as rows are joined."""


class Operands(NamedTuple):
    """Places among a node's inputs. ``bias``: added to the product, each member's own; None: nothing is."""

    rows: int
    weight: int
    bias: int | None = None


_OPERANDS = {
    "aten.mm.default": Operands(rows=0, weight=1),
    "aten.addmm.default": Operands(rows=1, weight=2, bias=0),
}


def operands_of(op: str) -> Operands:
    """Return the places of a joinable op's operands."""
    return _OPERANDS[op]


def joinable_nodes(program: Program, elements_min: int = WEIGHT_ELEMENTS_MIN) -> tuple[int, ...]:
    """Return the nodes that may run once for several sessions, in their order."""
    metas: dict[int, TensorMeta] = {source.value: program.metas[source.meta] for source in program.sources}
    storages: dict[int | None, int | None] = {source.value: source.storage for source in program.sources}
    found_before = {source.storage for source in program.sources}
    writes = [written_holes(template) for template in program.templates]
    written: set[int | None] = set()
    candidates: list[tuple[int, int | None]] = []
    for index, node in enumerate(program.nodes):
        if _may_join(program.templates[node.template], node, metas, elements_min):
            weight = _OPERANDS[program.templates[node.template].op].weight
            candidates.append((index, storages.get(node.inputs[weight])))
        written.update(storages.get(node.inputs[place]) for place in writes[node.template])
        storages.update(zip(node.outputs, node.storages, strict=True))
        for value, meta in zip(node.outputs, node.output_metas, strict=False):
            if value is not None and meta is not None:
                metas[value] = program.metas[meta]
    usable = found_before - written
    return tuple(index for index, storage in candidates if storage in usable)


def _may_join(template: Template, node: NodeRecord, metas: dict[int, TensorMeta], elements_min: int) -> bool:
    operands = _OPERANDS.get(template.op)
    if operands is None or node.dynamic or any(not isinstance(hole, TensorHole) for hole in template.args):
        return False
    known = [None if value is None else metas.get(value) for value in node.inputs]
    rows, weight = known[operands.rows], known[operands.weight]
    if rows is None or weight is None or len(rows.shape) != 2 or not rows.numel:
        return False
    bias = None if operands.bias is None else known[operands.bias]
    of_one_row = operands.bias is None or (bias is not None and len(bias.shape) == 1)
    return of_one_row and weight.numel >= elements_min


def with_joinable(program: Program, nodes: Sequence[int]) -> tuple[Program, list[Template]]:
    """Return the program with templates of their own for these nodes, which come after the others; and these
    templates. Nodes that do not call a joinable op are left as they are."""
    places: dict[int, int] = {}
    changed = list(program.nodes)
    for index in nodes:
        node = changed[index] if index < len(changed) else None
        if node is not None and program.templates[node.template].op in _OPERANDS:
            place = places.setdefault(node.template, len(program.templates) + len(places))
            changed[index] = replace(node, template=place)
    added = [program.templates[template] for template in places]
    return replace(program, templates=[*program.templates, *added], nodes=changed), added
