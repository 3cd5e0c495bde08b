"""Sends of a program only what it does not have in common with programs before it.

A program is taken apart into *units*: blocks of nodes (about one iteration of a loop each) with the table
entries that they are the first to use, sources, and ids to keep, fetch and release. Client and pool remember
every unit they exchanged by its structure (:mod:`djinn_lab.srg.columns`), with its last numbers and how
those had changed. A unit whose structure is remembered travels as a reference and the few numbers that are
not what one expects: the same as last time, or moved on by as much as last time. A new unit travels as
plain MessagePack.

Both ends do the same in the same order, so they remember the same without asking. A connection starts with
nothing, and what is remembered is bounded: least recently used units go first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise, repeat
from typing import Any

import msgspec
import numpy as np

from djinn_lab.srg import columns
from djinn_lab.srg.blocks import blocks
from djinn_lab.srg.columns import Columns, Numbers
from djinn_lab.srg.differences import changes_of, deviations_of, with_changes, with_deviations
from djinn_lab.srg.program import (
    NodeRecord,
    Program,
    Scope,
    Source,
    Template,
    TensorMeta,
    encode_program,
)
from djinn_lab.srg.remembered import TABLE_ENTRIES_MAX, DeltaError, Memory

REMEMBERED_BYTES_MAX = 64 * 2**20
PARTS_MAX = 200_000
NUMBERS_MAX = 2**25
"""Of one program: a bound on what a few references may unfold to."""
_ID_MAX = 2**60

_encode = msgspec.msgpack.Encoder().encode


class _Wire(msgspec.Struct, frozen=True, array_like=True):
    """``check``: of the program's plain form. ``rng``: None, a state, or True for the state that came back
    last. ``payloads``: inline bytes that are new. A part: units of the tables' order, new metas, templates
    and scopes, and a block of nodes (the last part has none), or how often the one before is repeated.
    ``ends``: sources, keep and fetch, release. A unit: bytes (new), or a list of reference, prediction,
    deviations and changed other values (shorter when those are empty)."""

    check: bytes
    base: int
    fresh: bool
    rng: bytes | bool | None
    payloads: list[bytes]
    parts: list[list[Any] | int]
    ends: list[Any]


_decode_wire = msgspec.msgpack.Decoder(_Wire).decode


def _decoder(kind: Any) -> Callable[[bytes], list[Any]]:
    return msgspec.msgpack.Decoder(list[kind]).decode


_decode_metas, _decode_templates, _decode_scopes = map(_decoder, (TensorMeta, Template, Scope))
_decode_nodes = _decoder(NodeRecord)
_decode_sources: Callable[[bytes], tuple[list[Source], list[int | None]]]
_decode_sources = msgspec.msgpack.Decoder(tuple[list[Source], list[int | None]]).decode
_decode_ids: Callable[[bytes], list[list[int]]] = msgspec.msgpack.Decoder(list[list[int]]).decode


_TABLES = ("metas", "templates", "scopes")
_COLUMNS: tuple[Callable[[Any], Columns], ...]
_COLUMNS = (columns.meta_columns, columns.template_columns, columns.scope_columns)
_READERS = (
    (_decode_metas, columns.meta_columns, columns.metas_of),
    (_decode_templates, columns.template_columns, columns.templates_of),
    (_decode_scopes, columns.scope_columns, columns.scopes_of),
)


def _tables_of(program: Program) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    return program.metas, program.templates, program.scopes


def _check(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=8).digest()


class DeltaEncoder:
    """Of one connection. Say :meth:`arrived` when what was encoded went out, or all begins anew."""

    def __init__(self, bytes_max: int = REMEMBERED_BYTES_MAX) -> None:
        self._memory = Memory(bytes_max)
        self._places: dict[str, dict[int, tuple[int, Any]]] = {}
        self._agreed: dict[str, dict[tuple[bytes, int], int]] = {}
        self._payloads: dict[bytes, int] = {}
        self._highest = -1
        self._state: bytes | None = None
        self._fresh = True
        self.whole_bytes = 0

    def saw_state(self, state: bytes) -> None:
        """This random state came back from a run."""
        self._state = state

    def arrived(self) -> None:
        """The last program is on its way; the other end will remember it."""
        self._fresh = False

    def encode(self, program: Program) -> bytes | None:
        """None when the program cannot be sent so (it has numbers beyond all measure): send it plainly."""
        fresh = self._fresh or self._memory.is_full
        if fresh:
            self._memory.clear()
            self._places, self._agreed, self._payloads, self._highest = {}, {}, {}, -1
        self._fresh = True  # until it arrived
        try:
            wire = self._wire(program, fresh)
        except OverflowError:
            return None
        return _encode(wire)

    def _wire(self, program: Program, fresh: bool) -> _Wire:
        table = columns.NodeTable(program.nodes)
        base = self._base(program, table)
        cuts = list(blocks(program))
        reached = [(0, 0, 0), *(table.reach(end) for _, end in cuts)]
        reached.append((len(program.metas), len(program.templates), len(program.scopes)))
        agreed = [
            self._numbers(name, items, known)
            for name, items, known in zip(_TABLES, _tables_of(program), self._memory.tables, strict=True)
        ]
        arrays = [np.array(list(numbers), dtype=np.int64) for numbers in agreed]
        table.agree(base, *arrays)
        parts: list[Any] = []
        before_part: list[Any] = []
        for index, (before, after) in enumerate(pairwise(reached)):
            part = self._entries(program, agreed, before, after)
            if index < len(cuts):
                start, end = cuts[index]
                part.append(self._unit(table.block(start, end), program.nodes[start:end]))
            if part == before_part and bytes not in map(type, part):
                parts[-1:] = [parts[-1] + 1] if type(parts[-1]) is int else [parts[-1], 1]
            else:
                parts.append(part)
            before_part = part
        payloads, ends = self._ends(program, arrays[0], base)
        same = program.rng_state is not None and program.rng_state == self._state
        rng = True if same else program.rng_state
        plain = encode_program(program)
        self.whole_bytes = len(plain)
        return _Wire(_check(plain), base, fresh, rng, payloads, parts, ends)

    def _entries(
        self, program: Program, agreed: Sequence[dict[int, bool]], before: Sequence[int], after: Sequence[int]
    ) -> list[Any]:
        """Units of the table entries from ``before`` up to ``after``."""
        rows, new = [], []
        for items, numbers, start, end in zip(_tables_of(program), agreed, before, after, strict=True):
            row = list(islice(numbers.items(), start, end))
            rows.append([number for number, _ in row])
            new.append([items[start + place] for place, (_, is_new) in enumerate(row) if is_new])
        order = self._unit(columns.id_columns("tables", rows, 0), rows) if any(rows) else None
        entries = [
            self._unit(make(items), items) if items else None
            for make, items in zip(_COLUMNS, new, strict=True)
        ]
        return [order, *entries]

    def _ends(self, program: Program, metas: Numbers, base: int) -> tuple[list[bytes], list[Any]]:
        for payload in self._memory.trim_payloads():
            self._payloads.pop(payload, None)
        new: list[bytes] = []
        numbers: list[int | None] = []
        bare = []
        for source in program.sources:
            number = None
            if source.inline is not None:
                number = self._payloads.get(source.inline)
                if number is None:
                    number = self._payloads[source.inline] = self._memory.add_payload(source.inline)
                    new.append(source.inline)
                source = msgspec.structs.replace(source, inline=None)
            numbers.append(number)
            bare.append(source)
        content = columns.source_columns(bare, numbers, metas, base)
        units = [self._unit(content, (bare, numbers))]
        for name, rows in (("keep", [program.keep, program.fetch]), ("release", [program.release])):
            units.append(self._unit(columns.id_columns(name, rows, base), rows))
        return new, units

    def _base(self, program: Program, table: columns.NodeTable) -> int:
        """The first id that is new since the program before."""
        sources = [number for source in program.sources for number in (source.value, source.storage)]
        ids = np.concatenate((np.array(sources, dtype=np.int64), table.new_ids))
        named = (*program.release, *program.keep, *program.fetch)
        highest = int(ids.max(initial=-1))
        if max(highest, *named, 0) > _ID_MAX:
            raise OverflowError
        base = int(ids[ids > self._highest].min(initial=_ID_MAX))
        self._highest = max(highest, self._highest)
        return base

    def _numbers(self, name: str, items: Sequence[Any], agreed: list[Any]) -> dict[int, bool]:
        """The agreed number of each item, and whether it is new."""
        places = self._places.setdefault(name, {})
        if len(places) > TABLE_ENTRIES_MAX:
            places.clear()
        known = self._agreed.setdefault(name, {})
        numbers: dict[int, bool] = {}
        for item in items:
            place = places.get(id(item))
            new = False
            if place is None or place[0] in numbers:
                content, again = _encode(item), 0
                while (number := known.setdefault((content, again), len(agreed))) in numbers:
                    again += 1  # a program may have equal entries
                new = number == len(agreed)
                if new:
                    agreed.append(item)
                place = places[id(item)] = number, item  # holds the item, so that its id stays its own
            numbers[place[0]] = new
        return numbers

    def _unit(self, content: Columns, items: Any) -> Any:
        unit = self._memory.find(content.structure)
        if unit is None:
            self._memory.add(content)
            return _encode(items)
        moved = deviations_of(content.numbers, unit.numbers + unit.step)
        same = deviations_of(content.numbers, unit.numbers) if moved else [[]]
        linear = len(_encode(moved)) < len(_encode(same))
        others = content.others if (changed := changes_of(unit.others, content.others)) else unit.others
        sent = [unit.number, int(linear), moved if linear else same, changed]
        self._memory.use(unit, content.numbers, others)
        while len(sent) > 1 and not sent[-1]:
            sent.pop()
        return sent[0] if len(sent) == 1 else sent


class DeltaDecoder:
    """The other end."""

    def __init__(self, bytes_max: int = REMEMBERED_BYTES_MAX) -> None:
        self._memory = Memory(bytes_max)
        self._state: bytes | None = None
        self._numbers_left = 0

    def saw_state(self, state: bytes) -> None:
        self._state = state

    def weight(self, data: bytes) -> int:
        """About how many numbers the program has."""
        try:
            parts = _decode_wire(data).parts
        except msgspec.MsgspecError:
            return 0
        total, part_total = len(data), 0
        for part in parts:
            if isinstance(part, int):
                total += part * part_total
                continue
            references = (unit[0] if isinstance(unit, list) and unit else unit for unit in part)
            part_total = sum(self._memory.size(number) for number in references if type(number) is int)
            total += part_total
        return total

    def decode(self, data: bytes) -> bytes:
        """The program in its plain form. Raises DeltaError; the connection is of no use then."""
        try:
            wire = _decode_wire(data)
            encoded = encode_program(self._decode(wire))
            if _check(encoded) != wire.check:
                raise DeltaError("the program came out differently")
            return encoded
        except DeltaError:
            raise
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as e:
            raise DeltaError(f"these bytes are no program: {type(e).__name__}: {e}") from None

    def _decode(self, wire: _Wire) -> Program:
        memory, base = self._memory, wire.base
        if wire.fresh:
            memory.clear()
        self._numbers_left = NUMBERS_MAX
        tables: tuple[list[int], list[int], list[int]] = [], [], []
        places: tuple[dict[int, int], dict[int, int], dict[int, int]] = {}, {}, {}
        nodes: list[NodeRecord] = []
        for order, *entries in _unrolled(wire.parts):
            rows = self._order(order)
            for agreed, content, read in zip(memory.tables, entries[:3], _READERS, strict=True):
                self._take_entries(content, agreed, read)
            for table, place, row in zip(tables, places, rows, strict=True):
                place.update((number, len(table) + index) for index, number in enumerate(row))
                table.extend(row)
            for content in entries[3:]:
                nodes.extend(self._nodes(content, tables, places, base))
        memory.trim_payloads()
        for payload in wire.payloads:
            memory.add_payload(payload)
        ends = wire.ends
        sources = self._sources(ends[0], tables[0], places[0], base)
        keep, fetch = columns.ids_of(self._ids(ends[1], "keep", base), base)
        [release] = columns.ids_of(self._ids(ends[2], "release", base), base)
        return Program(
            metas=[memory.metas[number] for number in tables[0]],
            templates=[memory.templates[number] for number in tables[1]],
            scopes=[memory.scopes[number] for number in tables[2]],
            sources=sources,
            nodes=nodes,
            keep=keep,
            fetch=fetch,
            release=release,
            rng_state=self._rng(wire.rng),
        )

    def _order(self, content: Any) -> list[list[int]]:
        return [[], [], []] if content is None else columns.ids_of(self._ids(content, "tables", 0), 0)

    def _nodes(self, content: Any, tables: Any, places: Any, base: int) -> list[NodeRecord]:
        if not isinstance(content, bytes):
            return columns.nodes_of(self._known(content), places[0], places[1], places[2], base)
        block = _decode_nodes(content)
        table = columns.NodeTable(block)
        table.agree(base, *(np.array(numbers, dtype=np.int64) for numbers in tables))
        self._memory.add(table.block(0, len(block)))
        return block

    def _sources(self, content: Any, metas: list[int], places: dict[int, int], base: int) -> list[Source]:
        if isinstance(content, bytes):
            bare, numbers = _decode_sources(content)
            made = columns.source_columns(bare, numbers, np.array(metas, dtype=np.int64), base)
            self._memory.add(made)
        else:
            made = self._known(content)
        return columns.sources_of(made, self._memory.payloads, places, base)

    def _rng(self, sent: bytes | bool | None) -> bytes | None:
        if isinstance(sent, bytes) or not sent:
            return sent or None
        if self._state is None:
            raise DeltaError("no random state came back yet")
        return self._state

    def _take_entries(self, content: Any, agreed: list[Any], readers: tuple[Any, Any, Any]) -> None:
        decode, make, read = readers
        if content is None:
            return
        if isinstance(content, bytes):
            new = decode(content)
            self._memory.add(make(new))
        else:
            new = read(self._known(content))
        agreed.extend(new)

    def _ids(self, content: Any, name: str, base: int) -> Columns:
        if not isinstance(content, bytes):
            return self._known(content)
        made = columns.id_columns(name, _decode_ids(content), base)
        self._memory.add(made)
        return made

    def _known(self, content: Any) -> Columns:
        """A unit that is remembered, brought up to date."""
        number, linear, deviations, changes = _padded(content)
        unit = self._memory.numbered(number)
        self._numbers_left -= len(unit.numbers) + len(unit.others)
        if self._numbers_left < 0:
            raise DeltaError("the program is too large")
        numbers = with_deviations(unit.numbers + unit.step if linear else unit.numbers, deviations)
        others = with_changes(unit.others, changes)
        self._memory.use(unit, numbers, others)
        return Columns(unit.structure, numbers, others)


def _unrolled(parts: Sequence[list[Any] | int]) -> Iterator[list[Any]]:
    left = PARTS_MAX
    last: list[Any] = []
    for part in parts:
        times = part if isinstance(part, int) else 1
        left -= times
        if left < 0 or times < 0:
            raise DeltaError("the program has too many parts")
        last = last if isinstance(part, int) else part
        yield from repeat(last, times)


def _padded(content: Any) -> tuple[int, int, Any, Any]:
    given = content if isinstance(content, list) else [content]
    missing: tuple[Any, ...] = (0, 0, [], [])
    number, linear, deviations, changes = [*given, *missing[len(given) :]]
    return number, linear, deviations, changes
