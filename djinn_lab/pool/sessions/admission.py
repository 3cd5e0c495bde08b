"""Inspect a submitted program before anything trusts it: decode, validate, measure."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from typing import NamedTuple

import msgspec

from djinn_lab.errors import Refused
from djinn_lab.memory import predict_peak_bytes
from djinn_lab.memory.footprint import Footprint
from djinn_lab.srg.costs import Work, work_of
from djinn_lab.srg.liveness import FirstUses, first_uses
from djinn_lab.srg.plan_key import Contents, decode_contents, keyed
from djinn_lab.srg.program import Program, decode_program
from djinn_lab.srg.validation import validate_content, validate_program
from djinn_lab.srg.wire import PROGRAM_BYTES_MAX
from djinn_lab.units import format_bytes

PLANS_MAX = 10_000
INLINE_BYTES_MAX = 64 * 2**10
"""Programs above this are inspected in a thread."""


class ProgramMeasures(NamedTuple):
    """Hold what programs with equal keys have in common. ``reads``: which of their sources the ops read that
    the session holds, by place."""

    ops: int
    footprint: Footprint
    work: Work
    peak_op: str | None
    floor_op: str | None
    reads: FirstUses | None


class InspectedProgram(msgspec.Struct, frozen=True):
    """``blobs``: digests that must be present."""

    blobs: list[str]
    ops: int
    footprint: Footprint
    work: Work
    peak_op: str | None
    floor_op: str | None
    reads: FirstUses | None
    key: bytes | None
    cached: bool


class PlanCache:
    """Cache what is known of programs, by :func:`~djinn_lab.srg.plan_key.plan_key`; the least recently
    used go first. Shared by all sessions: it holds no data and no names."""

    def __init__(self, entries_max: int = PLANS_MAX) -> None:
        self._entries_max = entries_max
        self._measured: OrderedDict[bytes, ProgramMeasures] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    @property
    def entries(self) -> int:
        return len(self._measured)

    def find(self, key: bytes | None) -> ProgramMeasures | None:
        with self._lock:
            found = None if key is None else self._measured.get(key)
            if found is None:
                self.misses += 1
                return None
            assert key is not None
            self.hits += 1
            self._measured.move_to_end(key)
            return found

    def keep(self, key: bytes | None, measured: ProgramMeasures) -> None:
        if key is None:
            return
        with self._lock:
            self._measured[key] = measured
            while len(self._measured) > self._entries_max:
                self._measured.popitem(last=False)


async def inspect_program(encoded: bytes, plans: PlanCache) -> InspectedProgram:
    """Raises Refused when a worker may not run it."""
    if len(encoded) > PROGRAM_BYTES_MAX:
        raise Refused(
            f"The cell's graph has {format_bytes(len(encoded))}; "
            f"the pool takes at most {format_bytes(PROGRAM_BYTES_MAX)}.",
            "Split the cell, or read a value inside its loop so that it is sent in parts.",
        )
    if len(encoded) <= INLINE_BYTES_MAX:
        return _inspect(encoded, plans)
    return await asyncio.to_thread(_inspect, encoded, plans)


def _inspect(encoded: bytes, plans: PlanCache) -> InspectedProgram:
    key, blobs = keyed(encoded)
    measured = plans.find(key)
    cached = measured is not None
    if measured is None or blobs is None:
        program = _decoded(encoded, cached)
        if isinstance(program, Program):
            validate_program(program)
            measured = _measure(program)
            plans.keep(key, measured)
        else:
            validate_content(program)
        blobs = [source.blob for source in program.sources if source.blob is not None]
    assert measured is not None
    return InspectedProgram(list(dict.fromkeys(blobs)), *measured, key, cached)


def _decoded(encoded: bytes, cached: bool) -> Program | Contents:
    try:
        return decode_contents(encoded) if cached else decode_program(encoded)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(f"The submitted graph cannot be read: {error}.") from None


def _measure(program: Program) -> ProgramMeasures:
    footprint = predict_peak_bytes(program)
    peak_op, floor_op = _op_at(program, footprint.node), _op_at(program, footprint.floor_node)
    return ProgramMeasures(
        len(program.nodes), footprint, work_of(program), peak_op, floor_op, _reads(program)
    )


def _op_at(program: Program, node: int | None) -> str | None:
    return None if node is None else program.templates[program.nodes[node].template].op


def _reads(program: Program) -> FirstUses | None:
    uses = first_uses(program)
    if uses is None:
        return None
    place_of = {source.value: place for place, source in enumerate(program.sources)}
    return FirstUses(tuple(place_of[value] for value in uses.values), uses.first)
