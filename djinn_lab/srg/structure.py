"""What follows from how a program's nodes hang together, whatever the sizes of its tensors are.

Programs of equal structure differ in the shapes of their tensors and in whole numbers among the arguments of
their ops, as the steps of a decoder do while its key-value cache grows. Their footprints and their work are
the same functions of the sizes, so that only these are evaluated anew.

``srg/native/structure.h`` walks through the nodes in C++, where it is built.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, Literal, NamedTuple

import msgspec

from djinn_lab.native import load
from djinn_lab.srg.attention import attended_metas
from djinn_lab.srg.list_ops import ON_LISTS, parts_of
from djinn_lab.srg.liveness import FirstUses, first_uses, last_touches
from djinn_lab.srg.ops import base_name
from djinn_lab.srg.program import Program, TensorMeta
from djinn_lab.srg.wiring import BEFORE, Call, Lookup, Wiring, trace_wiring

GraphPhase = Literal["", "prefill", "decode"]
"""What a graph with attention does: it reads a whole sequence, or a few positions over a key-value cache.
Empty for any other."""
LASTING = -1
"""``freed`` of a storage that outlives the last node."""
Sizes = tuple[int, ...]
"""Places in what :meth:`ProgramStructure.spans` returns."""


class ProgramStructure(msgspec.Struct, frozen=True):
    """A valid program without its sizes.

    ``names``: op of each template. ``call_of``: per node, which of the ``calls`` it makes. ``counts``: per
    call, how many nodes make it.

    ``sizes``, ``made``, ``freed``: columns of the storages that the program loads or makes: the size, the
    node that makes it or BEFORE, the last node that touches it or LASTING.

    ``widest``: metas whose widest span is the size of one storage. ``touched``: the different sizes that an
    op, or one tensor's part of an op on lists, needs at once, with the first node that does, but for ops on
    one storage of before, such as views. ``sources``: of all sources. ``kept``: of storages that outlive the
    program, but for those of blobs. ``reads``: places of the sources that the ops read and the session holds.
    ``attended``: the different pairs of metas whose last size but one is an attention's number of queries,
    and of keys; none where there is a backward pass."""

    names: tuple[str, ...]
    calls: tuple[Call, ...]
    call_of: array[int]
    counts: tuple[int, ...]
    sizes: array[int]
    made: array[int]
    freed: array[int]
    widest: tuple[tuple[int, ...], ...]
    touched: tuple[tuple[Sizes, int], ...]
    sources: Sizes
    kept: Sizes
    reads: FirstUses | None
    attended: tuple[tuple[int, int], ...] = ()

    @property
    def ops(self) -> int:
        """Return the number of nodes."""
        return len(self.call_of)

    @property
    def numbers(self) -> int:
        """Return how many numbers it holds, which is what it takes in memory."""
        calls = sum(len(call.inputs) + len(call.outputs) for call in self.calls)
        touched = sum(len(group) for group, _ in self.touched)
        widest = sum(map(len, self.widest))
        columns = len(self.call_of) + 3 * len(self.sizes) + len(self.sources) + len(self.kept)
        return columns + calls + touched + widest + (0 if self.reads is None else len(self.reads.values))

    def op(self, node: int) -> str:
        """Return the op of a node."""
        return self.names[self.calls[self.call_of[node]].template]

    def phase(self, metas: Sequence[TensorMeta]) -> GraphPhase:
        """Return ``prefill`` where an attention has as many queries as keys, and more than one; else
        ``decode`` where one has fewer, or where there are no ops, and values are only read; for the metas of
        a program of this structure."""
        if not self.ops:
            return "decode"
        lengths = [(metas[query].shape[-2], metas[key].shape[-2]) for query, key in self.attended]
        if any(1 < queries == keys for queries, keys in lengths):
            return "prefill"
        return "decode" if any(queries < keys for queries, keys in lengths) else ""

    def spans(self, metas: Sequence[TensorMeta]) -> list[int]:
        """Return the bytes of each size, for the metas of a program of this structure."""
        spans = [meta.span_bytes for meta in metas]
        return spans + [max(spans[place] for place in group) for group in self.widest]


class _Given(NamedTuple):
    """The fields of a structure that take no walk through the nodes. ``sizes``: of each storage that sources
    lie in."""

    names: tuple[str, ...]
    widest: tuple[tuple[int, ...], ...]
    sources: Sizes
    sizes: Mapping[int, int]


def structure_of(program: Program, material: bytes = b"") -> ProgramStructure:
    """Return the structure of a valid program. ``material``: what its plan key is made of, if it has one; the
    wire extension, where it is built, walks through that instead."""
    seen, widest = _source_sizes(program)
    names = tuple(template.op for template in program.templates)
    given = _Given(names, widest, tuple(seen[source.storage] for source in program.sources), seen)
    native = load("wire") if material and not any(name.startswith(ON_LISTS) for name in names) else None
    if native is None:
        return _walk(program, given)
    return _of_native(program, given, *native.structure(material, given.sources))


def _of_native(
    program: Program,
    given: _Given,
    calls: Sequence[tuple[Any, ...]],
    call_of: bytes,
    counts: tuple[int, ...],
    sizes: bytes,
    made: bytes,
    freed: bytes,
    touched: tuple[tuple[Sizes, int], ...],
    kept: Sizes,
    reads: tuple[int, ...],
    first_reads: int,
) -> ProgramStructure:
    found = tuple(starmap(Call, calls))
    return ProgramStructure(
        names=given.names,
        widest=given.widest,
        sources=given.sources,
        calls=found,
        call_of=array("q", call_of),
        counts=counts,
        sizes=array("q", sizes),
        made=array("q", made),
        freed=array("q", freed),
        touched=touched,
        kept=kept,
        reads=FirstUses(reads, first_reads) if call_of else None,
        attended=_attended(program, found),
    )


def _walk(program: Program, given: _Given) -> ProgramStructure:
    """Do in Python what the wire extension does."""
    wiring = trace_wiring(program)
    loaded = {source.storage: source.meta for source in reversed(program.sources) if source.blob is not None}
    made = {
        storage: (node, meta)
        for storage, (node, meta) in wiring.origins.items()
        if node != BEFORE and meta is not None
    }
    fresh = {storage: meta for storage, (_, meta) in made.items()}
    last = last_touches(wiring.touched)
    lasting = {source.storage for source in program.sources}
    lasting.update(wiring.storages[value] for value in (*program.keep, *program.fetch))
    kept = dict.fromkeys(wiring.storages[value] for value in program.keep)
    size = loaded | fresh
    return ProgramStructure(
        names=given.names,
        widest=given.widest,
        sources=given.sources,
        calls=wiring.calls,
        call_of=array("q", wiring.call_of),
        counts=wiring.counts,
        sizes=array("q", size.values()),
        made=array("q", [BEFORE] * len(loaded) + [node for node, _ in made.values()]),
        freed=array("q", [LASTING if storage in lasting else last[storage] for storage in size]),
        touched=tuple(_touched(wiring, {**given.sizes, **fresh})),
        kept=tuple(fresh[storage] for storage in kept if storage in fresh),
        reads=_reads(program),
        attended=_attended(program, wiring.calls, wiring),
    )


def _attended(
    program: Program, calls: Sequence[Call], wiring: Wiring | None = None
) -> tuple[tuple[int, int], ...]:
    if any("backward" in base_name(template.op) for template in program.templates):
        return ()
    return tuple(dict.fromkeys(attended_metas(program, calls, wiring)))


def _source_sizes(program: Program) -> tuple[dict[int, int], tuple[tuple[int, ...], ...]]:
    """Return the size of each storage that sources lie in: what the program sees of it, of several the
    widest. And the groups of metas of which that is found."""
    sizes: dict[int, int] = {}
    several: dict[int, dict[int, None]] = {}
    for source in program.sources:
        first = sizes.setdefault(source.storage, source.meta)
        if first != source.meta:
            several.setdefault(source.storage, {first: None})[source.meta] = None
    for place, storage in enumerate(several, len(program.metas)):
        sizes[storage] = place
    return sizes, tuple(map(tuple, several.values()))


def _touched(wiring: Wiring, sizes: Mapping[int, int]) -> Iterator[tuple[Sizes, int]]:
    """Yield what :attr:`ProgramStructure.touched` holds. An op on one storage of before needs no more than
    what made that, or than that source."""
    program = wiring.program
    size_of: Lookup = sizes.get  # type: ignore[assignment]  # of None: None
    lists = [template.op.startswith(ON_LISTS) for template in program.templates]
    found: dict[tuple[int | None, ...], int] = {}
    for position, (node, storages) in enumerate(zip(program.nodes, wiring.touched, strict=True)):
        if lists[node.template]:
            for piece in _pieces(wiring, position):
                found.setdefault(tuple(map(size_of, piece)), position)
        elif len(different := dict.fromkeys(storages)) > 1 or not node.inputs:
            found.setdefault(tuple(map(size_of, different)), position)
    for group, position in found.items():
        yield tuple(size for size in group if size is not None), position


def _pieces(wiring: Wiring, position: int) -> Iterator[set[int | None]]:
    """Yield the storages that each part of an op on lists touches, or those of the op."""
    program, storage_of = wiring.program, wiring.storages.get
    node = program.nodes[position]
    for one in [part.node for part in parts_of(program.templates[node.template], node)] or [node]:
        yield {storage_of(value) for value in (*one.inputs, *one.outputs) if value is not None}


def _reads(program: Program) -> FirstUses | None:
    uses = first_uses(program)
    if uses is None:
        return None
    place_of = {source.value: place for place, source in enumerate(program.sources)}
    return FirstUses(tuple(place_of[value] for value in uses.values), uses.first)
