"""Which nodes produce, write and share which values in a program, the basis of every analysis."""

from __future__ import annotations

from dataclasses import dataclass

from djinn_lab.srg.ops import base_name, written_holes
from djinn_lab.srg.program import Program, TensorMeta


@dataclass(frozen=True)
class Wiring:
    """Which nodes and values of a program belong together. ``names``: base op name per template. ``metas``:
    meta of each value (None while data-dependent). ``storages``: storage of each value. ``sources``: values
    that exist before the first node. ``writes``: per node, the inputs it changes in place. ``views``: per
    node, whether all its results alias its inputs, unwritten."""

    program: Program
    names: tuple[str, ...]
    metas: dict[int, TensorMeta | None]
    storages: dict[int, int]
    sources: frozenset[int]
    writes: list[tuple[int, ...]]
    views: list[bool]


def trace_wiring(program: Program) -> Wiring:
    """Walk the program once, in order."""
    table = program.metas
    metas: dict[int, TensorMeta | None] = {source.value: table[source.meta] for source in program.sources}
    storages: dict[int, int] = {source.value: source.storage for source in program.sources}
    written_by_template = [written_holes(template) for template in program.templates]
    writes: list[tuple[int, ...]] = []
    views: list[bool] = []
    for node in program.nodes:
        holes = written_by_template[node.template]
        written = tuple(value for hole in holes if (value := node.inputs[hole]) is not None)
        is_view = not written and bool(node.outputs)
        given = {storages[value] for value in node.inputs if value is not None} if is_view else ()
        for value, storage in zip(node.outputs, node.storages, strict=True):
            if value is not None and storage is not None:
                storages[value] = storage
                metas[value] = None
                is_view = is_view and storage in given
        for value, meta in zip(node.outputs, node.output_metas, strict=False):
            if value is not None and meta is not None:
                metas[value] = table[meta]
        writes.append(written)
        views.append(is_view)
    return Wiring(
        program=program,
        names=tuple(base_name(template.op) for template in program.templates),
        metas=metas,
        storages=storages,
        sources=frozenset(source.value for source in program.sources),
        writes=writes,
        views=views,
    )
