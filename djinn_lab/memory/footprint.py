"""Predicts how many bytes a program holds at its peak: liveness of storages in recorded order, freed as
the worker frees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from djinn_lab.srg.list_ops import parts_of
from djinn_lab.srg.liveness import last_touches, live_bytes
from djinn_lab.srg.program import NodeRecord, Program

REMAINDERS_MAX = 64


class Footprint(msgspec.Struct, frozen=True):
    """The memory that a program needs. ``peak_bytes`` of storages that the program itself makes or loads,
    reached at ``node`` (None: while loading). ``kept_bytes``: of those that outlive it, but for tensors that
    came as blobs, which sessions share. ``remainders``: see :meth:`remaining_bytes`, for equal runs of the
    ``ops``. ``floor_bytes``: the most that one op reads and makes, the one at ``floor_node``, or that one
    source takes (None): with everything else offloaded the program needs that much."""

    peak_bytes: int
    node: int | None
    kept_bytes: int = 0
    ops: int = 0
    remainders: tuple[int, ...] = ()
    floor_bytes: int = 0
    floor_node: int | None = None

    def remaining_bytes(self, executed: int) -> int:
        """The most that the program takes from op number ``executed`` on, besides what it holds there."""
        if not 0 < executed < self.ops:
            return self.peak_bytes
        return self.remainders[executed // _run_length(self.ops)]


def predict_peak_bytes(program: Program) -> Footprint:
    """Predict the footprint of a valid program. Values that the session already holds are not counted."""
    storage_of = _storages(program)
    sizes = _sizes(program)
    loaded = {source.storage for source in program.sources if source.storage in sizes}
    outliving = {storage_of[value] for value in (*program.keep, *program.fetch) if value in storage_of}
    touched = [_touched(node, storage_of) for node in program.nodes]
    live = live_bytes(
        (_known(node.storages, sizes) for node in program.nodes),
        last_touches(touched),
        sizes,
        loaded,
        outliving | {source.storage for source in program.sources},
    )
    loaded_bytes = sum(sizes[storage] for storage in loaded)
    peak_bytes = max(loaded_bytes, *live.during) if live.during else loaded_bytes
    floor_bytes, floor_node = _floor(program, sizes, storage_of, touched)
    return Footprint(
        peak_bytes,
        live.during.index(peak_bytes) if peak_bytes > loaded_bytes else None,
        _kept_bytes(program, sizes, storage_of),
        len(program.nodes),
        _remainders(live.before, live.during),
        floor_bytes,
        floor_node,
    )


def _floor(
    program: Program,
    sizes: Mapping[int, int],
    storage_of: Mapping[int | None, int],
    touched: Sequence[set[int]],
) -> tuple[int, int | None]:
    """Return the bytes of the storages that one op touches, of the op with most, and which that is. Ops on
    lists can run one tensor at a time."""
    all_sizes = dict(sizes)
    for source in program.sources:  # of those that the session holds at least what the program sees
        span_bytes = program.metas[source.meta].span_bytes
        all_sizes[source.storage] = max(all_sizes.get(source.storage, 0), span_bytes)
    most, at = max((all_sizes[source.storage] for source in program.sources), default=0), None
    for position, node in enumerate(program.nodes):
        parts = parts_of(program.templates[node.template], node)
        pieces = [_touched(part.node, storage_of) for part in parts] or [touched[position]]
        for storages in pieces:
            nbytes = sum(all_sizes.get(storage, 0) for storage in storages)
            if nbytes > most:
                most, at = nbytes, position
    return most, at


def _touched(node: NodeRecord, storage_of: Mapping[int | None, int]) -> set[int]:
    """Return the storages that a node reads, writes or makes."""
    return {storage_of[value] for value in (*node.inputs, *node.outputs) if value in storage_of}


def _storages(program: Program) -> dict[int | None, int]:
    """Map each value to the storage that it lies in."""
    found: dict[int | None, int] = {source.value: source.storage for source in program.sources}
    for node in program.nodes:
        for value, storage in zip(node.outputs, node.storages, strict=False):
            if value is not None and storage is not None:
                found[value] = storage
    return found


def _sizes(program: Program) -> dict[int, int]:
    """Map the storages that the program loads or makes to their bytes."""
    found: dict[int, int] = {}
    held_before = {source.storage for source in program.sources if source.blob is None}
    for source in program.sources:
        if source.blob is not None:
            found.setdefault(source.storage, program.metas[source.meta].span_bytes)
    for node in program.nodes:
        for meta, storage in zip(node.output_metas, node.storages, strict=False):
            if meta is not None and storage is not None and storage not in held_before:
                found.setdefault(storage, program.metas[meta].span_bytes)
    return found


def _known(storages: Iterable[int | None], sizes: Mapping[int, int]) -> list[int]:
    return [storage for storage in storages if storage is not None and storage in sizes]


def _run_length(ops: int) -> int:
    return max(1, -(-ops // REMAINDERS_MAX))


def _remainders(before: Sequence[int], during: Sequence[int]) -> tuple[int, ...]:
    """For every run of ops: the most that is live from its first op on, less the least that is live
    before one of its ops."""
    length = _run_length(len(before))
    found: list[int] = []
    most = 0
    for first in reversed(range(0, len(before), length)):
        most = max(most, *during[first : first + length])
        found.append(most - min(before[first : first + length]))
    return tuple(reversed(found))


def _kept_bytes(program: Program, size_of: Mapping[int, int], storage_of: Mapping[int | None, int]) -> int:
    blobs = {source.storage for source in program.sources if source.blob is not None}
    kept = {storage_of[value] for value in program.keep if value in storage_of} - blobs
    return sum(size_of.get(storage, 0) for storage in kept)
