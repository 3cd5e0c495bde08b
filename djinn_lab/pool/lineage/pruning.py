"""Which runs of a log made what is still alive.

Values in one memory are one group: an in-place write of any of them counts for all. Memory that is older than
the log may have values that the log does not name, so that a write to it always counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from djinn_lab.pool.lineage.log import Run
from djinn_lab.srg.ops import written_holes
from djinn_lab.srg.program import Program, decode_program

PRUNED_BYTES_MAX = 4 * 2**20
"""A log with more is replayed as it is: to look at it takes about as long as its replay."""


class Effect(NamedTuple):
    """What a program does, by memory (storage). ``kept``: values that it leaves, with their memory.
    ``reads``: memory of earlier values; ``writes``: the part of it that is written."""

    kept: dict[int, int]
    reads: frozenset[int]
    writes: frozenset[int]
    released: Sequence[int]


def needed(runs: Sequence[Run], released: Iterable[int]) -> list[bool]:
    """Return, for each run, whether anything alive depends on it. Runs of one segment belong together; those
    of a segment that is not over are needed."""
    if sum(len(run.program) for run in runs) > PRUNED_BYTES_MAX:
        return [True] * len(runs)
    effects: dict[tuple[str, int], Effect] = {}
    open_segments = {(run.job, run.segment) for run in runs}
    for run in runs:
        name = run.job, run.segment
        if name not in effects:
            effects[name] = effect_of(decode_program(run.program))
        if run.closes:
            open_segments.discard(name)
    useful = _useful(effects, open_segments, released)
    return [(run.job, run.segment) in useful for run in runs]


def unread(runs: Sequence[Run], released: Sequence[int]) -> list[int]:
    """Return the released values that no needed run reads: they may be dropped before the runs."""
    if not (runs and released):
        return [*released]
    flags = zip(runs, needed(runs, released), strict=True)
    read = {value for run, flag in flags if flag for value in _reads(run)}
    return [value for value in released if value not in read]


def _reads(run: Run) -> set[int]:
    """Return the values that must be there when the run begins, and others that its ops read."""
    program = decode_program(run.program)
    read = {value for node in program.nodes[run.begin :] for value in node.inputs if value is not None}
    return read | {source.value for source in program.sources if source.held}


def effect_of(program: Program) -> Effect:
    memory = {source.value: source.storage for source in program.sources}
    earlier = {source.storage for source in program.sources if source.held}
    written: set[int] = set()
    places = [written_holes(template) for template in program.templates]
    for node in program.nodes:
        for hole in places[node.template]:
            value = node.inputs[hole]
            if value is not None and value in memory:
                written.add(memory[value])
        for value, storage in zip(node.outputs, node.storages, strict=False):
            if value is not None and storage is not None:
                memory[value] = storage
    kept = {value: memory[value] for value in program.keep if value in memory}
    reads = frozenset(earlier)
    return Effect(kept, reads, frozenset(written & earlier), program.release)


def _useful(
    effects: dict[tuple[str, int], Effect], open_segments: set[tuple[str, int]], released: Iterable[int]
) -> set[tuple[str, int]]:
    dead = {*released, *(value for effect in effects.values() for value in effect.released)}
    older: set[int] = set()
    made: set[int] = set()
    for effect in effects.values():
        older |= effect.reads - made
        made |= {*effect.kept.values()} - older
    kept = (item for effect in effects.values() for item in effect.kept.items())
    alive = {storage for value, storage in kept if value not in dead}
    useful: set[tuple[str, int]] = set()
    for name, effect in reversed(effects.items()):
        touched = {*effect.kept.values()} | effect.writes
        if name in open_segments or effect.writes & older or touched & alive:
            useful.add(name)
            alive |= effect.reads
    return useful
