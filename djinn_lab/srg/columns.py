"""Parts of a program as a structure, a row of integers and a row of other values.

Two parts have the same structure when they differ only in numbers: ids, sizes, lines, literals, scalars. An
iterative workload repeats structures, and its numbers stand still or grow steadily, which is what
:mod:`djinn_lab.srg.delta` makes use of.

Ids that are new since the program before are numbered from ``base`` (in nodes: from the first result of
the block, so that equal iterations look alike); older ones keep their number. The
program's tables are named by numbers that client and pool agree on for as long as they are connected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from djinn_lab.srg.program import ComplexNumber, NodeRecord, Scope, Source, Template, TensorMeta

Numbers = npt.NDArray[np.int64]
_encode = msgspec.msgpack.Encoder().encode
_decode_template = msgspec.msgpack.Decoder(list[Template]).decode
_NONE = -2
_LARGE = 2**62


class Columns(NamedTuple):
    """``structure`` says how to read ``numbers`` and ``others``."""

    structure: bytes
    numbers: Numbers
    others: list[Any]


def _array(values: Sequence[int] | Iterable[int]) -> Numbers:
    return np.array(values if isinstance(values, (list, tuple)) else list(values), dtype=np.int64)


def ids_to_numbers(ids: Numbers, base: int) -> Numbers:
    """New ids are odd, old ones even; None (-1) is a negative even number."""
    return np.where(ids >= base, 2 * (ids - base) + 1, 2 * ids)


def numbers_to_ids(numbers: Numbers, origin: int) -> list[int | None]:
    ids = np.where(numbers & 1, (numbers - 1) // 2 + origin, numbers // 2)
    found: list[int | None] = ids.tolist()
    if (numbers == _NONE).any():
        for index in np.flatnonzero(numbers == _NONE).tolist():
            found[index] = None
    return found


def _expect(values: Iterable[Any], *kinds: type) -> None:
    """What came over the wire untyped must be of these types."""
    if not set(map(type, values)).issubset(kinds):
        raise ValueError(f"other values than {', '.join(kind.__name__ for kind in kinds)}")


def _cut(values: Sequence[Any], counts: Iterable[int]) -> list[tuple[Any, ...]]:
    ends = accumulate(counts, initial=0)
    return [tuple(values[start:end]) for start, end in pairwise(ends)]


def _optional(values: list[int | None]) -> Numbers:
    if None in values:
        return _array([-1 if value is None else value for value in values])
    return np.array(values, dtype=np.int64)


# -------------------------------------------------------------------------------------------------- tables


def meta_columns(metas: Sequence[TensorMeta]) -> Columns:
    ranks = [(meta.dtype, len(meta.shape), len(meta.stride)) for meta in metas]
    numbers = _array(chain.from_iterable((*meta.shape, *meta.stride) for meta in metas))
    return Columns(_encode(("metas", ranks)), numbers, [])


def metas_of(columns: Columns) -> list[TensorMeta]:
    ranks = msgspec.msgpack.decode(columns.structure)[1]
    rows = _cut(columns.numbers.tolist(), [shape + stride for _, shape, stride in ranks])
    return [
        TensorMeta(dtype, row[:shape], row[shape:])
        for (dtype, shape, _), row in zip(ranks, rows, strict=True)
    ]


def template_columns(templates: Sequence[Template]) -> Columns:
    """Integers of the static arguments are numbers; everything else is structure."""
    numbers: list[int] = []

    def skeleton(argument: Any) -> Any:
        if type(argument) is int:
            numbers.append(argument)
            return {"n": 0}
        if isinstance(argument, list):
            return [skeleton(item) for item in argument]
        return argument

    rows = [
        (
            template.op,
            [skeleton(argument) for argument in template.args],
            {name: skeleton(argument) for name, argument in template.kwargs.items()},
        )
        for template in templates
    ]
    return Columns(_encode(("templates", rows)), _array(numbers), [])


def templates_of(columns: Columns) -> list[Template]:
    numbers = iter(columns.numbers.tolist())

    def filled(argument: Any) -> Any:
        if isinstance(argument, list):
            return [filled(item) for item in argument]
        if isinstance(argument, dict) and "n" in argument:
            return next(numbers)
        return argument

    rows = [
        (op, [filled(argument) for argument in args], {name: filled(item) for name, item in kwargs.items()})
        for op, args, kwargs in msgspec.msgpack.decode(columns.structure)[1]
    ]
    return _decode_template(_encode(rows))


def scope_columns(scopes: Sequence[Scope]) -> Columns:
    cells: dict[str, int] = {}
    numbers = [
        number
        for scope in scopes
        for number in (scope.call, scope.line, cells.setdefault(scope.cell, len(cells)))
    ]
    names = [(scope.module, scope.phase) for scope in scopes]
    return Columns(_encode(("scopes", names, len(cells))), _array(numbers), list(cells))


def scopes_of(columns: Columns) -> list[Scope]:
    names = msgspec.msgpack.decode(columns.structure)[1]
    rows = columns.numbers.reshape(-1, 3).tolist()
    _expect(columns.others, str)
    return [
        Scope(module, call, columns.others[cell], line, phase)
        for (module, phase), (call, line, cell) in zip(names, rows, strict=True)
    ]


# ------------------------------------------------------------------------------------- sources, ends, nodes


def source_columns(
    sources: Sequence[Source], payloads: Sequence[int | None], metas: Numbers, base: int
) -> Columns:
    """``metas``: the agreed number of each meta of the program. The other values: digests, and ``payloads``,
    the agreed numbers of inline bytes."""
    ids = _array(chain((s.value for s in sources), (s.storage for s in sources)))
    used = metas[_array(source.meta for source in sources)] if sources else _array(())
    others = [source.blob for source in sources] + list(payloads)
    residencies = [source.residency for source in sources]
    return Columns(
        _encode(("sources", residencies)), np.concatenate((ids_to_numbers(ids, base), used)), others
    )


def sources_of(
    columns: Columns, payloads: Mapping[int, bytes], places: Mapping[int, int], base: int
) -> list[Source]:
    """``payloads`` and ``places`` (the program's metas) by agreed number."""
    residencies = msgspec.msgpack.decode(columns.structure)[1]
    count = len(residencies)
    ids = numbers_to_ids(columns.numbers[: 2 * count], base)
    _expect(ids, int)
    blobs, numbers = columns.others[:count], columns.others[count:]
    _expect(blobs, str, type(None))
    metas = columns.numbers[2 * count :].tolist()
    inline = [None if number is None else payloads[number] for number in numbers]
    return [
        Source(ids[i], ids[count + i], places[metas[i]], residencies[i], blobs[i], inline[i])  # type: ignore[arg-type]
        for i in range(count)
    ]


def id_columns(name: str, rows: Sequence[Sequence[int]], base: int) -> Columns:
    """Lists of ids."""
    numbers = ids_to_numbers(_array(chain.from_iterable(rows)), base)
    return Columns(_encode((name, [len(row) for row in rows])), numbers, [])


def ids_of(columns: Columns, base: int) -> list[list[int]]:
    counts = msgspec.msgpack.decode(columns.structure)[1]
    found: list[Any] = numbers_to_ids(columns.numbers, base)
    _expect(found, int)
    return [list(row) for row in _cut(found, counts)]


class NodeTable:
    """All nodes of a program, to be cut into blocks (after :meth:`agree`)."""

    def __init__(self, nodes: Sequence[NodeRecord]) -> None:
        inputs, outputs, storages, used, scalars = _unzip(nodes)
        self._templates = _array([node.template for node in nodes])
        self._scopes = _array([node.scope for node in nodes])
        self._dynamic = bytes([node.dynamic for node in nodes])
        self._counts = np.array(
            [list(map(len, row)) for row in (inputs, outputs, storages, used, scalars)], dtype=np.int32
        )
        ends = np.zeros((5, len(nodes) + 1), dtype=np.int64)
        np.cumsum(self._counts, axis=1, out=ends[:, 1:])
        self._ends = ends.T.tolist()
        self._ids = [_optional(list(chain.from_iterable(row))) for row in (inputs, outputs, storages)]
        self._metas = _optional(list(chain.from_iterable(used)))
        self._scalars = list(chain.from_iterable(scalars))

    @property
    def new_ids(self) -> Numbers:
        """Ids of results and their memory."""
        return np.concatenate(self._ids[1:])

    def reach(self, end: int) -> tuple[int, int, int]:
        """How much of the program's metas, templates and scopes the first ``end`` nodes use."""
        used = self._metas[: self._ends[end][3]], self._templates[:end], self._scopes[:end]
        metas, templates, scopes = (int(row.max(initial=-1)) + 1 for row in used)
        return metas, templates, scopes

    def agree(self, base: int, metas: Numbers, templates: Numbers, scopes: Numbers) -> None:
        """The arrays: agreed numbers of the program's tables."""
        self._ids = [ids_to_numbers(ids, base) for ids in self._ids]
        self._templates, self._scopes = templates[self._templates], scopes[self._scopes]
        if len(metas):
            self._metas = np.where(self._metas < 0, -1, metas[self._metas])

    def block(self, start: int, end: int) -> Columns:
        """Of the nodes from ``start`` to before ``end``."""
        first, last = self._ends[start], self._ends[end]
        rows = [row[first[i] : last[i]] for i, row in enumerate(self._ids)]
        lowest = min((int(row[row & 1 == 1].min(initial=_LARGE)) for row in rows[1:]), default=_LARGE)
        shift = lowest - 1 if lowest < _LARGE else 0
        ids = np.concatenate(rows)
        if shift:
            ids = ids - shift * (ids & 1)
        numbers = np.concatenate(
            (
                _array((shift,)),
                self._templates[start:end],
                self._scopes[start:end],
                ids,
                self._metas[first[3] : last[3]],
            )
        )
        counts = self._counts[:, start:end].tobytes()
        structure = _encode(("nodes", end - start, counts, self._dynamic[start:end]))
        return Columns(structure, numbers, self._scalars[first[4] : last[4]])


def _unzip(nodes: Sequence[NodeRecord]) -> tuple[list[Sequence[Any]], ...]:
    return (
        [node.inputs for node in nodes],
        [node.outputs for node in nodes],
        [node.storages for node in nodes],
        [node.output_metas for node in nodes],
        [node.scalars for node in nodes],
    )


def nodes_of(
    columns: Columns,
    metas: Mapping[int, int],
    templates: Mapping[int, int],
    scopes: Mapping[int, int],
    base: int,
) -> list[NodeRecord]:
    """The program's table entries by agreed number."""
    _, count, packed, dynamic = msgspec.msgpack.decode(columns.structure)
    counts = np.frombuffer(packed, dtype=np.int32).reshape(5, count)
    totals = counts.sum(axis=1).tolist()
    shift, numbers = int(columns.numbers[0]), columns.numbers[1:]
    if shift & 1:
        raise ValueError("an odd shift")
    origin = base + shift // 2
    ends = list(accumulate((count, count, sum(totals[:3]), totals[3]), initial=0))
    plans = numbers[: ends[1]].tolist()
    places = numbers[ends[1] : ends[2]].tolist()
    ids = numbers_to_ids(numbers[ends[2] : ends[3]], origin)
    used = [None if number < 0 else metas[number] for number in numbers[ends[3] :].tolist()]
    per_node = counts.tolist()
    inputs = _cut(ids[: totals[0]], per_node[0])
    outputs = _cut(ids[totals[0] : totals[0] + totals[1]], per_node[1])
    storages = _cut(ids[totals[0] + totals[1] :], per_node[2])
    output_metas = _cut(used, per_node[3])
    _expect(columns.others, bool, int, float, ComplexNumber)
    scalars = _cut(columns.others, per_node[4])
    return [
        NodeRecord(
            templates[plans[i]],
            inputs[i],
            outputs[i],
            output_metas[i],
            storages[i],
            scopes[places[i]],
            scalars[i],
            bool(dynamic[i]),
        )
        for i in range(count)
    ]
