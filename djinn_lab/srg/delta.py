"""Sends of a program only what it does not have in common with programs before it.

A program is taken apart into *units*: new table entries, the tables' order, sources, ids to keep, fetch and
release, and blocks of nodes (about one iteration of a loop each). Client and pool remember every unit they
exchanged by its structure (:mod:`djinn_lab.srg.columns`), with its last numbers and how those had changed.
A unit whose structure is remembered travels as a reference and the few numbers that are not what one expects:
the same as last time, or moved on by as much as last time. A new unit travels as plain MessagePack.

Both ends do the same in the same order, so they remember the same without asking. A connection starts with
nothing, and what is remembered is bounded: least recently used units go first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from djinn_lab.srg import columns
from djinn_lab.srg.columns import Columns, Numbers
from djinn_lab.srg.program import (
    ComplexNumber,
    NodeRecord,
    Program,
    Scope,
    Source,
    Template,
    TensorMeta,
    encode_program,
)

REMEMBERED_BYTES_MAX = 64 * 2**20
TABLE_ENTRIES_MAX = 50_000
BLOCK_NODES_MIN = 24
BLOCK_NODES_MAX = 4096
NUMBERS_MAX = 2**25
"""Of one program: a bound on what a few references may unfold to."""
_ID_MAX = 2**60

_encode = msgspec.msgpack.Encoder().encode


class DeltaError(ValueError):
    """The bytes refer to something that this end does not remember, or are no delta at all."""


class _Wire(msgspec.Struct, frozen=True, array_like=True):
    """``check``: of the program's plain form. ``rng``: None, a state, or True for the state that came back
    last. A unit: bytes (new), or a list of
    reference, prediction, deviations and changed other values (shorter when those are empty)."""

    check: bytes
    base: int
    fresh: bool
    rng: bytes | bool | None
    units: list[Any]


_decode_wire = msgspec.msgpack.Decoder(_Wire).decode


def _decoder(kind: Any) -> Callable[[bytes], list[Any]]:
    return msgspec.msgpack.Decoder(list[kind]).decode


_decode_metas, _decode_templates, _decode_scopes = map(_decoder, (TensorMeta, Template, Scope))
_decode_sources, _decode_nodes = map(_decoder, (Source, NodeRecord))
_decode_ids: Callable[[bytes], list[list[int]]] = msgspec.msgpack.Decoder(list[list[int]]).decode


class _Unit:
    """What is remembered of one structure. ``step``: how the numbers changed last time."""

    __slots__ = ("digest", "nbytes", "number", "numbers", "others", "step", "structure")

    def __init__(self, number: int, digest: bytes, content: Columns) -> None:
        self.number = number
        self.digest = digest
        self.structure, self.numbers, self.others = content
        self.step: Numbers = np.zeros_like(self.numbers)
        self.nbytes = self._size()

    def _size(self) -> int:
        held = sum(len(item) if isinstance(item, (bytes, str)) else 16 for item in self.others)
        return len(self.structure) + 16 * len(self.numbers) + held

    def move_to(self, numbers: Numbers, others: list[Any]) -> None:
        self.step = numbers - self.numbers
        self.numbers = numbers
        if others is not self.others:
            self.others = others
            self.nbytes = self._size()


class _Memory:
    """Units by structure and by number, least recently used first; and the agreed tables."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.clear()

    def clear(self) -> None:
        self._units: OrderedDict[bytes, _Unit] = OrderedDict()
        self._digests: dict[int, bytes] = {}
        self._last = 0
        self._nbytes = 0
        self.metas: list[TensorMeta] = []
        self.templates: list[Template] = []
        self.scopes: list[Scope] = []

    @property
    def is_full(self) -> bool:
        return max(len(self.metas), len(self.templates), len(self.scopes)) > TABLE_ENTRIES_MAX

    def find(self, structure: bytes) -> _Unit | None:
        return self._units.get(_digest(structure))

    def numbered(self, number: int) -> _Unit:
        digest = self._digests.get(number)
        if digest is None:
            raise DeltaError(f"unit {number} is not remembered")
        return self._units[digest]

    def size(self, number: int) -> int:
        """How many numbers a unit has, 0 when it is not remembered."""
        digest = self._digests.get(number)
        return 0 if digest is None else len(self._units[digest].numbers)

    def add(self, content: Columns) -> None:
        digest = _digest(content.structure)
        old = self._units.pop(digest, None)
        if old is not None:
            del self._digests[old.number]
            self._nbytes -= old.nbytes
        self._last += 1
        unit = self._units[digest] = _Unit(self._last, digest, content)
        self._digests[unit.number] = digest
        self._nbytes += unit.nbytes
        while self._nbytes > self._bytes_max:
            _, gone = self._units.popitem(last=False)
            del self._digests[gone.number]
            self._nbytes -= gone.nbytes

    def use(self, unit: _Unit, numbers: Numbers, others: list[Any]) -> None:
        self._units.move_to_end(unit.digest)
        self._nbytes -= unit.nbytes
        unit.move_to(numbers, others)
        self._nbytes += unit.nbytes


def _check(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=8).digest()


def _digest(structure: bytes) -> bytes:
    return hashlib.blake2b(structure, digest_size=16).digest()


# ---------------------------------------------------------------------------------------------- differences


def _deviations(numbers: Numbers, expected: Numbers) -> list[Any]:
    """``[by how much, first place, steps to the next places ...]`` for each amount."""
    rest = numbers - expected
    if not rest.any():
        return []
    places = np.flatnonzero(rest)
    amounts = rest[places]
    found = []
    for amount in np.unique(amounts).tolist():
        at = places[amounts == amount]
        found.append([amount, int(at[0]), *np.diff(at).tolist()])
    return found


def _with_deviations(expected: Numbers, deviations: Sequence[Sequence[int]]) -> Numbers:
    numbers = expected.copy()
    for amount, *steps in deviations:
        numbers[np.cumsum(steps)] += amount
    return numbers


def _changed(before: list[Any], after: list[Any]) -> list[Any]:
    """``[first places of values that all became the same, single places]``, each followed by what is there
    now."""
    if not after or _encode(before) == _encode(after):
        return []
    old, new = [_encode(item) for item in before], [_encode(item) for item in after]
    became: dict[bytes, set[bytes]] = {}
    for was, now in zip(old, new, strict=True):
        became.setdefault(was, set()).add(now)
    together, single, seen = [], [], set()
    for place, (was, now) in enumerate(zip(old, new, strict=True)):
        if was == now:
            continue
        if len(became[was]) > 1:
            single += [place, after[place]]
        elif was not in seen:
            seen.add(was)
            together += [place, after[place]]
    return [together, single]


def _with_changes(before: list[Any], changes: Sequence[Any]) -> list[Any]:
    if not changes:
        return before
    together, single = changes
    after = list(before)
    together, single = _values(together), _values(single)
    old = [_encode(item) for item in before] if together else []
    for place, value in zip(together[::2], together[1::2], strict=True):
        was = old[place]
        for other, item in enumerate(old):
            if item == was:
                after[other] = value
    for place, value in zip(single[::2], single[1::2], strict=True):
        after[place] = value
    return after


def _values(places_and_values: Sequence[Any]) -> list[Any]:
    """As they came over the wire, with complex numbers made whole again."""
    return [
        ComplexNumber(float(item["real"]), float(item["imag"])) if isinstance(item, dict) else item
        for item in places_and_values
    ]


# ----------------------------------------------------------------------------------------------- the two ends


class DeltaEncoder:
    """Of one connection. Say :meth:`arrived` when what was encoded went out, or all begins anew."""

    def __init__(self, bytes_max: int = REMEMBERED_BYTES_MAX) -> None:
        self._memory = _Memory(bytes_max)
        self._places: dict[str, dict[int, tuple[int, Any]]] = {}
        self._agreed: dict[str, dict[tuple[bytes, int], int]] = {}
        self._highest = -1
        self._state: bytes | None = None
        self._fresh = True
        self.hits = 0
        self.misses = 0

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
            self._places, self._agreed, self._highest = {}, {}, -1
        self._fresh = True  # until it arrived
        try:
            base, units = self._units(program)
        except OverflowError:
            return None
        same = program.rng_state is not None and program.rng_state == self._state
        rng = True if same else program.rng_state
        return _encode(_Wire(_check(encode_program(program)), base, fresh, rng, units))

    def _units(self, program: Program) -> tuple[int, list[Any]]:
        memory = self._memory
        table = columns.NodeTable(program.nodes)
        base = self._base(program, table)
        tables = []
        units: list[Any] = []
        for name, items, agreed, make in (
            ("metas", program.metas, memory.metas, columns.meta_columns),
            ("templates", program.templates, memory.templates, columns.template_columns),
            ("scopes", program.scopes, memory.scopes, columns.scope_columns),
        ):
            numbers, new = self._numbers(name, items, agreed)
            units.append(self._unit(make(new), new) if new else None)
            tables.append(numbers)
        arrays = [np.array(numbers, dtype=np.int64) for numbers in tables]
        table.agree(base, *arrays)
        units.append(self._unit(columns.id_columns("tables", tables, 0), tables))
        units.append(self._unit(columns.source_columns(program.sources, arrays[0], base), program.sources))
        for name, rows in (("keep", [program.keep, program.fetch]), ("release", [program.release])):
            units.append(self._unit(columns.id_columns(name, rows, base), rows))
        for start, end in blocks(program):
            units.append(self._unit(table.block(start, end), program.nodes[start:end], counts=True))
        return base, units

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

    def _numbers(self, name: str, items: Sequence[Any], agreed: list[Any]) -> tuple[list[int], list[Any]]:
        """The agreed number of each item, and those that had none."""
        places = self._places.setdefault(name, {})
        if len(places) > TABLE_ENTRIES_MAX:
            places.clear()
        known = self._agreed.setdefault(name, {})
        numbers: dict[int, None] = {}
        new = []
        for item in items:
            place = places.get(id(item))
            if place is None or place[0] in numbers:
                content, again = _encode(item), 0
                while (number := known.setdefault((content, again), len(agreed))) in numbers:
                    again += 1  # a program may have equal entries
                if number == len(agreed):
                    agreed.append(item)
                    new.append(item)
                place = places[id(item)] = number, item  # holds the item, so that its id stays its own
            numbers[place[0]] = None
        return list(numbers), new

    def _unit(self, content: Columns, items: Any, counts: bool = False) -> Any:
        unit = self._memory.find(content.structure)
        if counts:
            self.hits += unit is not None
            self.misses += unit is None
        if unit is None:
            self._memory.add(content)
            return _encode(items)
        moved = _deviations(content.numbers, unit.numbers + unit.step)
        same = _deviations(content.numbers, unit.numbers) if moved else [[]]
        linear = len(_encode(moved)) < len(_encode(same))
        others = content.others if (changed := _changed(unit.others, content.others)) else unit.others
        sent = [unit.number, int(linear), moved if linear else same, changed]
        self._memory.use(unit, content.numbers, others)
        while len(sent) > 1 and not sent[-1]:
            sent.pop()
        return sent[0] if len(sent) == 1 else sent


class DeltaDecoder:
    """The other end."""

    def __init__(self, bytes_max: int = REMEMBERED_BYTES_MAX) -> None:
        self._memory = _Memory(bytes_max)
        self._state: bytes | None = None
        self._numbers_left = 0

    def saw_state(self, state: bytes) -> None:
        self._state = state

    def weight(self, data: bytes) -> int:
        """About how many numbers the program has."""
        try:
            units = _decode_wire(data).units
        except msgspec.MsgspecError:
            return 0
        references = [unit[0] if isinstance(unit, list) and unit else unit for unit in units]
        return len(data) + sum(self._memory.size(number) for number in references if type(number) is int)

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
        units = iter(wire.units)
        for agreed, decode, make, read in (
            (memory.metas, _decode_metas, columns.meta_columns, columns.metas_of),
            (memory.templates, _decode_templates, columns.template_columns, columns.templates_of),
            (memory.scopes, _decode_scopes, columns.scope_columns, columns.scopes_of),
        ):
            self._take_entries(next(units), agreed, decode, make, read)
        tables = columns.ids_of(self._ids(next(units), "tables", 0), 0)
        metas, templates, scopes = tables
        arrays = [np.array(table, dtype=np.int64) for table in tables]
        places = [{number: place for place, number in enumerate(table)} for table in tables]
        content = next(units)
        if isinstance(content, bytes):
            sources = _decode_sources(content)
            memory.add(columns.source_columns(sources, arrays[0], base))
        else:
            sources = columns.sources_of(self._known(content), places[0], base)
        keep, fetch = columns.ids_of(self._ids(next(units), "keep", base), base)
        [release] = columns.ids_of(self._ids(next(units), "release", base), base)
        nodes: list[NodeRecord] = []
        for content in units:
            if isinstance(content, bytes):
                block = _decode_nodes(content)
                table = columns.NodeTable(block)
                table.agree(base, *arrays)
                memory.add(table.block(0, len(block)))
            else:
                block = columns.nodes_of(self._known(content), places[1], places[2], places[0], base)
            nodes.extend(block)
        return Program(
            metas=[memory.metas[number] for number in metas],
            templates=[memory.templates[number] for number in templates],
            scopes=[memory.scopes[number] for number in scopes],
            sources=sources,
            nodes=nodes,
            keep=keep,
            fetch=fetch,
            release=release,
            rng_state=self._rng(wire.rng),
        )

    def _rng(self, sent: bytes | bool | None) -> bytes | None:
        if isinstance(sent, bytes) or not sent:
            return sent or None
        if self._state is None:
            raise DeltaError("no random state came back yet")
        return self._state

    def _take_entries(self, content: Any, agreed: list[Any], decode: Any, make: Any, read: Any) -> None:
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
        numbers = _with_deviations(unit.numbers + unit.step if linear else unit.numbers, deviations)
        others = _with_changes(unit.others, changes)
        self._memory.use(unit, numbers, others)
        return Columns(unit.structure, numbers, others)


def _padded(content: Any) -> tuple[int, int, Any, Any]:
    given = content if isinstance(content, list) else [content]
    missing: tuple[Any, ...] = (0, 0, [], [])
    number, linear, deviations, changes = [*given, *missing[len(given) :]]
    return number, linear, deviations, changes


def blocks(program: Program) -> Iterator[tuple[int, int]]:
    """Starts and ends: nodes are cut where a loop begins anew: the cell's line goes back, or another root
    module call begins."""
    scopes = program.scopes
    marks = [node.scope for node in program.nodes]
    start = line = call = 0
    last = -1
    for index, scope in enumerate(marks):
        if scope == last and index - start < BLOCK_NODES_MAX:
            continue
        last = scope
        here = scopes[scope]
        anew = here.line < line or (here.call not in (0, call))
        line, call = here.line, here.call or call
        if (anew and index - start >= BLOCK_NODES_MIN) or index - start >= BLOCK_NODES_MAX:
            yield start, index
            start = index
    if start < len(marks):
        yield start, len(marks)
