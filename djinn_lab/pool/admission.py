"""Looks into a submitted program before anything trusts it: decode, validate, measure."""

from __future__ import annotations

import asyncio

import msgspec

from djinn_lab.errors import Refused
from djinn_lab.memory import predict_peak_bytes
from djinn_lab.memory.footprint import Footprint
from djinn_lab.srg.program import Program, decode_program
from djinn_lab.srg.validation import validate_program
from djinn_lab.units import format_bytes

PROGRAM_BYTES_MAX = 64 * 2**20
"""About a million ops."""
INLINE_BYTES_MAX = 64 * 2**10
"""Programs above this are inspected in a thread."""


class Inspected(msgspec.Struct, frozen=True):
    """``blobs``: digests that must be present."""

    program: Program
    ops: int
    blobs: list[str]
    footprint: Footprint
    peak_op: str | None


async def inspect_program(encoded: bytes) -> Inspected:
    """Raises Refused when a worker may not run it."""
    if len(encoded) > PROGRAM_BYTES_MAX:
        raise Refused(
            f"The cell's graph has {format_bytes(len(encoded))}; "
            f"the pool takes at most {format_bytes(PROGRAM_BYTES_MAX)}.",
            "Split the cell, or read a value inside its loop so that it is sent in parts.",
        )
    if len(encoded) <= INLINE_BYTES_MAX:
        return _inspect(encoded)
    return await asyncio.to_thread(_inspect, encoded)


def _inspect(encoded: bytes) -> Inspected:
    try:
        program = decode_program(encoded)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(f"The submitted graph cannot be read: {error}.") from None
    validate_program(program)
    footprint = predict_peak_bytes(program)
    peak_op = None if footprint.node is None else program.templates[program.nodes[footprint.node].template].op
    blobs = list(dict.fromkeys(source.blob for source in program.sources if source.blob is not None))
    return Inspected(program, len(program.nodes), blobs, footprint, peak_op)
