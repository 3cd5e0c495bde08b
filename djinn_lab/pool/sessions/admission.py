"""Inspect a submitted program before anything trusts it: decode, validate, measure."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from djinn_lab.errors import Refused
from djinn_lab.memory.footprint import Footprint, footprint_of
from djinn_lab.srg.costs import Work, sum_work
from djinn_lab.srg.liveness import FirstUses
from djinn_lab.srg.plan_key import KeyedProgram, decode_contents, keyed, resizable
from djinn_lab.srg.program import Program, Source, TensorMeta, decode_program, encode_templates
from djinn_lab.srg.structure import GraphPhase, ProgramStructure, structure_of
from djinn_lab.srg.validation import validate_content, validate_program, validate_sizes
from djinn_lab.srg.wire import PROGRAM_BYTES_MAX
from djinn_lab.units import format_bytes

Decoded = TypeVar("Decoded")
PLANS_MAX = 10_000
STRUCTURE_NUMBERS_MAX = 4_000_000
"""That the structures of all programs hold together: about 5 for each node."""
INLINE_BYTES_MAX = 64 * 2**10
"""Programs above this are inspected in a thread."""

log = logging.getLogger(__name__)


class ProgramMeasures(NamedTuple):
    """Hold what programs with equal keys have in common. ``reads``: which of their sources the ops read that
    the session holds, by place."""

    ops: int
    footprint: Footprint
    work: Work
    peak_op: str | None
    floor_op: str | None
    reads: FirstUses | None
    phase: GraphPhase
    structure: bytes


class InspectedProgram(msgspec.Struct, frozen=True):
    """``blobs``: digests that must be present. ``structure``: equal for programs that differ in their sizes
    only; empty where the program has no key."""

    blobs: list[str]
    ops: int
    footprint: Footprint
    work: Work
    peak_op: str | None
    floor_op: str | None
    reads: FirstUses | None
    phase: GraphPhase
    structure: bytes
    key: bytes | None
    cached: bool


class PlanCache:
    """Cache what is known of programs, by :func:`~djinn_lab.srg.plan_key.plan_key`, and their structures, by
    :func:`~djinn_lab.srg.plan_key.resizable`; the least recently used go first. Shared by all sessions: it
    holds no data and no names. ``hits``: programs with a known key. ``resized``: of the others (``misses``),
    those of a known structure."""

    def __init__(self, entries_max: int = PLANS_MAX, numbers_max: int = STRUCTURE_NUMBERS_MAX) -> None:
        self._entries_max = entries_max
        self._numbers_max = numbers_max
        self._measured: OrderedDict[bytes, ProgramMeasures] = OrderedDict()
        self._structures: OrderedDict[bytes, ProgramStructure] = OrderedDict()
        self._numbers = 0
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0
        self.resized = 0

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

    def find_structure(self, key: bytes) -> ProgramStructure | None:
        """Return the structure of a program that only its sizes may distinguish from one before."""
        with self._lock:
            found = self._structures.get(key)
            if found is not None:
                self.resized += 1
                self._structures.move_to_end(key)
            return found

    def keep_structure(self, key: bytes, structure: ProgramStructure) -> None:
        """Keep a structure that was not known, unless it alone is too large."""
        if structure.numbers > self._numbers_max:
            return
        with self._lock:
            before = self._structures.pop(key, None)
            self._structures[key] = structure
            self._numbers += structure.numbers - (0 if before is None else before.numbers)
            while self._numbers > self._numbers_max:
                self._numbers -= self._structures.popitem(last=False)[1].numbers


class TorchVersions(NamedTuple):
    """The torch of a program's ``client``; ops that devices are ``lacking``, with the torch of those."""

    client: str
    lacking: Mapping[str, str]

    def refuse_lacking(self, program: Program) -> None:
        """Raise Refused for a program with an op that a device's torch does not have."""
        found = next((template.op for template in program.templates if template.op in self.lacking), None)
        if found is not None:
            raise Refused(
                f"The op {found} is not in torch {self.lacking[found]}, which the pool has; this notebook "
                f"has torch {self.client}.",
                "Nothing of this segment ran. Run this cell with %%local, or install the same torch in both: "
                "`djinn-lab doctor` names the versions.",
            )


ALIKE = TorchVersions("", {})


async def inspect_program(
    encoded: bytes, plans: PlanCache, torches: TorchVersions = ALIKE
) -> InspectedProgram:
    """Raises Refused when a worker may not run it."""
    if len(encoded) > PROGRAM_BYTES_MAX:
        raise Refused(
            f"The cell's graph has {format_bytes(len(encoded))}; "
            f"the pool takes at most {format_bytes(PROGRAM_BYTES_MAX)}.",
            "Split the cell, or read a value inside its loop so that it is sent in parts.",
        )
    if len(encoded) <= INLINE_BYTES_MAX:
        return inspect_encoded(encoded, plans, torches)
    return await asyncio.to_thread(inspect_encoded, encoded, plans, torches)


def inspect_encoded(encoded: bytes, plans: PlanCache, torches: TorchVersions = ALIKE) -> InspectedProgram:
    """Inspect a program of any length at once; see :func:`inspect_program`."""
    named = keyed(encoded)
    measured, blobs = plans.find(named.key), named.blobs
    cached = measured is not None
    if measured is None:
        try:
            measured, sources = _measure(encoded, named, plans, torches)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            log.warning("a submitted graph cannot be measured", exc_info=error)
            raise Refused(f"The submitted graph has a call that its op does not take: {error}.") from error
        plans.keep(named.key, measured)
        blobs = _blobs(sources)
    elif blobs is None:
        contents = _decoded(encoded, decode_contents)
        validate_content(contents)
        blobs = _blobs(contents.sources)
    return InspectedProgram(list(dict.fromkeys(blobs)), *measured, named.key, cached)


def _blobs(sources: Sequence[Source]) -> list[str]:
    return [source.blob for source in sources if source.blob is not None]


def _decoded(encoded: bytes, decode: Callable[[bytes], Decoded]) -> Decoded:
    try:
        return decode(encoded)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(f"The submitted graph cannot be read: {error}.") from None


def _measure(
    encoded: bytes, named: KeyedProgram, plans: PlanCache, torches: TorchVersions
) -> tuple[ProgramMeasures, Sequence[Source]]:
    """Validate and measure a program of a new key; return its sources, too."""
    sized = None if named.key is None else _decoded(named.material, resizable)
    structure = None if sized is None else plans.find_structure(sized.structure)
    if sized is not None and structure is not None:
        contents = _decoded(encoded, decode_contents)
        validate_sizes(sized.metas, sized.templates)
        validate_content(contents)
        return _measured(structure, sized.metas, sized.templates, sized.structure), contents.sources
    program = _decoded(encoded, decode_program)
    validate_program(program)
    torches.refuse_lacking(program)
    structure = structure_of(program, named.material)
    if sized is not None:
        plans.keep_structure(sized.structure, structure)
    name = b"" if sized is None else sized.structure
    return _measured(structure, program.metas, encode_templates(program), name), program.sources


def _measured(
    structure: ProgramStructure, metas: Sequence[TensorMeta], templates: Sequence[bytes], name: bytes
) -> ProgramMeasures:
    footprint = footprint_of(structure, metas)
    work = sum_work(structure.calls, structure.counts, templates, metas)
    peak_op, floor_op = _op_at(structure, footprint.node), _op_at(structure, footprint.floor_node)
    phase = structure.phase(metas)
    return ProgramMeasures(structure.ops, footprint, work, peak_op, floor_op, structure.reads, phase, name)


def _op_at(structure: ProgramStructure, node: int | None) -> str | None:
    return None if node is None else structure.op(node)
