"""Predicts how many bytes a program holds at its peak: liveness of storages in recorded order, freed as
the worker frees them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from djinn_lab.srg.liveness import sweep
from djinn_lab.srg.program import Program, TensorMeta
from djinn_lab.srg.structure import LASTING, ProgramStructure, structure_of
from djinn_lab.srg.wiring import BEFORE

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
    return footprint_of(structure_of(program), program.metas)


def footprint_of(structure: ProgramStructure, metas: Sequence[TensorMeta]) -> Footprint:
    """Predict the footprint of a valid program of this structure with these metas."""
    spans = structure.spans(metas)
    loaded_bytes = 0
    added, freed = [0] * structure.ops, [0] * structure.ops
    for size, made, last in zip(structure.sizes, structure.made, structure.freed, strict=True):
        if made == BEFORE:
            loaded_bytes += spans[size]
        else:
            added[made] += spans[size]
        if last != LASTING:
            freed[last] += spans[size]
    live = sweep(loaded_bytes, added, freed)
    peak_bytes = max(loaded_bytes, *live.during) if live.during else loaded_bytes
    floor_bytes, floor_node = _floor(structure, spans)
    return Footprint(
        peak_bytes,
        live.during.index(peak_bytes) if peak_bytes > loaded_bytes else None,
        sum(spans[size] for size in structure.kept),
        structure.ops,
        _remainders(live.before, live.during),
        floor_bytes,
        floor_node,
    )


def _floor(structure: ProgramStructure, spans: Sequence[int]) -> tuple[int, int | None]:
    """Return the bytes of the storages that one op touches, of the op with most, and which that is. Ops on
    lists can run one tensor at a time."""
    most, at = max((spans[size] for size in structure.sources), default=0), None
    for group, position in structure.touched:
        nbytes = sum(spans[size] for size in group)
        if nbytes > most:
            most, at = nbytes, position
    return most, at


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
