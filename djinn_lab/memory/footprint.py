"""Predicts how many bytes a program holds at its peak: liveness of storages in recorded order, freed as
the worker frees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from djinn_lab.srg.program import Program

REMAINDERS_MAX = 64


class Footprint(msgspec.Struct, frozen=True):
    """``peak_bytes`` of storages that the program itself makes or loads, reached at ``node`` (None: while
    loading). ``kept_bytes``: of those that outlive it, but for tensors that came as blobs, which sessions
    share. ``remainders``: see :meth:`remaining_bytes`, for equal runs of the ``ops``."""

    peak_bytes: int
    node: int | None
    kept_bytes: int = 0
    ops: int = 0
    remainders: tuple[int, ...] = ()

    def remaining_bytes(self, executed: int) -> int:
        """The most that the program takes from op number ``executed`` on, besides what it holds there."""
        if not 0 < executed < self.ops:
            return self.peak_bytes
        return self.remainders[executed // _run_length(self.ops)]


def predict_peak_bytes(program: Program) -> Footprint:
    """Predict the footprint of a valid program. Values that the session already holds are not counted."""
    last_use = _last_uses(program)
    size_of: dict[int, int] = {}
    live = 0
    held_before: set[int] = set()
    for source in program.sources:
        if source.blob is None:
            held_before.add(source.storage)
        elif source.storage not in size_of:
            size_of[source.storage] = program.metas[source.meta].span_bytes
            live += size_of[source.storage]
    peak = live
    peak_node: int | None = None
    dying: dict[int, list[int]] = {}
    for used, last in last_use.items():
        dying.setdefault(last, []).append(used)
    before: list[int] = []
    during: list[int] = []
    for index, node in enumerate(program.nodes):
        before.append(live)
        for meta, storage in zip(node.output_metas, node.storages, strict=False):
            if meta is None or storage is None or storage in size_of or storage in held_before:
                continue
            size_of[storage] = program.metas[meta].span_bytes
            live += size_of[storage]
        if live > peak:
            peak, peak_node = live, index
        during.append(live)
        live -= sum(size_of.get(dead, 0) for dead in dying.get(index, ()))
    kept_bytes = _kept_bytes(program, size_of)
    return Footprint(peak, peak_node, kept_bytes, len(program.nodes), _remainders(before, during))


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


def _kept_bytes(program: Program, size_of: Mapping[int, int]) -> int:
    storage_of = {source.value: source.storage for source in program.sources}
    for node in program.nodes:
        storage_of.update(_made(node.outputs, node.storages))
    blobs = {source.storage for source in program.sources if source.blob is not None}
    kept = {storage_of[value] for value in program.keep if value in storage_of} - blobs
    return sum(size_of.get(storage, 0) for storage in kept)


def _last_uses(program: Program) -> dict[int, int]:
    """The last node that touches each storage, for storages that do not outlive the program."""
    storage_of = {source.value: source.storage for source in program.sources}
    last: dict[int, int] = {}
    for index, node in enumerate(program.nodes):
        for value, storage in _made(node.outputs, node.storages):
            storage_of[value] = storage
            last[storage] = index
        for read in node.inputs:
            if read is not None and read in storage_of:
                last[storage_of[read]] = index
    outliving = {storage_of[value] for value in (*program.keep, *program.fetch) if value in storage_of}
    outliving |= {source.storage for source in program.sources}
    return {storage: node for storage, node in last.items() if storage not in outliving}


def _made(outputs: tuple[int | None, ...], storages: tuple[int | None, ...]) -> Iterator[tuple[int, int]]:
    for value, storage in zip(outputs, storages, strict=False):
        if value is not None and storage is not None:
            yield value, storage
