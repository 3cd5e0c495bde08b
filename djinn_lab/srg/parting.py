"""A program in parts: prelude, groups of branches (:mod:`djinn_lab.srg.branches`) or of tasks
(:mod:`djinn_lab.srg.tasks`), epilogue, each a program.

The prelude and the epilogue run in the session; groups run anywhere, in sessions of their own, each once
those are done whose values it imports. Between parts whole storages travel, with the values that look at
them, so that aliasing stays what it is. A storage that is at *home* (the session held it, or the prelude made
or wrote it) and that a group writes is written back into the same memory.

Nothing that the session held before is written until the epilogue, whose first act is to take over what the
groups made. With :attr:`Parts.undo` the session is again what it was, so that the whole program can be run
instead when a part fails: what it then raises, and what exists then, is what it would have been."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from djinn_lab.srg.branches import COPIED, EPILOGUE, PRELUDE
from djinn_lab.srg.precedence import touched_storages
from djinn_lab.srg.program import NodeRecord, Program, Source
from djinn_lab.srg.wiring import trace_wiring


class Part(msgspec.Struct, frozen=True):
    """One part of a program. ``nodes``: which of the whole program's ops these are. ``imports``: values that
    it needs from other parts, ``exports``: those that others need from it; values of one storage travel
    together. ``after``: the groups from which a group imports, by number. ``imported_bytes``,
    ``exported_bytes``: of their storages, as far as layouts show."""

    program: Program
    nodes: tuple[int, ...]
    imports: tuple[int, ...] = ()
    exports: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    imported_bytes: int = 0
    exported_bytes: int = 0


class Parts(msgspec.Struct, frozen=True):
    """The parts of a program. ``prelude`` None: there is nothing to do before the groups. ``home``: values
    that the session holds when the groups are done, into whose memory it is that others of their storage are
    written back. ``release``: values that are held no more when all is done. ``undo``: exports of the prelude
    that put back what was written, and ``made``: values to drop then."""

    prelude: Part | None
    groups: tuple[Part, ...]
    epilogue: Part
    home: frozenset[int]
    release: tuple[int, ...]
    undo: tuple[int, ...]
    made: tuple[int, ...]


def part_program(program: Program, places: Sequence[int], groups: Sequence[Sequence[int]]) -> Parts:
    """Part a program. ``places``: of every op, PRELUDE, EPILOGUE, COPIED or the number of its branch or task;
    ``groups``: the numbers that make up each group. Each branch or task is in one group, and groups do not
    wait for each other in a circle."""
    return _Parting(program, places, groups).parts()


@dataclass(slots=True)
class _Draft:
    """A part on its way. ``reads``: values that it takes from before its own ops."""

    nodes: list[int]
    reads: dict[int, None] = field(default_factory=dict)
    made: set[int] = field(default_factory=set)


class _Parting:
    def __init__(self, program: Program, places: Sequence[int], groups: Sequence[Sequence[int]]) -> None:
        self._program = program
        self._wiring = trace_wiring(program)
        self._sources = {source.value: source for source in program.sources}
        self._maker = {
            value: index
            for index, node in enumerate(program.nodes)
            for value in node.outputs
            if value is not None and value not in node.inputs
        }
        self._places = places
        group_of = {branch: number for number, group in enumerate(groups) for branch in group}
        drafts: dict[int, list[int]] = {PRELUDE: [], EPILOGUE: [], **{n: [] for n in range(len(groups))}}
        for index, place in enumerate(places):
            if place != COPIED:
                drafts[group_of.get(place, place)].append(index)
        self._prelude = self._draft(drafts[PRELUDE], ())
        self._groups = [self._draft(drafts[number], ()) for number in range(len(groups))]
        self._epilogue = self._draft(drafts[EPILOGUE], (*program.keep, *program.fetch))
        self._home = self._home_storages()
        self._written_in = [self._written(draft.nodes) for draft in self._groups]
        self._group_of = {
            value: number
            for number, draft in enumerate(self._groups)
            for value in draft.made
            if self._places[self._maker[value]] != COPIED
        }

    def parts(self) -> Parts:
        """See the classes above."""
        wanted = [self._wanted_of_group(draft) for draft in self._groups]
        received = {value for values in wanted for value in values}
        outside = set(self._epilogue.reads)
        handed = [
            self._handed(number, wanted[number], outside, received) for number in range(len(self._groups))
        ]
        undo = self._undo()
        from_home = [value for value in received if value not in self._group_of and self._is_home(value)]
        prelude = self._prelude_part([*from_home, *undo], outside)
        groups = tuple(
            self._part(draft, wanted[number], handed[number]) for number, draft in enumerate(self._groups)
        )
        kept = set(prelude.program.keep) if prelude is not None else set()
        imported = {value for values in handed for value in self._brought(values, outside)}
        fresh = [value for value in imported if not self._is_home(value)]
        epilogue = self._epilogue_part(tuple(sorted(imported)))
        home = {value for value in imported if self._is_home(value)}
        held = {source.value for source in self._program.sources if source.held}
        made = tuple(sorted((kept | set(fresh) | set(epilogue.program.keep)) - held))
        program = self._program
        release = (*program.release, *sorted(set(made) - set(program.keep)))
        return Parts(prelude, groups, epilogue, frozenset(home), release, undo, made)

    # -- values of each part -------------------------------------------------------------------------------

    def _draft(self, nodes: list[int], also: Iterable[int]) -> _Draft:
        """Draft a part, with the copied ops that it needs, in order."""
        records = self._program.nodes
        found = set(nodes)
        made = {
            value
            for index in nodes
            for value in records[index].outputs
            if value is not None and self._maker.get(value) == index
        }
        todo = [value for index in nodes for value in records[index].inputs if value is not None]
        todo += also
        needed: dict[int, None] = {}
        while todo:
            value = todo.pop()
            maker = self._maker.get(value)
            if maker is not None and self._places[maker] == COPIED:
                if maker not in found:
                    found.add(maker)
                    made.update(one for one in records[maker].outputs if one is not None)
                    todo += [one for one in records[maker].inputs if one is not None]
            else:
                needed[value] = None
        reads = [value for value in sorted(needed) if self._maker.get(value) not in found]
        return _Draft(sorted(found), dict.fromkeys(reads), made)

    def _home_storages(self) -> set[int]:
        home = {source.storage for source in self._program.sources if source.held}
        for index in self._prelude.nodes:
            if self._places[index] == PRELUDE:
                home |= touched_storages(self._wiring, index)
        return home

    def _is_home(self, value: int) -> bool:
        """Return whether the session holds the value when the groups are done."""
        maker = self._maker.get(value)
        early = maker is None or self._places[maker] == PRELUDE
        return early and self._wiring.storages[value] in self._home

    def _written(self, nodes: Iterable[int]) -> set[int]:
        storages, writes = self._wiring.storages, self._wiring.writes
        return {storages[value] for index in nodes for value in writes[index]}

    def _wanted_of_group(self, draft: _Draft) -> list[int]:
        """Return the values that a group needs from the session and from other groups; it loads those sent
        along itself, where no other group writes them before."""
        return [
            value
            for value in draft.reads
            if self._is_home(value) or self._source_group(value, draft) is not None
        ]

    def _handed(
        self, number: int, wanted: Sequence[int], outside: set[int], received: set[int]
    ) -> tuple[int, ...]:
        """Return what the epilogue or other groups need of a group: values that it made, and every storage of
        the session that it wrote, each with a value that the session knows it by where there is one."""
        draft, storages = self._groups[number], self._wiring.storages
        written = self._written_in[number]
        found = {value for value in outside | received if self._group_of.get(value) == number}
        known = outside | received
        found |= {value for value in known if value in draft.reads and storages[value] in written}
        found |= {value for value in wanted if storages[value] in written}
        return tuple(sorted(found))

    def _source_group(self, value: int, draft: _Draft) -> int | None:
        """Return the other group from which a group has a value: the one that made it, or wrote what the
        session has there. None: it is as it was in the session."""
        if value in self._group_of:
            return self._group_of[value]
        storage = self._wiring.storages[value]
        written = (number for number, storages in enumerate(self._written_in) if storage in storages)
        return next((number for number in written if self._groups[number] is not draft), None)

    def _brought(self, handed: Sequence[int], outside: set[int]) -> list[int]:
        """Return those of a group's exports that come into the session: its storages travel whole."""
        storages = self._wiring.storages
        needed = {storages[value] for value in handed if value in outside or self._is_home(value)}
        return [value for value in handed if storages[value] in needed]

    def _undo(self) -> tuple[int, ...]:
        """Values of the session whose memory groups or epilogue write."""
        written = set().union(*self._written_in) | self._written(self._epilogue.nodes)
        return tuple(s.value for s in self._program.sources if s.held and s.storage in written)

    def _bytes(self, values: Iterable[int]) -> int:
        """Return the bytes of the values' storages, as far as their layouts show."""
        largest: dict[int, int] = {}
        for value in values:
            meta, storage = self._wiring.metas.get(value), self._wiring.storages[value]
            if meta is not None:
                largest[storage] = max(largest.get(storage, 0), meta.span_bytes)
        return sum(largest.values())

    # -- the parts -----------------------------------------------------------------------------------------

    def _prelude_part(self, wanted: Iterable[int], outside: set[int]) -> Part | None:
        exports = tuple(sorted(set(wanted)))
        draft = self._prelude
        for value in exports:
            if value not in draft.made:
                draft.reads[value] = None
        later = {*exports, *(value for value in outside if self._is_home(value))}
        for value in later:
            source = self._sources.get(value)
            if source is not None and not source.held:
                draft.reads[value] = None
        if not draft.nodes and not exports and self._program.rng_state is None:
            return None
        keep = [
            value for value in sorted(later) if value not in self._sources or not self._sources[value].held
        ]
        built = _build(self._program, draft.nodes, [self._source(value) for value in draft.reads])
        program = msgspec.structs.replace(built, keep=keep, rng_state=self._program.rng_state)
        return Part(program, tuple(draft.nodes), exports=exports, exported_bytes=self._bytes(exports))

    def _part(self, draft: _Draft, wanted: Sequence[int], exports: tuple[int, ...]) -> Part:
        held = set(wanted)
        sources = [self._held(value) if value in held else self._source(value) for value in draft.reads]
        built = _build(self._program, draft.nodes, sources)
        program = msgspec.structs.replace(built, keep=list(exports))
        after = {number for value in wanted if (number := self._source_group(value, draft)) is not None}
        return Part(
            program,
            tuple(draft.nodes),
            tuple(wanted),
            exports,
            tuple(sorted(after)),
            self._bytes(wanted),
            self._bytes(exports),
        )

    def _epilogue_part(self, imports: tuple[int, ...]) -> Part:
        draft, whole = self._epilogue, self._program
        sent = set(self._sources) - set(imports)
        sources = [
            self._source(value) if value in sent and not self._is_home(value) else self._held(value)
            for value in draft.reads
        ]
        built = _build(whole, draft.nodes, sources)
        known = {source.value for source in sources} | draft.made
        keep = [value for value in whole.keep if value in known]
        program = msgspec.structs.replace(built, keep=keep, fetch=whole.fetch)
        return Part(program, tuple(draft.nodes), imports, imported_bytes=self._bytes(imports))

    def _source(self, value: int) -> Source:
        """Return the source as it came."""
        return self._sources[value] if value in self._sources else self._held(value)

    def _held(self, value: int) -> Source:
        """Return a source held by the session that the part runs in. Its layout only matters to viewers of
        the graph."""
        source = self._sources.get(value)
        if source is not None:
            return msgspec.structs.replace(source, blob=None, inline=None)
        node = self._program.nodes[self._maker[value]]
        meta = node.output_metas[node.outputs.index(value)]
        assert meta is not None
        return Source(value, self._wiring.storages[value], meta, "activation", None)


def _build(whole: Program, nodes: Sequence[int], sources: Sequence[Source]) -> Program:
    """Some of a program's ops, with the tables that they need."""
    metas: dict[int, int] = {}
    templates: dict[int, int] = {}
    scopes: dict[int, int] = {}

    def number(table: dict[int, int], index: int) -> int:
        return table.setdefault(index, len(table))

    records = []
    for index in nodes:
        node = whole.nodes[index]
        records.append(
            NodeRecord(
                number(templates, node.template),
                node.inputs,
                node.outputs,
                tuple(None if meta is None else number(metas, meta) for meta in node.output_metas),
                node.storages,
                number(scopes, node.scope),
                node.scalars,
                node.dynamic,
            )
        )
    placed = [msgspec.structs.replace(source, meta=number(metas, source.meta)) for source in sources]
    return Program(
        metas=[whole.metas[index] for index in metas],
        templates=[whole.templates[index] for index in templates],
        scopes=[whole.scopes[index] for index in scopes],
        sources=placed,
        nodes=records,
        settings=whole.settings,
    )
