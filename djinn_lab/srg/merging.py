"""One program from several that ran one after the other in a session, as if they had been sent at once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from djinn_lab.srg.program import NodeRecord, NumericSettings, Program, Scope, Source, Template, TensorMeta
from djinn_lab.srg.wiring import present

STREAMED = "streamed"
"""The cause of a part that was sent ahead: no cut, no fetch waited for it."""


def merge_programs(programs: Sequence[Program]) -> Program:
    """Merge programs: nodes in order; what an earlier program made is no source of a later one. Raises
    ValueError for none."""
    if not programs:
        raise ValueError("there is no program to merge")
    if len(programs) == 1:
        return programs[0]
    merger = _Merger()
    for program in programs:
        merger.add(program)
    return merger.result()


class _Merger:
    def __init__(self) -> None:
        self._metas: dict[TensorMeta, int] = {}
        self._scopes: dict[Scope, int] = {}
        self._templates: dict[int, int] = {}
        self._template_list: list[Template] = []
        self._sources: dict[int, Source] = {}
        self._made: set[int | None] = set()
        self._dynamic: dict[int, int] = {}
        self._nodes: list[NodeRecord] = []
        self._keep: dict[int, None] = {}
        self._fetch: list[int] = []
        self._release: list[int] = []
        self._rng_state: bytes | None = None
        self._settings: NumericSettings | None = None

    def add(self, program: Program) -> None:
        metas = [self._metas.setdefault(meta, len(self._metas)) for meta in program.metas]
        scopes = [self._scopes.setdefault(scope, len(self._scopes)) for scope in program.scopes]
        templates = [self._template(template) for template in program.templates]
        for source in program.sources:
            if source.value in self._dynamic:
                self._learn_layout(source.value, metas[source.meta])
            elif source.value not in self._made and source.value not in self._sources:
                self._sources[source.value] = msgspec.structs.replace(source, meta=metas[source.meta])
        meta_of = dict[int | None, int | None]([(None, None), *enumerate(metas)]).__getitem__
        for node in program.nodes:
            self._nodes.append(
                NodeRecord(
                    templates[node.template],
                    node.inputs,
                    node.outputs,
                    tuple(map(meta_of, node.output_metas)),
                    node.storages,
                    scopes[node.scope],
                    node.scalars,
                    node.dynamic,
                )
            )
            self._made.update(node.outputs)
            if node.dynamic:
                self._dynamic |= dict.fromkeys(present(node.outputs), len(self._nodes) - 1)
        self._keep.update(dict.fromkeys(program.keep))
        for value in program.release:
            self._keep.pop(value, None)
            if value not in self._made:
                self._release.append(value)
        self._fetch.extend(program.fetch)
        self._rng_state = self._rng_state or program.rng_state
        self._settings = self._settings or program.settings

    def _learn_layout(self, value: int, meta: int) -> None:
        """Give a result whose shape depended on data the layout with which a later program reads it."""
        index = self._dynamic.pop(value)
        node = self._nodes[index]
        known = node.output_metas or (None,) * len(node.outputs)
        metas = tuple(
            meta if output == value else old for output, old in zip(node.outputs, known, strict=True)
        )
        self._nodes[index] = msgspec.structs.replace(node, output_metas=metas, dynamic=False)

    def _template(self, template: Template) -> int:
        index = self._templates.get(id(template))
        if index is None:
            index = self._templates[id(template)] = len(self._template_list)
            self._template_list.append(template)
        return index

    def result(self) -> Program:
        return Program(
            metas=list(self._metas),
            templates=self._template_list,
            scopes=list(self._scopes),
            sources=list(self._sources.values()),
            nodes=self._nodes,
            keep=list(self._keep),
            fetch=self._fetch,
            release=self._release,
            rng_state=self._rng_state,
            settings=self._settings,
        )
